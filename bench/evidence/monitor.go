package evidence

import (
	"context"
	"time"
)

// MonitorEvery is how often a Monitor looks.
const MonitorEvery = 25 * time.Millisecond

// Monitor keeps the largest value of each of the Manager's gauges. It leaves the engine alone: an engine answers a page of metrics on the thread
// that streams answers, so that looks at this rate would be part of what is measured. Use Watch.
type Monitor struct {
	end     context.CancelFunc
	done    chan struct{}
	peaks   map[string]float64
	samples int
}

// Watch looks at the Manager every so often until Stop; where there is none it looks at nothing.
func (s *Scraper) Watch(ctx context.Context, every time.Duration) *Monitor {
	ctx, end := context.WithCancel(ctx)
	m := &Monitor{end: end, done: make(chan struct{}), peaks: map[string]float64{}}
	go m.run(ctx, s, every)
	return m
}

func (m *Monitor) run(ctx context.Context, s *Scraper, every time.Duration) {
	defer close(m.done)
	if s.manager == nil {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		m.look(ctx, s)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look takes one sample. One that fails is none: the number of samples tells.
func (m *Monitor) look(ctx context.Context, s *Scraper) {
	values := map[string]float64{}
	if s.read(ctx, *s.manager, values) != nil {
		return
	}
	m.samples++
	for _, w := range managerWatched {
		if w.kind == counter {
			continue
		}
		if value, known := values[w.key()]; known {
			m.peaks[w.key()] = max(m.peaks[w.key()], value)
		}
	}
}

// Stop ends the sampling and returns the peaks, which are lower bounds, and the number of looks behind them.
func (m *Monitor) Stop() (peaks map[string]float64, samples int) {
	m.end()
	<-m.done
	return m.peaks, m.samples
}
