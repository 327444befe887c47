package cache

import (
	"slices"

	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

func (w *world) query() {
	e, ok := w.schedulerThatActs()
	if !ok {
		return
	}
	from := rapid.IntRange(0, modelKeys-1).Draw(w.T, "from")
	keys := make([]int, rapid.IntRange(1, modelKeys-from).Draw(w.T, "keys"))
	for i := range keys {
		keys[i] = from + i
	}
	w.deliverAll(e.scheduler)
	e.operation++
	got, err := w.rig.SubmitQuery(e.scheduler.id, Query{
		Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Request: w.request(), Keys: wireKeys(keys),
	})
	w.rig.must(err)
	w.mustBeMapped(e, placesOf(got.Runs, e.ns.Slices, e.ns.PageBytes)) // what waited may be polled after a rank came back with nothing mapped
	w.take(e, keys, got)
}

func wireKeys(keys []int) (out []wire.Key) {
	for _, k := range keys {
		out = append(out, keyOf(k))
	}
	return out
}

// take handles the state of a query.
func (w *world) take(e *mEngine, keys []int, got Result) {
	switch got.Outcome {
	case wire.OutcomeWaiting, wire.OutcomePreparing:
		e.waiting[got.Operation] = keys
	case wire.OutcomeReady:
		delete(e.waiting, got.Operation)
		if got.Lease == 0 {
			return
		}
		l := &mLease{
			id: got.Lease, operation: got.Operation, epoch: e.epoch, keys: keys[:got.Pages], places: placesOf(got.Runs, e.ns.Slices, e.ns.PageBytes),
			held: true, begun: make([]int, len(e.ranks)), copies: make([]copyState, len(e.ranks)), arrived: make([]bool, len(e.ranks)), engine: e,
		}
		e.leases = append(e.leases, l)
		w.check(len(l.places) == int(got.Pages), "%d places of %d pages", len(l.places), got.Pages)
	case wire.OutcomeBusy:
	default:
		w.Fatalf("query %d of %s: %v", got.Operation, e.id, got.Outcome)
	}
}

func (w *world) check(ok bool, format string, args ...any) {
	w.Helper()
	if !ok {
		w.Fatalf(format, args...)
	}
}

func (w *world) poll() {
	e, ok := w.schedulerThatActs()
	if !ok {
		return
	}
	operations := inOrder(reverse(e.waiting))
	operation, ok := draw(w, "operation", operations)
	if !ok {
		return
	}
	w.deliverAll(e.scheduler)
	got, err := w.rig.PollQuery(e.scheduler.id, operation, 1)
	w.rig.must(err)
	w.take(e, e.waiting[operation], got)
}

func reverse(m map[uint64][]int) map[uint64]uint64 {
	ids := map[uint64]uint64{}
	for id := range m {
		ids[id] = id
	}
	return ids
}

func (w *world) heldLease() (*mLease, bool) {
	var held []*mLease
	for _, e := range w.engines {
		for _, l := range e.leases {
			if l.held && e.scheduler.acts() {
				held = append(held, l)
			}
		}
	}
	return draw(w, "lease", held)
}

func (w *world) cancel() {
	l, ok := w.heldLease()
	if !ok || l.operation == 0 {
		return
	}
	l.held = false
	s := l.engine.scheduler
	id := s.id
	s.send(func() error { return w.rig.CancelQuery(id, l.operation, 1) })
}

func (w *world) release() {
	if l, ok := w.heldLease(); ok {
		l.held = false
		s := l.engine.scheduler
		id := s.id
		s.send(func() error { return w.rig.Release(id, l.id, wire.AllRanks) })
	}
}

// begin begins a lease for all ranks that are not begun, or for one of them.
func (w *world) begin() {
	l, ok := w.heldLease()
	if !ok {
		return
	}
	pages := rapid.IntRange(1, len(l.keys)).Draw(w.T, "begin")
	unbegun := 0
	for _, state := range l.copies {
		if state == copyNone {
			unbegun++
		}
	}
	if unbegun == len(l.copies) && rapid.Bool().Draw(w.T, "all ranks") {
		for rank := range l.copies {
			l.copies[rank], l.begun[rank] = copySent, pages
		}
		l.held = false
		w.sendBegin(l, wire.AllRanks, pages)
		return
	}
	for rank, state := range l.copies {
		if state == copyNone {
			l.copies[rank], l.begun[rank] = copySent, pages
			l.held = unbegun > 1
			w.sendBegin(l, uint16(rank), pages)
			return
		}
	}
}

func (w *world) sendBegin(l *mLease, rank uint16, pages int) {
	s := l.engine.scheduler
	id := s.id
	s.send(func() error { return w.rig.Begin(id, l.id, rank, uint32(pages)) })
}

// copyIn draws a living rank's copy in one state.
func (w *world) copyIn(state copyState) (l *mLease, rank int, ok bool) {
	type one struct {
		l    *mLease
		rank int
	}
	var fit []one
	for _, e := range w.engines {
		for _, l := range e.leases {
			for rank := range l.copies {
				if p := e.ranks[rank].process; l.copies[rank] == state && !p.dead && !p.stopped {
					fit = append(fit, one{l, rank})
				}
			}
		}
	}
	chosen, ok := draw(w, "copy", fit)
	return chosen.l, chosen.rank, ok
}

func (w *world) takePlan() {
	if l, rank, ok := w.copyIn(copySent); ok {
		l.copies[rank] = copyKnown
	}
}

func (w *world) startCopy() {
	if l, rank, ok := w.copyIn(copyKnown); ok {
		l.copies[rank] = copyActive
	}
}

// endCopy reads what a copy read and reports it, in one or two messages.
func (w *world) endCopy() {
	l, rank, ok := w.copyIn(copyActive)
	if !ok {
		return
	}
	for page := range l.begun[rank] {
		w.mustHold(l.engine, l, page)
	}
	l.copies[rank] = copyEnded
	l.arrived[rank] = rapid.Bool().Draw(w.T, "ok")
	w.sendRestored(l, rank)
}

func (w *world) sendRestored(l *mLease, rank int) {
	s := l.engine.ranks[rank]
	if !s.connected {
		return // it resumes with this copy in its list
	}
	id, pages := s.id, uint32(l.begun[rank])
	cut := uint32(rapid.IntRange(0, l.begun[rank]).Draw(w.T, "cut"))
	for _, part := range []wire.Range{{First: 0, Count: cut}, {First: cut, Count: pages - cut}} {
		if part.Count > 0 {
			s.send(func() error {
				if l.arrived[rank] {
					w.arrived(l, part)
				}
				return w.rig.Restored(id, l.id, uint16(rank), l.arrived[rank], 100, []wire.Range{part})
			})
		}
	}
}

// arrived resolves warmed pages, each once.
func (w *world) arrived(l *mLease, part wire.Range) { w.arrivedAt(l.places, part) }

func (w *world) arrivedAt(places [][]place, part wire.Range) {
	for page := part.First; page < part.First+part.Count; page++ {
		if warmed := w.warmed[places[page][0]]; warmed != nil && !warmed.restored {
			warmed.restored = true
			w.restoredBytes += warmed.bytes
			w.restoredByteSeconds += float64(warmed.bytes) * w.rig.clock.now().Sub(warmed.since).Seconds()
		}
	}
}

// answerNotices answers the revokes and pings of one process.
func (w *world) answerNotices() {
	s, ok := draw(w, "session", w.sessions((*mSession).acts))
	if !ok {
		return
	}
	for _, n := range s.client.queue.notices {
		if n.Kind != NoticeRevoke {
			continue
		}
		id := s.id
		for _, l := range s.engine.leases {
			if l.id == n.ID {
				yielded := l.held && !slices.ContainsFunc(l.copies, func(s copyState) bool { return s != copyNone }) && rapid.Bool().Draw(w.T, "yield")
				l.held = l.held && !yielded
				s.send(func() error { return w.rig.Revoked(id, l.id, yielded) })
			}
		}
	}
	s.client.queue.notices = nil
	w.rig.Heard(s.id)
}
