package single

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"orbitkv/bench/record"
)

// What a part keeps of its time for the end of its last backend. A backend in good health needs a few seconds of it; one that does not drain or end in it is
// cut short, so that the part still ends in time: to keep as much as such a one could take would cost every part two minutes of measuring.
const (
	stopReserve   = 20 * time.Second // in all
	endReserve    = 12 * time.Second // of those, which the drain check leaves for the end of the processes and the report
	reportReserve = 4 * time.Second  // of those, for the report
	endLeast      = time.Second      // for each of the two where a part is late already
)

// noPart is the time that is left of a run without parts: more than anything takes.
const noPart = 24 * time.Hour

// errPart ends a part: what is missing would not fit into its time.
var errPart = errors.New("the time of this part is used up")

// run is one attempt.
type run struct {
	ask      Ask
	host     Host
	dir      *record.Dir
	model    record.Model
	prompts  prompts
	progress *progress
	begun    time.Time
	alone    map[partialKey]*string // answers of the engine without an external cache to the prompts of the partial workload
	refused  map[string]bool        // turns whose backend did not start in an earlier attempt, by the turn's name
	stranded map[string]bool        // turns whose backend could not start in this attempt, though it had the time, by the turn's name
	troubles []string               // what keeps the attempt from being complete, by its name
	told     map[string]bool        // reasons of troubles that were told
	lacking  int                    // measured requests of finished cells, those of earlier attempts too, that failed and have no latency

	starts       int // of backends with missing cells, that are still to come
	longestStart time.Duration
	longestCell  time.Duration
}

// trouble keeps the name of what keeps the attempt from being complete, and tells it with its reason, each reason once.
func (r *run) trouble(name, reason string) {
	r.troubles = append(r.troubles, name)
	if r.told[reason] {
		reason = "the same as said above"
	}
	r.told[reason] = true
	r.progress.line("failed: " + name + ": " + reason)
}

// inside returns a path of the output directory relative to it.
func (r *run) inside(path string) string {
	if relative, err := filepath.Rel(r.dir.Path(), path); err == nil && path != "" && !strings.HasPrefix(relative, "..") {
		return relative
	}
	return path
}

// all measures every turn that has missing cells, then attributes the outputs that differ. The error is errPart, the end of the context, or that the
// output directory could not be written.
func (r *run) all(ctx context.Context) error {
	turns := lastly(plan(&r.ask), r.refused)
	total, missing := 0, 0
	for i := range turns {
		lacks := len(turns[i].missing(r.dir.Done()))
		total += len(turns[i].cells)
		missing += lacks
		r.starts += min(lacks, 1)
	}
	r.progress.plan(total, missing)
	for i := range turns {
		cells := turns[i].missing(r.dir.Done())
		if len(cells) == 0 {
			continue
		}
		r.starts--
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !r.fits(r.longestStart + r.longestCell) {
			return errPart
		}
		if err := r.measure(ctx, &turns[i], cells); err != nil {
			return err
		}
	}
	return r.attribute(ctx)
}

// fits says whether something that takes so long ends before the part does.
func (r *run) fits(takes time.Duration) bool {
	return r.ask.PartSeconds == 0 || takes < r.remaining()
}

// left is what is left of the part's time.
func (r *run) left() time.Duration {
	if r.ask.PartSeconds == 0 {
		return noPart
	}
	return time.Duration(r.ask.PartSeconds)*time.Second - r.host.Now().Sub(r.begun)
}

// remaining is what is left of the part's time for measuring.
func (r *run) remaining() time.Duration { return r.left() - stopReserve }

// drainTime is how long the drain check may take.
func (r *run) drainTime() time.Duration { return min(drainLimit, max(endLeast, r.left()-endReserve)) }

// stopTime is how long the end of a backend's processes may take.
func (r *run) stopTime() time.Duration { return max(endLeast, r.left()-reportReserve) }

// inPart returns a context that ends with the part's time: a start or a cell that takes longer than any before it is broken off rather than run into
// whatever ends the part by force.
func (r *run) inPart(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.ask.PartSeconds == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.remaining(), errPart)
}

// measure starts the backend of a turn, measures its missing cells and ends it. A backend that breaks is kept as a failure, and is no error here.
func (r *run) measure(ctx context.Context, t *turn, cells []record.Place) error {
	s, inner, stop, err := r.start(ctx, t.backend, t.pass, false)
	if err != nil {
		return r.failed(ctx, r.turnPlace(t), err)
	}
	at := r.turnPlace(t)
	err = s.prelude(inner, cells)
	for _, cell := range cells {
		if err != nil {
			break
		}
		at = cell
		at.Attempt = r.dir.Attempt()
		err = s.cell(inner, at)
	}
	if err != nil {
		err = r.failed(ctx, at, err)
	}
	err = errors.Join(err, s.drain(ctx, inner), r.ended(r.turnPlace(t), stop()))
	return errors.Join(err, s.timeline())
}

// turnPlace says of a row that it is about a whole turn.
func (r *run) turnPlace(t *turn) record.Place {
	return record.Place{
		Cell: t.name(), Attempt: r.dir.Attempt(), Backend: t.backend, Pass: t.pass, Workload: r.ask.Workload, Prefix: -1,
	}
}

// failed keeps a backend that broke; other errors end the run.
func (r *run) failed(ctx context.Context, at record.Place, err error) error {
	var b *broken
	switch {
	case errors.As(err, &b):
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return err
	}
	if b.stage == record.AtStart && context.Cause(ctx) == nil {
		r.stranded[turnName(at.Backend, at.Pass)] = true
	}
	r.trouble(fmt.Sprintf("%s, pass %d: %s (%s)", at.Backend, at.Pass, b.part, b.stage), b.reason)
	return r.dir.Failure(record.Failure{Place: at, Stage: b.stage, Part: b.part, Reason: b.reason, Log: b.log, At: r.host.Now().UTC()})
}

// ended keeps that a stack did not end as it should.
func (r *run) ended(at record.Place, err error) error {
	if err == nil {
		return nil
	}
	r.trouble(fmt.Sprintf("%s, pass %d: ending it", at.Backend, at.Pass), err.Error())
	return r.dir.Failure(record.Failure{Place: at, Stage: record.AtEnd, Part: record.PartEngine, Reason: err.Error(), At: r.host.Now().UTC()})
}

// prelude sends what comes before the first cell of a start and is not measured.
func (s *stage) prelude(ctx context.Context, cells []record.Place) error {
	s.progress.step(fmt.Sprintf("warming up %s, pass %d", s.backend, s.pass))
	if err := s.warmUp(ctx); err != nil {
		return err
	}
	widest := 0
	for _, cell := range cells {
		widest = max(widest, cell.Concurrency)
	}
	if widest == 1 {
		return nil
	}
	place := s.place(0, "burst")
	place.Concurrency = widest
	queries := make([]query, widest)
	for i := range queries {
		length := s.ask.Lengths[i%len(s.ask.Lengths)]
		queries[i] = query{place: place, phase: record.WarmUp, prompt: i, tokens: s.prompts.draw(length, fmt.Sprintf("warm/burst/%d", i)), output: s.ask.OutputTokens}
	}
	_, err := s.burst(ctx, place, queries)
	return err
}

// cell measures one cell and finishes it.
func (s *stage) cell(ctx context.Context, place record.Place) error {
	if !s.fits(s.longestCell) {
		return errPart
	}
	begun := s.host.Now()
	s.failing = 0
	s.progress.cell(place)
	if err := s.rehearseOnce(ctx, place); err != nil {
		return err
	}
	work := map[string]func(context.Context, record.Place) error{
		record.WorkloadLatency: s.latency, record.WorkloadPartial: s.partial, record.WorkloadConcurrent: s.concurrent, record.WorkloadSustained: s.sustained,
	}[s.ask.Workload]
	if err := work(ctx, place); err != nil {
		return err
	}
	if err := s.dir.Finish(record.Finished{Place: place, Ended: s.host.Now().UTC()}); err != nil {
		return err
	}
	s.lacking += s.failing
	took := s.host.Now().Sub(begun)
	s.longestCell = max(s.longestCell, took)
	s.progress.finished(took)
	return nil
}

// rehearseOnce sends one unmeasured round of a length before this start's first cell of it, for the workloads that measure one request at a time.
func (s *stage) rehearseOnce(ctx context.Context, place record.Place) error {
	if place.Length == 0 || s.rehearsed[place.Length] {
		return nil
	}
	s.rehearsed[place.Length] = true
	return s.rehearse(ctx, place.Length)
}
