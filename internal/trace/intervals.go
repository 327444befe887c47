package trace

import (
	"slices"
	"time"
)

// Interval is the time between two stages, over the requests that have both by one clock.
type Interval struct {
	From, To string
	Requests int
	Median   time.Duration
	P90      time.Duration
	Most     time.Duration
}

// pairs are the stages between which a request spends its time.
var pairs = [][2]string{
	{Queued, ReadStart}, {ReadStart, HostReady}, {HostReady, RestoreSubmit}, {Queued, RestoreSubmit}, {RestoreSubmit, GPUReady}, {RestoreSubmit, FirstUse}, {Queued, FirstUse},
}

// Intervals returns the pairs of stages that some request has. The first event of each stage counts, and the last of GPUReady, which every rank writes.
func (t *Trace) Intervals() []Interval {
	var found []Interval
	for _, pair := range pairs {
		var spans []time.Duration
		for _, q := range t.Requests {
			if span, ok := q.between(pair[0], pair[1]); ok {
				spans = append(spans, span)
			}
		}
		if len(spans) > 0 {
			slices.Sort(spans)
			found = append(found, Interval{
				From: pair[0], To: pair[1], Requests: len(spans),
				Median: quantile(spans, 50), P90: quantile(spans, 90), Most: spans[len(spans)-1],
			})
		}
	}
	return found
}

// between is the time between two stages by the first clock that has both.
func (q *Request) between(from, to string) (time.Duration, bool) {
	for i := range q.Lanes {
		if begin, end, ok := q.Lanes[i].Between(from, to); ok {
			return end - begin, true
		}
	}
	return 0, false
}

// Between says when a lane has a stage and another that does not come before it, since its first event. ok is false where it has not both.
func (l *Lane) Between(from, to string) (begin, end time.Duration, ok bool) {
	a, b := l.moment(from), l.moment(to)
	if a == nil || b == nil || b.At < a.At {
		return 0, 0, false
	}
	first := l.Events[0].At
	return time.Duration(a.At - first), time.Duration(b.At - first), true
}

// moment is the event by which a stage is reached. A restore that failed made nothing ready, and what a hint reads is not the request's own wait.
func (l *Lane) moment(stage string) (found *Event) {
	for i := range l.Events {
		if l.Events[i].Stage == stage && !l.Events[i].Failed && !l.Events[i].Warmup && (found == nil || stage == GPUReady) {
			found = &l.Events[i]
		}
	}
	return found
}

// quantile is the value of sorted ones that so many percent do not exceed.
func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}
