package cache

import (
	"slices"
	"time"

	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

func (w *world) newEpoch() {
	e, ok := w.schedulerThatActs()
	if !ok || rapid.IntRange(0, 2).Draw(w.T, "really") != 0 {
		return
	}
	w.deliverAll(e.scheduler)
	e.epoch = uint64(w.born)<<32 + e.operation + 1
	e.operation++
	var err error
	e.ns, err = w.rig.NewEpoch(e.scheduler.id, e.id, e.epoch)
	w.rig.must(err)
	id := e.scheduler.id
	for _, operation := range inOrder(reverse(e.waiting)) { // one may have become ready without its client knowing
		e.scheduler.send(func() error { return w.rig.CancelQuery(id, operation, 1) })
	}
	e.waiting = map[uint64][]int{}
}

func (w *world) mapArena() {
	s, ok := draw(w, "rank", w.sessions(func(s *mSession) bool { return s.rank >= 0 && s.acts() }))
	if ok {
		id := s.id
		s.engine.mapped[s.rank] = true
		s.send(func() error { return w.rig.Mapped(id, 1, true, "") })
	}
}

// stop stops a process, or lets all go on.
func (w *world) stop() {
	stop := rapid.Bool().Draw(w.T, "stop")
	for _, s := range w.sessions(func(*mSession) bool { return true }) {
		s.process.stopped = s.process.stopped && stop
	}
	if s, ok := draw(w, "process", w.sessions(func(s *mSession) bool { return !s.process.dead })); ok && stop {
		s.process.stopped = true
	}
}

func (w *world) passTime() {
	w.rig.clock.forward(rapid.SampledFrom([]time.Duration{time.Second, 6 * time.Second, 70 * time.Second, time.Hour}).Draw(w.T, "time"))
	w.rig.Tick()
}

func (w *world) cleanup() {
	switch rapid.IntRange(0, 5).Draw(w.T, "which") {
	case 0:
		w.rig.Cleanup()
	case 1:
		w.rig.Clear()
	}
}

// kill ends a process between two of its instructions: what it wrote to its sockets is still on the way. Its device copies end with it, but for those of
// a cuda_shared writer.
func (w *world) kill() {
	s, ok := draw(w, "process", w.sessions(func(s *mSession) bool { return !s.process.dead }))
	if ok && rapid.IntRange(0, 3).Draw(w.T, "really") == 0 {
		w.die(s)
	}
}

func (w *world) die(s *mSession) {
	s.process.dead = true
	e := s.engine
	for _, r := range e.reservations {
		for page := range r.keys {
			for storage, view := range r.slices[page] {
				mine := s.rank >= 0 && int(e.ns.Slices[storage].Rank) == s.rank && view.mayWrite()
				if !mine && (s.rank >= 0 || view != sliceGranted) {
					continue
				}
				if mine && view == sliceHanded && e.sh.writers[s.rank] == wire.WriterCudaShared {
					w.zombies = append(w.zombies, r.places[page][storage])
				}
				r.slices[page][storage] = sliceLost
			}
		}
	}
}

func (w *world) zombieWrites() {
	if at, ok := draw(w, "zombie", w.zombies); ok {
		w.memory[at] = "a late write"
	}
}

// exit is the pidfd of a dead process, once its socket was read to its end.
func (w *world) exit() {
	s, ok := draw(w, "dead", w.sessions(func(s *mSession) bool {
		return s.process.dead && !s.process.exited && len(s.queue) == 0
	}))
	if ok {
		w.end(s)
	}
}

func (w *world) end(s *mSession) {
	if !s.process.dead {
		w.die(s)
	}
	if s.connected {
		w.rig.CloseSession(s.id)
		s.connected = false
	}
	w.rig.ProcessExited(s.process.id)
	s.process.exited = true
}

// disconnect breaks a connection: the tail of what was written is lost.
func (w *world) disconnect() {
	mustLose := rapid.Bool().Draw(w.T, "must lose")
	s, ok := draw(w, "session", w.sessions(func(s *mSession) bool { return s.connected && !s.process.dead && (!mustLose || len(s.queue) > 0) }))
	if !ok || !mustLose && rapid.IntRange(0, 2).Draw(w.T, "really") != 0 {
		return
	}
	for range rapid.IntRange(0, len(s.queue)).Draw(w.T, "read") {
		w.deliverOne(s)
	}
	s.connected = false
	if s.engine.waiting != nil && s.rank < 0 {
		s.engine.waiting = map[uint64][]int{}
	}
	if len(s.queue) == 0 {
		w.rig.CloseSession(s.id)
	} else {
		s.queue = nil
		w.rig.BreakSession(s.id)
	}
	if rapid.IntRange(0, 3).Draw(w.T, "and dies") == 0 {
		w.end(s)
	}
}

// reconnect opens a new session, names what the old one still uses, and says again what may not have been read.
func (w *world) reconnect() {
	s, ok := draw(w, "session", w.sessions(func(s *mSession) bool { return !s.connected && !s.process.dead && !s.process.stopped }))
	if ok {
		w.comeBack(s)
	}
}

func (w *world) comeBack(s *mSession) {
	now := w.connect(s.process, s.engine, s.rank)
	e := s.engine
	if s.rank < 0 {
		e.scheduler = now
		w.resumeScheduler(e, s.token)
	} else {
		e.ranks[s.rank] = now
		e.mapped[s.rank] = false
		first := rapid.Bool().Draw(w.T, "attach first")
		if first {
			w.attachAgain(now)
		}
		w.resumeRank(e, now, s.token)
		if !first {
			w.attachAgain(now)
		}
	}
}

// attachAgain attaches a rank on its new connection and maps what that connection is sent first.
func (w *world) attachAgain(s *mSession) {
	a := s.engine.sh.attach(s.engine.id, s.rank)
	a.Epoch = s.engine.epoch
	_, err := w.rig.Attach(s.id, a)
	w.rig.must(err)
	w.rig.must(w.rig.Mapped(s.id, 0, true, ""))
}

func (w *world) resumeScheduler(e *mEngine, token wire.ID16) {
	var leases, reservations []uint64
	for _, l := range e.leases {
		if l.held || l.mayRead() > 0 {
			leases = append(leases, l.id)
		}
	}
	for _, r := range e.reservations {
		if r.handedOut() || rapid.Bool().Draw(w.T, "named") {
			reservations = append(reservations, r.id)
		} else {
			r.giveUp()
		}
	}
	tookLeases, tookReservations, err := w.rig.Resume(e.scheduler.id, token, leases, reservations)
	w.rig.must(err)
	id := e.scheduler.id
	for _, l := range e.leases {
		taken := slices.Contains(tookLeases, l.id)
		w.check(!l.held || taken, "lease %#x was lost in a resume", l.id)
		for rank, pages := range l.begun {
			if taken && pages > 0 {
				w.sendBegin(l, uint16(rank), pages)
			}
		}
		if taken && !l.held && slices.Contains(l.copies, copyNone) { // it gave the other ranks' parts back
			e.scheduler.send(func() error { return w.rig.Release(id, l.id, wire.AllRanks) })
		}
		l.operation = 0 // its query belonged to the old session
	}
	for _, r := range e.reservations {
		for page := range r.keys {
			if slices.Contains(r.slices[page], sliceGivenUp) && slices.Contains(tookReservations, r.id) {
				e.scheduler.send(func() error {
					return w.rig.Abandoned(id, r.id, wire.AllRanks, []wire.Range{{First: uint32(page), Count: 1}})
				})
			}
		}
	}
}

func (w *world) resumeRank(e *mEngine, s *mSession, token wire.ID16) {
	var leases, reservations []uint64
	for _, l := range e.leases {
		if state := l.copies[s.rank]; state == copyKnown || state == copyActive || state == copyEnded {
			leases = append(leases, l.id)
		}
	}
	for _, r := range e.reservations {
		reservations = append(reservations, r.id)
	}
	tookLeases, tookReservations, err := w.rig.Resume(s.id, token, leases, reservations)
	w.rig.must(err)
	for _, l := range e.leases {
		if l.copies[s.rank] == copyEnded && slices.Contains(tookLeases, l.id) {
			w.sendRestored(l, s.rank)
		}
	}
	for _, r := range e.reservations {
		if !slices.Contains(tookReservations, r.id) {
			continue
		}
		for page := range r.keys {
			for storage, view := range r.slices[page] {
				if mine := (mSlice{e, r, page, storage}); mine.session() == s && (view == sliceWritten || view == sliceDropped) {
					w.reportSlice(mine)
				}
			}
		}
	}
}

// restart replaces an engine of which every process exited.
func (w *world) restart() {
	for i, e := range w.engines {
		if !slices.ContainsFunc(e.members(), func(s *mSession) bool { return !s.process.exited }) {
			w.engines[i] = w.start(rapid.IntRange(0, 3).Draw(w.T, "kind"))
			return
		}
	}
}
