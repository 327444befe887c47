package trace

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden text anew")

// read returns what logs say, by their names.
func read(t *testing.T, logs ...[2]string) *Trace {
	t.Helper()
	c := NewCollector()
	for _, log := range logs {
		if err := c.Read(log[0], strings.NewReader(log[1])); err != nil {
			t.Fatal(err)
		}
	}
	return c.Trace()
}

func every(*Request) bool { return true }

// TestWaterfalls compares what a terminal shows of an engine's log, a Manager's and a file of records with what it is to show.
func TestWaterfalls(t *testing.T) {
	c := NewCollector()
	for _, name := range []string{"engine.log", "manager.log", "worker.jsonl"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Read(name, bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	all := c.Trace()
	var got bytes.Buffer
	if err := all.WriteText(&got, all.Longest(20, every)); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "waterfalls.txt")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the text differs from %s (-update writes it anew):\n%s", golden, got.String())
	}
}

// process is the first record of a process.
func process(pid int, boot, namespace string) string {
	return fmt.Sprintf(`cache_timeline {"stage":"process","engine":"e","pid":%d,"monotonic_ns":1,"boot_id":%q,"time_namespace":%q}`+"\n", pid, boot, namespace)
}

func stage(name string, pid int, at int64) string {
	return fmt.Sprintf(`cache_timeline {"stage":%q,"request_id":"r","pid":%d,"monotonic_ns":%d}`+"\n", name, pid, at)
}

// TestClocks puts two processes on one axis where boot and time namespace agree, and nowhere else.
func TestClocks(t *testing.T) {
	for _, c := range []struct {
		name  string
		one   string
		other string
		lanes int
	}{
		{"the same", process(1, "b", "n"), process(2, "b", "n"), 1},
		{"another boot", process(1, "b", "n"), process(2, "c", "n"), 2},
		{"another time namespace", process(1, "b", "n"), process(2, "b", "m"), 2},
		{"one that does not say", process(1, "b", "n"), "", 2},
		{"none that says", "", "", 2},
		{"a boot without a namespace", process(1, "b", ""), process(2, "b", ""), 2},
		{"a namespace without a boot", process(1, "", "n"), process(2, "", "n"), 2},
	} {
		for _, apart := range []bool{true, false} {
			one, other := c.one+stage(Queued, 1, 100)+stage(FirstUse, 1, 400), c.other+stage(ReadStart, 2, 200)+stage(HostReady, 2, 300)
			all := read(t, [2]string{"log", one + other})
			if apart {
				all = read(t, [2]string{"a", other}, [2]string{"b", one})
			}
			lanes := all.Requests[0].Lanes
			if len(lanes) != c.lanes {
				t.Fatalf("%s: %d lanes, not %d", c.name, len(lanes), c.lanes)
			}
			if lanes[0].Events[0].Stage != Queued {
				t.Errorf("%s: the first lane begins with %s", c.name, lanes[0].Events[0].Stage)
			}
			compared := false
			for _, i := range all.Intervals() {
				compared = compared || i.From == Queued && i.To == ReadStart
			}
			if compared != (c.lanes == 1) {
				t.Errorf("%s: times of two processes are compared: %v", c.name, compared)
			}
		}
	}
}

// TestAProcessIDIsGivenAgain keeps a process apart from one that has its number in another file, or after it.
func TestAProcessIDIsGivenAgain(t *testing.T) {
	if lanes := read(t, [2]string{"a", stage(Queued, 1, 5)}, [2]string{"b", stage(ReadStart, 1, 7)}).Requests[0].Lanes; len(lanes) != 2 {
		t.Errorf("two files: %d lanes", len(lanes))
	}
	log := process(1, "b", "n") + stage(Queued, 1, 5) + process(1, "c", "n") + stage(Queued, 1, 7)
	if lanes := read(t, [2]string{"a", log}).Requests[0].Lanes; len(lanes) != 2 {
		t.Errorf("after another boot: %d lanes", len(lanes))
	}
}

// TestIntervals counts a request once, its first stages, the last rank's end, and no restore that failed.
func TestIntervals(t *testing.T) {
	failed := strings.Replace(stage(GPUReady, 2, 9e6), `"pid"`, `"success":false,"pid"`, 1)
	log := process(1, "b", "n") + process(2, "b", "n") + stage(RestoreSubmit, 1, 1e6) + stage(RestoreSubmit, 2, 2e6) + stage(GPUReady, 1, 4e6) + stage(GPUReady, 2, 6e6) + failed
	found := read(t, [2]string{"log", log}).Intervals()
	want := Interval{RestoreSubmit, GPUReady, 1, 5 * time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond}
	if len(found) != 1 || found[0] != want {
		t.Errorf("%+v", found)
	}
	warm := strings.ReplaceAll(stage(ReadStart, 1, 2e6)+stage(HostReady, 1, 3e6), `"pid"`, `"warmup":true,"pid"`)
	if found := read(t, [2]string{"log", warm + stage(FirstUse, 1, 5e6)}).Intervals(); len(found) != 0 {
		t.Errorf("a hint's reads count as a request's: %+v", found)
	}
	spans := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	if quantile(spans, 50) != 5 || quantile(spans, 90) != 9 || quantile(spans[:1], 90) != 1 {
		t.Error("quantiles are not the values that half and nine tenths do not exceed")
	}
}

// TestBounds fills every table and finds what did not fit counted.
func TestBounds(t *testing.T) {
	add := func(n int, change func(r *Record, i int)) Left {
		c := NewCollector()
		for i := range n {
			r := Record{Stage: Queued, Request: "r", PID: 1, At: int64(i)}
			change(&r, i)
			c.Add(r)
		}
		return c.Trace().Left
	}
	if left := add(RequestsMax+2, func(r *Record, i int) { r.Request = fmt.Sprint(i) }); left != (Left{Requests: 2}) {
		t.Errorf("requests: %+v", left)
	}
	if left := add(EventsMax+3, func(*Record, int) {}); left != (Left{Events: 3}) {
		t.Errorf("events: %+v", left)
	}
	if left := add(ProcessesMax+4, func(r *Record, i int) { r.PID = int64(i) }); left != (Left{Processes: 4}) {
		t.Errorf("processes: %+v", left)
	}
	c := NewCollector()
	c.records = RecordsMax - 1 // as if so many had come before
	for i := range int64(3) {
		c.Add(Record{Stage: Queued, Request: "r", PID: 1, At: i})
	}
	if left := c.Trace().Left; left != (Left{Events: 2}) {
		t.Errorf("records: %+v", left)
	}
}

// TestAFileTwice refuses what would count every record twice.
func TestAFileTwice(t *testing.T) {
	c := NewCollector()
	if err := c.Read("a", strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if err := c.Read("a", strings.NewReader("")); err == nil {
		t.Error("a file was read twice")
	}
}
