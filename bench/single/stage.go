package single

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"orbitkv/bench/evidence"
	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

// Bounds of one backend.
const (
	unsettledMax = 3                                        // requests in a row whose counters never came to rest, before the backend is given up
	deathWait    = 5 * time.Second                          // for the news of a process's end, after an engine stopped answering
	drainLimit   = evidence.DrainLimit + evidence.ReadLimit // with a look that began at its end
)

// broken ends a turn: the backend cannot be measured any further.
type broken struct {
	stage  string // start, serve or end
	part   string
	reason string
	log    string // in the output directory
}

// Error implements error.
func (b *broken) Error() string { return fmt.Sprintf("%s (%s): %s", b.part, b.stage, b.reason) }

// stage is one engine that runs, and what the cells of a turn share.
type stage struct {
	*run
	name     string // of its cells: the backend, or that it is a control
	backend  string
	pass     int
	stack    Stack
	client   Completer
	counters Counters
	logs     func(part string) string

	settled   *evidence.Snapshot // the counters after the latest request; nil before the first and when they did not settle
	unsettled int                // requests in a row after which they did not
	rehearsed map[int]bool       // lengths of which a round was sent
	sequence  int                // of requests
	failing   int                // measured requests of this cell that failed
}

// start starts a backend. The context that it returns ends when a process of the stack does; stop ends the stack and must be called.
func (r *run) start(ctx context.Context, backend string, pass int, control bool) (*stage, context.Context, func() error, error) {
	name := backend
	if control {
		name = record.ControlCells
	}
	logs := func(part string) string {
		return r.dir.Path("logs", fmt.Sprintf("%s-p%d-a%d-%s.log", name, pass, r.dir.Attempt(), part))
	}
	begun := r.host.Now()
	r.progress.step(fmt.Sprintf("starting %s, pass %d", name, pass))
	var notes noted
	tier, err := r.tierFolder(backend, pass, control)
	if err != nil {
		return nil, nil, nil, err
	}
	stack, err := r.host.Start(ctx, launch.Spec{
		Options: r.ask.Options, Backend: backend, Pass: pass, Attempt: r.dir.Attempt(), Control: control, Manager: r.host.Program,
		MaxModelLen: r.ask.longest(), MaxSeqs: r.ask.seqs(), LogPath: logs, SSDFolder: tier, Model: r.model,
	}, func(l record.Launch) { notes.add(r.note(l)) })
	if err == nil {
		if err = notes.err(); err == nil && tier != "" {
			err = r.proveTier(stack, logs(record.PartManager))
		}
		if err != nil {
			err = errors.Join(err, stack.StopWithin(r.stopTime()))
		}
	}
	if err != nil {
		return nil, nil, nil, errors.Join(r.startFailure(ctx, err, logs(record.PartEngine)), r.tidyTiers())
	}
	r.longestStart = max(r.longestStart, r.host.Now().Sub(begun))
	r.progress.ahead(r.starts, r.longestStart)
	inner, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case reason := <-stack.Died():
			cancel(&broken{record.AtServe, record.PartEngine, reason, r.inside(logs(record.PartEngine))})
		case <-inner.Done():
		}
	}()
	s := &stage{
		run: r, name: name, backend: backend, pass: pass, stack: stack, logs: logs, rehearsed: map[int]bool{},
		client: r.host.Client(r.ask.Engine, stack.Engine(), r.ask.Model), counters: r.host.Counters(r.ask.Engine, stack),
	}
	stop := func() error {
		cancel(nil)
		s.client.Close()
		return errors.Join(stack.StopWithin(r.stopTime()), r.tidyTiers())
	}
	return s, inner, stop, nil
}

// startFailure tells a backend that cannot start from a run that is at its end. One that took a whole part and was not ready is a failure, too:
// every further part would wait for it in vain.
func (r *run) startFailure(ctx context.Context, err error, log string) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, errPart) && r.longestStart == 0 {
			return &broken{record.AtStart, record.PartEngine, fmt.Sprintf("it was not ready when this part of %d s was used up: give parts more time", r.ask.PartSeconds), r.inside(log)}
		}
		return cause
	}
	var failed *launch.StartError
	if errors.As(err, &failed) {
		return &broken{record.AtStart, failed.Part, failed.Reason, r.inside(failed.Log)}
	}
	return &broken{record.AtStart, record.PartEngine, err.Error(), ""}
}

// noted collects what failed while launches were noted; the watch of each process notes its end.
type noted struct {
	mu     sync.Mutex
	failed error
}

func (n *noted) add(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = errors.Join(n.failed, err)
}

func (n *noted) err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.failed
}

// note keeps a launch, or what became of one.
func (r *run) note(l record.Launch) error {
	return r.dir.Update(func(m *record.Manifest) {
		for i := range m.Launches {
			if kept := &m.Launches[i]; kept.Part == l.Part && kept.Started.Equal(l.Started) {
				*kept = l
				return
			}
		}
		m.Launches = append(m.Launches, l)
	})
}

// place returns a cell of this stage that is never finished: what is sent in it is not measured.
func (s *stage) place(length int, name string, args ...any) record.Place {
	return record.Place{
		Cell: fmt.Sprintf("%s/p%d/warm/", s.name, s.pass) + fmt.Sprintf(name, args...), Attempt: s.dir.Attempt(), Backend: s.backend, Pass: s.pass,
		Workload: s.ask.Workload, Concurrency: 1, Length: length, Prefix: -1,
	}
}

// settle waits for the counters to come to rest and keeps them. It returns why they did not, which is no error of the run; the error is the end of
// the turn.
func (s *stage) settle(ctx context.Context) (why string, err error) {
	snapshot, err := s.counters.Settle(ctx, time.Duration(s.ask.SettleSeconds*float64(time.Second)))
	if err == nil {
		s.settled, s.unsettled = &snapshot, 0
		return "", nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	s.settled = nil
	s.unsettled++
	if s.unsettled >= unsettledMax {
		return "", &broken{record.AtServe, record.PartEngine, fmt.Sprintf("the counters did not come to rest after %d requests in a row: %v", unsettledMax, err), ""}
	}
	return err.Error(), nil
}

// atRest returns once the counters are at rest: at once where they were after the request before. why is as settle's.
func (s *stage) atRest(ctx context.Context) (why string, err error) {
	if s.settled != nil {
		return "", nil
	}
	return s.settle(ctx)
}

// restless says in one text why the counters did not come to rest before or after what was measured; empty where they did both.
func restless(before, after string) string {
	whys := slices.DeleteFunc([]string{before, after}, func(why string) bool { return why == "" })
	if len(whys) == 0 {
		return ""
	}
	return "the counters did not come to rest: " + strings.Join(whys, "; ")
}

// warmUp sends what no cell measures: first kernels, first pages, first connections.
func (s *stage) warmUp(ctx context.Context) error {
	length := warmUpTokens
	for _, l := range s.ask.Lengths {
		length = min(length, l)
	}
	for i := range warmUpPrompts {
		q := query{place: s.place(length, "prompts"), phase: record.WarmUp, prompt: i, tokens: s.prompts.draw(length, fmt.Sprintf("warm/%d", i)), output: s.ask.OutputTokens}
		if _, err := s.serial(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// alive says whether an engine that failed a request serves on; the error ends the turn.
func (s *stage) alive(ctx context.Context, failure error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	health := s.client.Healthy(ctx)
	if health == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(deathWait):
		return &broken{record.AtServe, record.PartEngine, fmt.Sprintf("it no longer answers: %v; the request before: %v", health, failure), ""}
	}
}

// drain checks that everything borrowed was given back. An interrupted run is checked, too; at the end of a part the check may be broken off. inner is the
// context that start returned: it says whether the engine is still there.
func (s *stage) drain(ctx, inner context.Context) error {
	limit := s.drainTime()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	checked := s.counters.Drain(ctx)
	if !checked.Drained && limit < drainLimit {
		checked.Why = fmt.Sprintf("the end of this part left the check %v: %s", limit.Round(time.Millisecond), checked.Why)
	}
	var gone *broken
	if !checked.Drained && !checked.Checked && errors.As(context.Cause(inner), &gone) {
		checked.Why = "the engine is gone: " + checked.Why
	}
	checked.Place = s.place(0, "drain")
	checked.Concurrency = 0
	switch {
	case checked.Drained:
	case checked.Checked:
		s.trouble(fmt.Sprintf("%s, pass %d: not everything was given back", s.backend, s.pass), checked.Why)
	case gone != nil:
		s.trouble(fmt.Sprintf("%s, pass %d: nobody could be asked whether everything was given back", s.backend, s.pass), checked.Why)
	default:
		s.trouble(fmt.Sprintf("%s, pass %d: whether everything was given back is not known", s.backend, s.pass), checked.Why)
	}
	return s.dir.Drain(checked)
}
