package single

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"orbitkv/bench/evidence"
	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// The reasons why admission into a window ended.
const (
	stopBurst   = "burst"
	stopWindow  = "window"
	stopCount   = "max_requests"
	stopFailure = "failure"
)

// concurrent measures bursts of one pattern: new prompts, and the same ones again.
func (s *stage) concurrent(ctx context.Context, place record.Place) error {
	for repeat := range s.ask.Repeats {
		for _, shape := range s.shapes(place.Variant) {
			queries := make([]query, place.Concurrency)
			for i := range queries {
				at := place
				at.Length = shape(i)
				queries[i] = query{place: at, measured: true, prompt: repeat*place.Concurrency + i, output: s.ask.OutputTokens}
				queries[i].tokens = s.prompts.draw(at.Length, concurrentName(at, queries[i].prompt))
			}
			if err := s.everyState(ctx, place, concurrentName(queries[0].place, queries[0].prompt), queries); err != nil {
				return err
			}
		}
	}
	return nil
}

// concurrentName names the prompt of a request: with the pattern shared all requests of a burst have the same one.
func concurrentName(at record.Place, prompt int) string {
	if at.Variant == record.Shared {
		prompt -= prompt % at.Concurrency
	}
	return fmt.Sprintf("concurrent/%s/%d/%d/%d", at.Variant, at.Concurrency, at.Length, prompt)
}

// shapes returns the bursts of a pattern, each as the length of every request in it: shared has one burst for each length.
func (s *stage) shapes(pattern string) []func(request int) int {
	if pattern == record.Mixed {
		return []func(int) int{func(i int) int { return s.ask.Lengths[i%len(s.ask.Lengths)] }}
	}
	var all []func(int) int
	for _, length := range s.ask.Lengths {
		all = append(all, func(int) int { return length })
	}
	return all
}

// everyState sends a burst of new prompts, pressure, and the burst again; where there is an SSD tier, once more after host memory was emptied.
func (s *stage) everyState(ctx context.Context, place record.Place, name string, queries []query) error {
	for i := range queries {
		queries[i].phase = record.Cold
	}
	cold, err := s.burst(ctx, place, queries)
	if err != nil {
		return err
	}
	if err := s.pressure(ctx, place, name); err != nil {
		return err
	}
	again := func(phase record.Phase) error {
		for i := range queries {
			queries[i].phase, queries[i].want = phase, text(cold[i])
		}
		_, err := s.burst(ctx, place, queries)
		return err
	}
	if err := again(record.AfterPressure); err != nil || !s.ask.Evicts(s.backend) {
		return err
	}
	if err := s.evict(ctx, place, name); err != nil {
		return err
	}
	return again(record.AfterHostEviction)
}

// outcome is what came of one request of a burst or window.
type outcome struct {
	query   query
	request load.Request
	answer  load.Answer
	failure error
}

// burst starts all requests at once and keeps their rows and their window. The counters cover all of them.
func (s *stage) burst(ctx context.Context, place record.Place, queries []query) ([]record.Sample, error) {
	w, err := s.open(ctx, place, queries[0].phase)
	if err != nil {
		return nil, err
	}
	if err := s.client.Warm(ctx, len(queries)); err != nil {
		w.abandon()
		return nil, s.must(ctx, err)
	}
	outcomes := make([]outcome, len(queries))
	var ready, all sync.WaitGroup
	barrier := make(chan struct{})
	for i := range queries {
		request := s.request(&queries[i])
		ready.Add(1)
		all.Go(func() {
			ready.Done()
			<-barrier
			answer, failure := s.client.Complete(ctx, request)
			outcomes[i] = outcome{queries[i], request, answer, failure}
		})
	}
	ready.Wait()
	w.begin()
	w.row.Stop = stopBurst
	close(barrier)
	all.Wait()
	return w.close(ctx, outcomes)
}

// must ends the turn for a failure that leaves nothing to measure.
func (s *stage) must(ctx context.Context, failure error) error {
	if err := s.alive(ctx, failure); err != nil {
		return err
	}
	return &broken{record.AtServe, record.PartClient, failure.Error(), ""}
}

// window is a span of requests that is being measured.
type window struct {
	*stage
	row       record.Window
	before    *evidence.Snapshot
	whyBefore string // the counters did not come to rest before it
	peaks     func() (map[string]float64, int)
	started   time.Time
	last      time.Time // of the latest admission
}

// open looks at the settled counters and begins to watch them.
func (s *stage) open(ctx context.Context, place record.Place, phase record.Phase) (*window, error) {
	why, err := s.atRest(ctx)
	if err != nil {
		return nil, err
	}
	w := &window{stage: s, row: record.Window{Place: place, Phase: phase}, whyBefore: why}
	if s.settled != nil {
		w.before, w.row.Before = s.settled, s.settled.Values
	}
	w.peaks = s.counters.Watch(ctx, evidence.MonitorEvery)
	return w, nil
}

// abandon ends the watch of a window that keeps no row.
func (w *window) abandon() { w.peaks() }

// begin is the moment from which throughput counts.
func (w *window) begin() {
	w.started = w.host.Now()
	w.row.Started, w.last = w.started, w.started
}

// admitted notes a request that was let in.
func (w *window) admitted() { w.last = w.host.Now() }

// close waits for the counters, says where each prompt came from and keeps every row. The returned error ends the turn.
func (w *window) close(ctx context.Context, outcomes []outcome) ([]record.Sample, error) {
	end := w.host.Now()
	w.row.AdmitSeconds, w.row.DrainSeconds, w.row.WallSeconds = w.last.Sub(w.started).Seconds(), end.Sub(w.last).Seconds(), end.Sub(w.started).Seconds()
	w.row.Peak, w.row.PeakSamples = w.peaks()
	if after, err := w.counters.Read(ctx); err == nil {
		w.row.After = after.Values
		if w.before != nil {
			w.row.Tiers = evidence.TiersOf(*w.before, after)
		}
	}
	ended := error(nil)
	for i := range outcomes {
		if outcomes[i].failure != nil {
			w.row.Failed++
		}
	}
	if w.row.Failed > 0 {
		first := slices.IndexFunc(outcomes, func(o outcome) bool { return o.failure != nil })
		ended = w.alive(ctx, outcomes[first].failure)
	}
	why := ""
	if ended == nil {
		why, ended = w.settle(ctx)
	}
	verdicts := w.verdicts(outcomes, ended, restless(w.whyBefore, why))
	w.row.Requests = len(outcomes)
	rows := make([]record.Sample, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		rows[i] = o.query.sample(o.request.ID, o.answer, o.failure)
		rows[i].Evidence = verdicts[i]
		if err := w.keep(rows[i]); err != nil {
			return rows, err
		}
	}
	if err := w.dir.Window(w.row); err != nil {
		return rows, err
	}
	w.progress.window(&w.row, rows)
	return rows, ended
}

// verdicts gives the evidence of each outcome. One request that broke off makes the counters cover what no answer tells, so all are unverified then.
func (w *window) verdicts(outcomes []outcome, ended error, restlessWhy string) []record.Evidence {
	why := ""
	answers := make([]load.Answer, len(outcomes))
	for i := range outcomes {
		answers[i] = outcomes[i].answer
		if outcomes[i].failure != nil {
			why = "a request of the burst broke off, and the counters cover it, too"
		}
	}
	switch {
	case ended != nil:
		why = "the backend ended before the counters came to rest"
	case restlessWhy != "":
		why = restlessWhy
	}
	if why == "" {
		return evidence.ClassifyBurst(w.between(w.row.Phase, *w.before, *w.settled, load.Answer{}), answers)
	}
	all := make([]record.Evidence, len(outcomes))
	for i := range all {
		all[i] = unverified(answers[i], why)
		all[i].Shared = true
	}
	return all
}
