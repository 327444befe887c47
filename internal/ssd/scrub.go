package ssd

import (
	"context"
	"time"
)

const (
	scrubPause = time.Minute // between two passes over a volume
	scrubBurst = time.Second // how far behind its rate a pace may catch up
)

// scrub reads the volume's pages over and over, slowly, so that what rots is found before it is asked for.
func (v *volume) scrub() {
	s := v.store
	inspect := newInspector(v, s.config.ScrubBytesPerSecond)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-s.running.Done():
			return
		case <-pause.C:
		}
		err := inspect.pass(s.running, func(bytes uint64, p *Problem) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.counters.scrubPages++
			s.counters.scrubBytes += bytes
			if p != nil {
				s.counters.scrubFailures[p.Reason]++
				s.counters.damaged[FoundByScrub]++
			}
		})
		if err != nil {
			return // the store closes
		}
		s.mu.Lock()
		s.counters.scrubPasses++
		s.mu.Unlock()
		pause.Reset(scrubPause)
	}
}

// pace keeps to a rate by waiting before each piece of work.
type pace struct {
	rate uint64    // bytes a second; zero never waits
	free time.Time // when the next piece may begin
}

// wait returns when so many bytes may be moved, or with the error of ctx.
func (p *pace) wait(ctx context.Context, bytes uint64) error {
	if p.rate == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if oldest := now.Add(-scrubBurst); p.free.Before(oldest) {
		p.free = oldest
	}
	if ahead := p.free.Sub(now); ahead > 0 {
		timer := time.NewTimer(ahead)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	p.free = p.free.Add(time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second)))
	return ctx.Err()
}
