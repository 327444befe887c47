package ssd

import (
	"math"
	"slices"
	"time"
)

const (
	rateSamples   = 5                      // of which the median counts: a change shows after three
	rateBytesMin  = 4 << 20                // of one sample
	rateColdAfter = 100 * time.Millisecond // how long the first reads of all may take before their age says something
	rateIdle      = 10 * time.Second       // a sample that is not whole says nothing of now when no read was under way for so long
	lateFactor    = 2                      // a read that takes so many times as long as the rate says is late
)

// readRate measures how fast a volume reads, while it does.
//
// A sample is the bytes of reads that ended and the time in which any were under way. It is whole when as much ended as was under way at most, so that
// reads which end together, as on a device that shares itself among them, weigh no more than others. The rate is the median of the last samples. The
// sample that is not whole bounds it: the device is no faster than if everything under way ended now. So one that becomes slow or hangs shows at once.
type readRate struct {
	samples [rateSamples]float64 // bytes a second, written in turn
	taken   int
	running uint64        // bytes under way
	since   time.Time     // of the last change
	ended   uint64        // bytes, of the sample that is not whole
	peak    uint64        // most bytes under way in it
	busy    time.Duration // of it, until since
}

// begin counts a read that was submitted. It returns the bytes under way, its own included.
func (r *readRate) begin(now time.Time, bytes uint64) uint64 {
	if r.stale(now) {
		r.ended, r.busy, r.peak = 0, 0, 0
	}
	r.busy, r.since = r.busyAt(now), now
	r.running += bytes
	r.peak = max(r.peak, r.running)
	return r.running
}

// end counts the end of a read. One that failed brought nothing.
func (r *readRate) end(now time.Time, bytes uint64, ok bool) {
	r.busy, r.since = r.busyAt(now), now
	r.running -= bytes
	if ok {
		r.ended += bytes
	}
	if r.ended >= max(r.peak, rateBytesMin) && r.busy > 0 {
		r.samples[r.taken%rateSamples] = float64(r.ended) / r.busy.Seconds()
		r.taken++
		r.ended, r.busy, r.peak = 0, 0, r.running
	}
}

// busyAt is the time of the sample that is not whole.
func (r *readRate) busyAt(now time.Time) time.Duration {
	if r.running == 0 {
		return r.busy
	}
	return r.busy + now.Sub(r.since)
}

// stale says whether the sample that is not whole is too old: a read that was held up once must not speak for the device hours later. Before the first
// whole sample it is all that is known.
func (r *readRate) stale(now time.Time) bool {
	return r.running == 0 && r.taken > 0 && now.Sub(r.since) >= rateIdle
}

// usual is the median of the last samples in bytes a second, zero when there is none.
func (r *readRate) usual() float64 {
	if r.taken == 0 {
		return 0
	}
	sorted := slices.Clone(r.samples[:min(r.taken, rateSamples)])
	slices.Sort(sorted)
	return sorted[(len(sorted)-1)/2]
}

// at is what may be expected in bytes a second, zero when nothing is known.
func (r *readRate) at(now time.Time) float64 {
	busy, usual, most := r.busyAt(now), r.usual(), math.Inf(1)
	if busy > 0 && !r.stale(now) {
		most = float64(r.ended+r.running) / busy.Seconds()
	}
	switch {
	case usual > 0:
		return min(usual, most)
	case busy > 0 && r.ended > 0: // what is under way is half done, as far as anybody knows
		return (float64(r.ended) + float64(r.running)/2) / busy.Seconds()
	case busy >= rateColdAfter:
		return most
	}
	return 0
}

// Awaited is the pages that a query waits for.
type Awaited struct {
	Namespace   uint32
	Group       uint16
	Reading     []*Key // some of those that Read was given
	Unread      []*Key // some of those that it will be given
	UnreadPages uint64 // all of these
	BeforeBytes uint64 // of other pages that it will be given until then
}

// Expected is how long it takes until the pages of a query are in memory, zero when nothing is known. It counts what is queued and under way at their
// volumes, and what others queued behind them, too: no more than the bound of the queue.
func (s *Store) Expected(a Awaited) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[a.Namespace]
	reading, unread := s.spread(ns, a.Group, a.Reading), s.spread(ns, a.Group, a.Unread)
	for _, v := range s.volumes {
		if reading[v]+unread[v] == 0 {
			continue
		}
		own := 0.0
		if unread[v] > 0 {
			own = float64(a.UnreadPages*ns.pageBytes+a.BeforeBytes) * float64(unread[v]) / float64(len(a.Unread))
		}
		longest = max(longest, v.expected(s.config.Now(), own))
	}
	return longest
}

// spread counts on which volume pages lie.
func (s *Store) spread(ns *namespace, group uint16, keys []*Key) map[*volume]int {
	pages := map[*volume]int{}
	for _, key := range keys {
		if v, _, found := s.find(ns, group, key); found {
			pages[v]++
		}
	}
	return pages
}

// expected is how long the volume takes for what it has to read and for bytes more.
func (v *volume) expected(now time.Time, bytes float64) time.Duration {
	for i := range v.reads[Demand].len() {
		bytes += float64(v.reads[Demand].at(i).bytes)
	}
	rate := v.rate.at(now)
	if rate == 0 {
		return 0
	}
	expected := secondsOf((bytes + float64(v.rate.running)) / rate)
	if usual := v.rate.usual(); usual > 0 && len(v.running) > 0 {
		oldest := v.running[0]
		if age := now.Sub(oldest.begun); age > lateFactor*secondsOf(float64(oldest.among)/usual) {
			expected = max(expected, age) // others end, and this one does not
		}
	}
	return expected
}

func secondsOf(seconds float64) time.Duration {
	return time.Duration(min(seconds, math.MaxInt64/4/float64(time.Second)) * float64(time.Second))
}
