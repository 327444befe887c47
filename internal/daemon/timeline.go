package daemon

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/cache"
)

// timelineMark stands before every record of the timeline in a log, here and in the adapters.
const timelineMark = "cache_timeline "

// timeline writes what queries that read from the tier reach, one line of the log each, as the adapters write the stages of requests into theirs. It
// holds neither tokens nor keys. It is called with the cache's mutex held, so whatever takes its lines must not wait.
type timeline struct {
	to  io.Writer
	pid int
}

// timelineProcess is the first record. Monotonic times of two processes compare where boot and time namespace are the same.
type timelineProcess struct {
	Stage         string `json:"stage"`
	Engine        string `json:"engine"`
	PID           int    `json:"pid"`
	BootID        string `json:"boot_id"`        // empty where the kernel does not tell
	TimeNamespace string `json:"time_namespace"` // empty where the kernel does not tell
	timelineMoment
}

// timelineMilestone is the record of one stage.
type timelineMilestone struct {
	Stage     cache.Stage `json:"stage"`
	Request   string      `json:"request_id"`
	Instance  string      `json:"instance_id"`
	Group     uint16      `json:"group_id"`
	Warmup    bool        `json:"warmup"`
	PID       int         `json:"pid"`
	ElapsedUS int64       `json:"elapsed_us"`
	HitBlocks int         `json:"hit_blocks"`
	Pages     int         `json:"pages"`
	Bytes     uint64      `json:"bytes"`
	timelineMoment
}

// timelineMoment is when a record was written: by the clock that compares, and by the one on the wall for people who read several logs.
type timelineMoment struct {
	MonotonicNS int64 `json:"monotonic_ns"`
	AtUnixNS    int64 `json:"at_unix_ns"`
}

// newTimeline writes the record of this process.
func newTimeline(to io.Writer, version string) *timeline {
	t := &timeline{to: to, pid: os.Getpid()}
	t.write(timelineProcess{
		Stage: "process", Engine: "orbitkv-" + version, PID: t.pid, BootID: bootID(), TimeNamespace: timeNamespace(), timelineMoment: timelineNow(),
	})
	return t
}

func (t *timeline) record(m cache.Milestone) {
	t.write(timelineMilestone{
		Stage: m.Stage, Request: m.Request, Instance: m.Instance, Group: m.Group, Warmup: m.Warmup, PID: t.pid, ElapsedUS: m.Elapsed.Microseconds(),
		HitBlocks: m.Hits, Pages: m.Pages, Bytes: m.Bytes, timelineMoment: timelineNow(),
	})
}

// write puts a record out as one line. A log that takes no line has no other place to say so; the queue in front of it counts those it dropped.
func (t *timeline) write(record any) {
	line, err := json.Marshal(record)
	if err != nil {
		panic("daemon: a record of the timeline is no JSON: " + err.Error())
	}
	_, _ = t.to.Write(append(append([]byte(timelineMark), line...), '\n'))
}

// timelineNow reads the clock of the adapters' records and the one on the wall, which measures nothing here.
func timelineNow() timelineMoment {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("daemon: this machine has no monotonic clock: " + err.Error())
	}
	return timelineMoment{MonotonicNS: now.Nano(), AtUnixNS: time.Now().UnixNano()}
}

// bootID tells one boot of one machine from all others.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// timeNamespace is the number by which the kernel names the clocks of this process.
func timeNamespace() string {
	link, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(link, "time:["), "]")
}
