package micro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the options.
const (
	roundsMax  = 1000
	rowTimeMax = 10 * time.Minute
	callsMax   = 1 << 20 // of one client in one figure: bounds the memory that its samples take
)

// Options are what the three measurements have in common.
type Options struct {
	Rounds   int            // times that all sections run
	RowTime  time.Duration  // of each figure, in each round
	Only     *regexp.Regexp // the sections to run; nil runs all
	JSONPath string         // file to append one JSON line a figure and round to; empty writes none
	Progress io.Writer      // a line for each section that begins
}

// check says what of the options cannot be measured.
func (o Options) check(sections []section) error {
	if o.Rounds < 1 || o.Rounds > roundsMax {
		return fmt.Errorf("--rounds is %d: give 1 to %d", o.Rounds, roundsMax)
	}
	if o.RowTime <= 0 || o.RowTime > rowTimeMax {
		return fmt.Errorf("--time is %v: give more than 0 and at most %v", o.RowTime, rowTimeMax)
	}
	var names []string
	for _, s := range sections {
		if o.wants(s) {
			return nil
		}
		if !slices.Contains(names, s.name) {
			names = append(names, s.name)
		}
	}
	return fmt.Errorf("--only %q fits no section: they are %s", o.Only, strings.Join(names, ", "))
}

func (o Options) wants(s section) bool { return o.Only == nil || o.Only.MatchString(s.name) }

// section is one group of figures that share a Manager, a filled cache or a mapping. Sections of one name belong together: the ceiling of a
// figure is a section of the figure's name.
type section struct {
	name string
	run  func(context.Context, *report) error
}

// run measures all wanted sections in every round and writes what came out. The error names the section, or says that ctx ended.
func run(ctx context.Context, o Options, r *report, sections []section, out io.Writer) error {
	lines, err := openLines(o.JSONPath)
	if err != nil {
		return err
	}
	if err := measure(ctx, o, r, sections); err != nil {
		return errors.Join(err, lines.discard())
	}
	return errors.Join(r.print(out), lines.keep(r.figures))
}

func measure(ctx context.Context, o Options, r *report, sections []section) error {
	for round := range o.Rounds {
		order := slices.Clone(sections)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		r.round = round + 1
		for _, s := range order {
			if !o.wants(s) {
				continue
			}
			if r.name != s.name {
				fmt.Fprintf(o.Progress, "%s: round %d of %d: %s\n", r.bench, r.round, o.Rounds, s.name)
			}
			r.name = s.name
			err := s.run(ctx, r)
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted in %s, round %d of %d: no figure is kept", s.name, r.round, o.Rounds)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// load is what together runs.
type load struct {
	clients int           // goroutines
	warmUp  int           // calls of each client that are not counted
	time    time.Duration // of the counted calls
	once    func(ctx context.Context, client int) (time.Duration, error)
}

// measured is what came of a load.
type measured struct {
	samples []time.Duration // of every counted call, in no order
	calls   float64         // a second, all clients together
}

// window is the time in which calls count. It begins when the last client is warm and ends when the last one has enough; until then all go
// on, so that none is measured beside clients that rest.
type window struct {
	origin    time.Time
	warming   atomic.Int64 // clients
	lacking   atomic.Int64 // clients
	begin     atomic.Int64 // nanoseconds after origin; zero while a client warms up
	end       atomic.Int64 // the same; zero while a client lacks calls
	completed atomic.Int64 // calls between the two
}

func newWindow(clients int) *window {
	w := &window{origin: time.Now()}
	w.warming.Store(int64(clients))
	w.lacking.Store(int64(clients))
	return w
}

func (w *window) now() int64 { return max(1, int64(time.Since(w.origin))) }

// together runs one goroutine a client until the time is over and each has made a call that counts, and joins what they measured. once makes
// one call and returns the time that is its sample. A client keeps callsMax samples at most.
func together(ctx context.Context, l load) (measured, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := newWindow(l.clients)
	samples, failures := make([][]time.Duration, l.clients), make([]error, l.clients)
	var wg sync.WaitGroup
	for i := range l.clients {
		wg.Go(func() {
			if samples[i], failures[i] = w.client(ctx, l, i); failures[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var all measured
	for _, s := range samples {
		all.samples = append(all.samples, s...)
	}
	all.calls = float64(w.completed.Load()) / time.Duration(max(1, w.end.Load()-w.begin.Load())).Seconds()
	return all, firstCause(failures)
}

// client makes calls until every client has enough.
func (w *window) client(ctx context.Context, l load, i int) (samples []time.Duration, err error) {
	enough := false
	for n := 0; w.end.Load() == 0; n++ {
		if n == l.warmUp && w.warming.Add(-1) == 0 {
			w.begin.Store(w.now())
		}
		begin := w.begin.Load()
		took, err := l.once(ctx, i)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		if w.begin.Load() == 0 || w.end.Load() != 0 {
			continue
		}
		w.completed.Add(1)
		if begin > 0 && len(samples) < callsMax {
			samples = append(samples, took)
		}
		if now := w.now(); !enough && len(samples) > 0 && now-begin >= int64(l.time) {
			if enough = true; w.lacking.Add(-1) == 0 {
				w.end.Store(now)
			}
		}
	}
	return samples, nil
}

// firstCause returns the failure of the client that failed by itself, rather than that of one that was stopped because of it.
func firstCause(failures []error) error {
	var stopped error
	for _, err := range failures {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		stopped = errors.Join(stopped, err)
	}
	return stopped
}

// threadCounts returns 1, 2, 4 and so on up to as many threads as run at a time, that number included, none above most.
func threadCounts(most int) []int {
	last := max(1, min(runtime.GOMAXPROCS(0), most))
	var counts []int
	for n := 1; n < last; n *= 2 {
		counts = append(counts, n)
	}
	return append(counts, last)
}
