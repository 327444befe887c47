package single

import (
	"context"
	"fmt"
	"sync"
	"time"

	"orbitkv/bench/record"
)

// failuresMax bounds the requests of a window that fail before admission ends: an engine that refuses at once would be asked without end.
const failuresMax = 16

// sustained stores a working set and measures a closed loop over it: a new request whenever one of the concurrency ended, until the window closes.
func (s *stage) sustained(ctx context.Context, place record.Place) error {
	set, err := s.prepare(ctx, place)
	if err != nil {
		return err
	}
	w, err := s.open(ctx, place, record.Sustained)
	if err != nil {
		return err
	}
	if err := s.client.Warm(ctx, place.Concurrency); err != nil {
		w.abandon()
		return s.must(ctx, err)
	}
	outcomes := s.loop(ctx, w, place, set)
	_, err = w.close(ctx, outcomes)
	return err
}

// prepare asks for every prompt of the working set once and keeps the answers to compare with.
func (s *stage) prepare(ctx context.Context, place record.Place) ([]query, error) {
	set := make([]query, s.ask.WorkingSet)
	for i := range set {
		at := place
		at.Length = s.ask.Lengths[i%len(s.ask.Lengths)]
		set[i] = query{place: at, phase: record.Prepare, prompt: i, tokens: s.prompts.draw(at.Length, s.sustainedName(place.Concurrency, i)), output: s.ask.OutputTokens}
		row, err := s.serial(ctx, set[i])
		if err != nil {
			return nil, err
		}
		set[i].phase, set[i].measured, set[i].want = record.Sustained, true, text(row)
	}
	return set, nil
}

// sustainedName names a prompt: those of the working set come first, the new ones after them.
func (s *stage) sustainedName(concurrency, prompt int) string {
	if prompt < s.ask.WorkingSet {
		return fmt.Sprintf("sustained/%d/set/%d", concurrency, prompt)
	}
	return fmt.Sprintf("sustained/%d/new/%d", concurrency, prompt-s.ask.WorkingSet)
}

// choose returns request i: one of the working set again, or a new prompt. It depends on the seed, the concurrency and i alone, so that what is asked
// does not depend on how fast a backend answers.
func (s *stage) choose(place record.Place, set []query, i int) query {
	random := s.prompts.source(fmt.Sprintf("sustained/%d/choice/%d", place.Concurrency, i))
	if random.Float64() < s.ask.ReuseRatio {
		return set[random.IntN(len(set))]
	}
	at := place
	at.Length = s.ask.Lengths[random.IntN(len(s.ask.Lengths))]
	return query{
		place: at, phase: record.Sustained, measured: true, prompt: len(set) + i, output: s.ask.OutputTokens,
		tokens: s.prompts.draw(at.Length, s.sustainedName(place.Concurrency, len(set)+i)),
	}
}

// closedLoop admits a new request whenever one ended.
type closedLoop struct {
	*window
	set    []query
	closes time.Time

	mu       sync.Mutex
	outcomes []outcome
	failed   int
}

// loop admits requests until the window closes, the cap is reached or too many fail, and waits for those that were admitted.
func (s *stage) loop(ctx context.Context, w *window, place record.Place, set []query) []outcome {
	w.begin()
	l := &closedLoop{window: w, set: set, closes: w.started.Add(time.Duration(s.ask.DurationSeconds) * time.Second)}
	var all sync.WaitGroup
	for range place.Concurrency {
		all.Go(func() {
			for {
				slot, o, ok := l.admit(ctx)
				if !ok {
					return
				}
				o.answer, o.failure = s.client.Complete(ctx, o.request)
				l.ended(slot, o)
			}
		})
	}
	all.Wait()
	return l.outcomes
}

// admit returns the next request and its place among the outcomes, or that admission has ended.
func (l *closedLoop) admit(ctx context.Context) (slot int, o outcome, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.row.Stop != "":
	case ctx.Err() != nil || l.failed > failuresMax:
		l.row.Stop = stopFailure
	case !l.host.Now().Before(l.closes):
		l.row.Stop = stopWindow
	case len(l.outcomes) >= l.ask.MaxRequests:
		l.row.Stop = stopCount
	default:
		slot = len(l.outcomes)
		q := l.choose(l.row.Place, l.set, slot)
		o = outcome{query: q, request: l.request(&q)}
		l.outcomes = append(l.outcomes, o)
		l.admitted()
		return slot, o, true
	}
	return 0, outcome{}, false
}

// ended keeps what came of an admitted request.
func (l *closedLoop) ended(slot int, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[slot] = o
	if o.failure != nil {
		l.failed++
	}
	l.progress.admitted(len(l.outcomes), l.host.Now().Sub(l.started))
}
