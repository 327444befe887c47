package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Trace is what the records say.
type Trace struct {
	Files    []string
	Requests []*Request // in order of their first record
	Records  int        // kept
	Repeated int        // left out because the same record stands there twice
	Damages  []Damage   // at most DamagesMax
	Damaged  int
	Left     Left
}

// Source is one process that wrote records.
type Source struct {
	File   string
	PID    int64
	Run    Run
	Engine string // and its version; "orbitkv-" and a version for a Manager; empty where no record says it
	Known  bool   // its clock was told
	clock  int
}

// Name says which process it is.
func (s *Source) Name() string {
	var words []string
	if s.Run.Backend != "" {
		words = append(words, s.Run.Backend)
	}
	switch {
	case strings.HasPrefix(s.Engine, "orbitkv-"):
		words = append(words, "Manager")
	case s.Engine != "":
		words = append(words, s.Engine)
	}
	if s.Run.Pass != Absent {
		words = append(words, fmt.Sprintf("pass %d", s.Run.Pass))
	}
	if s.Run.Attempt != Absent {
		words = append(words, fmt.Sprintf("attempt %d", s.Run.Attempt))
	}
	return strings.Join(append(words, fmt.Sprintf("process %d", s.PID)), ", ")
}

// clock is what times compare in: a boot and a time namespace, or one process alone.
type clock struct {
	boot, namespace string
	alone           *Source
}

func (c clock) known() bool { return c.boot != "" && c.namespace != "" }

// Request is what happened to one request.
type Request struct {
	ID     string
	Run    Run
	Lanes  []Lane // one for each clock; the first has the stage that came first in a request's life
	events []Event
}

// Lane is what happened by one clock.
type Lane struct {
	Sources []*Source // in order of their first event
	Events  []Event   // in order of time
}

// Event is one stage of a request.
type Event struct {
	Stage  string
	At     int64 // ns of the lane's clock
	Source *Source
	Details
}

// life is the order of a request's stages.
var life = []string{Queued, ReadStart, HostReady, Staged, RestoreSubmit, LayerReady, LayerUsed, GPUReady, FirstUse}

// Trace returns what was read. The collector is used up.
func (c *Collector) Trace() *Trace {
	t := &Trace{Files: c.fileOrder, Requests: c.order, Records: c.records, Damages: c.damages, Damaged: c.damaged, Left: c.left}
	for _, q := range t.Requests {
		repeated := q.arrange()
		t.Repeated += repeated
		t.Records -= repeated
	}
	return t
}

// arrange puts the events into lanes, in order of time, and says how many it left out because they stand there twice.
func (q *Request) arrange() (repeated int) {
	slices.SortStableFunc(q.events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Source.clock, b.Source.clock), cmp.Compare(a.At, b.At))
	})
	all := len(q.events)
	q.events = slices.Compact(q.events)
	for from := 0; from < len(q.events); {
		to := from + 1
		for to < len(q.events) && q.events[to].Source.clock == q.events[from].Source.clock {
			to++
		}
		lane := Lane{Events: q.events[from:to:to]}
		for i := range lane.Events {
			if !slices.Contains(lane.Sources, lane.Events[i].Source) {
				lane.Sources = append(lane.Sources, lane.Events[i].Source)
			}
		}
		q.Lanes = append(q.Lanes, lane)
		from = to
	}
	slices.SortStableFunc(q.Lanes, func(a, b Lane) int { return cmp.Compare(a.begins(), b.begins()) })
	return all - len(q.events)
}

// begins is how early in a request's life the first stages of a lane are.
func (l *Lane) begins() int {
	earliest := len(life)
	for i := range l.Events {
		if at := slices.Index(life, l.Events[i].Stage); at >= 0 {
			earliest = min(earliest, at)
		}
	}
	return earliest
}

// Span is the time from the first event of a lane to its last.
func (l *Lane) Span() time.Duration {
	return time.Duration(l.Events[len(l.Events)-1].At - l.Events[0].At)
}

// Span is the longest that one clock says of a request.
func (q *Request) Span() (longest time.Duration) {
	for i := range q.Lanes {
		longest = max(longest, q.Lanes[i].Span())
	}
	return longest
}

// Clock says in words what the times of a lane compare with.
func (l *Lane) Clock() string {
	var names []string
	for _, s := range l.Sources {
		names = append(names, s.Name())
	}
	text := strings.Join(names, "; ")
	switch {
	case !l.Sources[0].Known:
		return text + ": no record says which clock this process reads, so its times stand alone"
	case len(l.Sources) > 1:
		return text + ": one boot and time namespace, so one clock"
	}
	return text
}

// Longest returns at most n requests of those that keep accepts: those whose spans are the longest, longest first.
func (t *Trace) Longest(n int, keep func(*Request) bool) []*Request {
	var found []*Request
	for _, q := range t.Requests {
		if keep(q) {
			found = append(found, q)
		}
	}
	slices.SortStableFunc(found, func(a, b *Request) int { return cmp.Compare(b.Span(), a.Span()) })
	return found[:min(n, len(found))]
}
