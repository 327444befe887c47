package cache

import (
	"slices"
	"testing"
	"time"

	"orbitkv/internal/wire"
)

func grantsOf(got Reserved) (grants []wire.Grant) {
	for _, g := range got.Grants {
		for range g.Count {
			grants = append(grants, g.Grant)
		}
	}
	return grants
}

func (r *rig) wantWriting(reservations uint64, pages int) {
	r.t.Helper()
	r.check()
	if s := r.Stats(); s.Reservations != reservations || s.WritingBytes+s.AbandonedBytes != uint64(pages)*2*page {
		r.t.Fatalf("%d reservations with %d bytes, want %d with %d pages", s.Reservations, s.WritingBytes+s.AbandonedBytes, reservations, pages)
	}
}

func TestRanksReserveTogether(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 2))
	first, second := r.reserveFor(e, 1, 2, keysOf(1, 4)), r.reserveFor(e, 0, 2, keysOf(1, 4))
	if first.Reservation == 0 || second.Reservation != first.Reservation || !slices.Equal(first.Grants, second.Grants) || !slices.Equal(first.Runs, second.Runs) {
		t.Fatalf("%+v and %+v", first, second)
	}
	_, err := r.tryReserve(e, 0, 2, keysOf(1, 4))
	r.fails(err, wire.StatusStale)
	r.wantWriting(1, 3)
	r.must(r.Committed(e.workers[0].id, first.Reservation, 0, all(3)))
	r.wantWriting(1, 3)
	r.must(r.Committed(e.workers[1].id, first.Reservation, 1, all(3)))
	r.wantWriting(0, 0)
	for rank, s := range e.schedulers {
		if ids := s.queue.take(NoticeSealed); !slices.Contains(ids, first.Reservation) {
			t.Fatalf("rank %d was told of %v", rank, ids)
		}
	}
	r.wantOutcome(r.ask(e, 0, 3, keysOf(0, 5)), wire.OutcomeReady, 5)
}

func TestARankThatSkipsAReserveWritesNothing(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	got := r.reserveFor(e, 0, 1, keysOf(0, 4))
	r.must(r.Committed(e.workers[0].id, got.Reservation, 0, all(2)))
	r.wantWriting(1, 4)
	later := r.reserveFor(e, 1, 2, keysOf(10, 1))
	if later.Pages != 1 {
		t.Fatalf("%+v", later)
	}
	r.wantWriting(2, 2+1) // what rank 0 committed is free, what it may still write is not
	_, err := r.tryReserve(e, 1, 1, keysOf(0, 4))
	r.fails(err, wire.StatusStale)
	r.must(r.Committed(e.workers[0].id, got.Reservation, 0, []wire.Range{{First: 2, Count: 2}}))
	r.wantWriting(1, 1)
	if s := r.Stats(); s.PageInsertionsTotal != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestAReserveThatARankPassedGrantsNothingNew(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 1))
	r.reserveFor(e, 1, 3, keysOf(50, 1))
	got := r.reserveFor(e, 0, 2, keysOf(0, 2))
	if got.Pages != 0 || got.Reservation != 0 || !slices.Equal(grantsOf(got), []wire.Grant{wire.GrantPresent, wire.GrantNoRoom}) {
		t.Fatalf("%+v", got)
	}
	r.check()
	r.BreakSession(e.schedulers[1].id)
	if got := r.reserveFor(e, 0, 9, keysOf(0, 2)); got.Pages != 0 {
		t.Fatalf("a rank without a connection cannot ask: %+v", got)
	}
	r.wantWriting(1, 1)
}

func TestAnswersOfReservesAreBounded(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	var got []Reserved
	for n := range uint64(JointAnswersMax + 1) {
		got = append(got, r.reserveFor(e, 0, n+1, keysOf(int(n), 1)))
	}
	r.check()
	if s := r.Stats(); s.JointAnswersDroppedTotal != 1 || s.Reservations != JointAnswersMax+1 {
		t.Fatalf("%+v", s)
	}
	_, err := r.tryReserve(e, 1, 1, keysOf(0, 1))
	if err != nil {
		t.Fatal("a rank that asks late makes an operation of its own:", err)
	}
	for rank, worker := range e.workers {
		for n := 1; n < len(got); n++ {
			if rank == 1 {
				r.reserveFor(e, 1, uint64(n+1), keysOf(n, 1))
			}
			r.must(r.Committed(worker.id, got[n].Reservation, uint16(rank), all(1)))
		}
	}
	r.check()
	if s := r.Stats(); s.PageInsertionsTotal != JointAnswersMax || s.Reservations != 1 {
		t.Fatalf("%+v", s)
	}
	r.must(r.Committed(e.workers[0].id, got[0].Reservation, 0, all(1)))
	r.wantWriting(0, 0)
}

func TestGrantsOfAnswersAreBounded(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.answersBytes = answersBytesMax
	got := r.reserveFor(e, 0, 1, keysOf(0, 1))
	r.answersBytes -= answersBytesMax
	if s := r.Stats(); s.JointAnswersDroppedTotal != 1 {
		t.Fatalf("%+v", s)
	}
	r.must(r.Committed(e.workers[0].id, got.Reservation, 0, all(1)))
	r.wantWriting(0, 0)
}

func TestOnlyRanksThatStoreReserve(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, shape{slices: []uint64{page, 0}})
	_, err := r.tryReserve(e, 1, 1, keysOf(0, 1))
	r.fails(err, wire.StatusDenied)
	got := r.reserveFor(e, 0, 1, keysOf(0, 1))
	r.must(r.Committed(e.workers[0].id, got.Reservation, 0, all(1)))
	lease := r.ask(e, 1, 1, keysOf(0, 1))
	r.wantOutcome(lease, wire.OutcomeReady, 1)
	r.must(r.Begin(e.schedulers[1].id, lease.Lease, 1, 1))
	r.must(r.Restored(e.workers[1].id, lease.Lease, 1, true, page, all(1)))
	r.wantHeld(0, 0, 0)
}

func TestASchedulerAbandonsWhatItsRankWillNotWrite(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	got := r.reserveFor(e, 0, 1, keysOf(0, 3))
	r.reserveFor(e, 1, 1, keysOf(0, 3))
	r.must(r.Committed(e.workers[0].id, got.Reservation, 0, all(1)))
	r.fails(r.Abandoned(e.schedulers[0].id, got.Reservation, 0, all(3)), wire.StatusConflict)
	r.must(r.Abandoned(e.workers[0].id, got.Reservation, 0, []wire.Range{{First: 1, Count: 1}}))
	r.must(r.Abandoned(e.schedulers[0].id, got.Reservation, 0, []wire.Range{{First: 1, Count: 2}}))
	r.wantWriting(1, 3)
	r.must(r.Abandoned(e.schedulers[1].id, got.Reservation, 1, all(3)))
	r.wantWriting(0, 0)
	r.must(r.Abandoned(e.schedulers[1].id, got.Reservation, 1, all(3))) // it has ended: late
	r.check()
}

// A disconnect ends only what the rank did not ask for. What it did ask for waits for its resume, which ends what it does not name, or for its exit.
func TestDisconnectAndResumeOfARanksScheduler(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 8))
	kept, dropped, unasked := r.ask(e, 1, 2, keysOf(0, 2)), r.ask(e, 1, 3, keysOf(2, 2)), r.ask(e, 0, 4, keysOf(4, 2))
	r.ask(e, 0, 5, keysOf(90, 1))
	named, unnamed := r.reserveFor(e, 1, 2, keysOf(20, 1)), r.reserveFor(e, 1, 3, keysOf(30, 1))
	r.reserveFor(e, 0, 2, keysOf(20, 1))
	r.reserveFor(e, 0, 3, keysOf(30, 1))
	never := r.reserveFor(e, 0, 4, keysOf(40, 1))
	r.BreakSession(e.schedulers[1].id)
	r.clock.forward(time.Hour)
	r.Tick()
	r.check()
	if s := r.Stats(); s.Leases != 3 || s.Reservations != 3 || r.leases[unasked.Lease].consumers[1].state != consumerReleased {
		t.Fatalf("a disconnect took what may be in use, or kept what was not asked for: %+v", s)
	}
	now := r.connect(e.schedulers[1].process, wire.RoleScheduler)
	leases, reservations, err := r.Resume(now.id, e.schedulers[1].token, []uint64{kept.Lease}, []uint64{named.Reservation})
	r.must(err)
	if !slices.Equal(leases, []uint64{kept.Lease}) || !slices.Equal(reservations, []uint64{named.Reservation}) {
		t.Fatalf("took %v and %v", leases, reservations)
	}
	e.schedulers[1] = now
	r.check()
	if s := r.Stats(); r.leases[dropped.Lease] != nil || s.Leases != 2 || s.Reservations != 3 || s.AbandonedBytes != 2*2*page {
		t.Fatalf("the others' parts of what was not named: %+v", s)
	}
	r.wantOutcome(r.ask(e, 1, 2, keysOf(0, 2)), wire.OutcomeReady, 2) // numbers and their operations outlive a session
	r.wantOutcome(r.ask(e, 1, 3, keysOf(2, 2)), wire.OutcomeStale, 0)
	r.must(r.Begin(now.id, kept.Lease, 1, 2))
	r.must(r.Restored(e.workers[1].id, kept.Lease, 1, true, 2*page, all(2)))
	r.must(r.Release(e.schedulers[0].id, unasked.Lease, 0))
	for rank, worker := range e.workers {
		r.must(r.Committed(worker.id, named.Reservation, uint16(rank), all(1)))
	}
	r.must(r.Committed(e.workers[0].id, unnamed.Reservation, 0, all(1)))
	r.must(r.Committed(e.workers[0].id, never.Reservation, 0, all(1)))
	r.wantHeld(0, 0, 0)
	r.wantWriting(0, 0)
	if s := r.Stats(); s.PageInsertionsTotal != 9 || s.SessionsDisconnected != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestExitOfARank(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, writers(wire.WriterHost, wire.WriterCudaShared))
	r.publishAll(e, 1, keysOf(0, 8))
	begun, ready, unasked := r.ask(e, 0, 2, keysOf(0, 2)), r.ask(e, 0, 3, keysOf(2, 2)), r.ask(e, 0, 4, keysOf(4, 2))
	r.ask(e, 1, 2, keysOf(0, 2))
	r.ask(e, 1, 3, keysOf(2, 2))
	r.must(r.Begin(e.schedulers[1].id, begun.Lease, 1, 2))
	joined, never := r.reserveFor(e, 0, 2, keysOf(20, 1)), r.reserveFor(e, 0, 3, keysOf(30, 1))
	r.reserveFor(e, 1, 2, keysOf(20, 1))
	r.CloseSession(e.schedulers[1].id)
	r.kill(e.workers[1])
	r.wantHeld(3, 3, 3*2*2*page)
	if s := r.Stats(); s.QuarantinedBytes != 2*page || s.AbandonedBytes != 2*page {
		t.Fatalf("slices that were never handed to a writer are no danger, the others of a shared device may be: %+v", s)
	}
	for _, lease := range []uint64{begun.Lease, ready.Lease, unasked.Lease} {
		r.must(r.Release(e.schedulers[0].id, lease, 0))
	}
	r.must(r.Committed(e.workers[0].id, joined.Reservation, 0, all(1)))
	r.must(r.Committed(e.workers[0].id, never.Reservation, 0, all(1)))
	r.wantHeld(0, 0, 0)
	r.CloseSession(e.schedulers[0].id)
	r.kill(e.workers[0])
	r.check()
	if s := r.Stats(); s.Instances != 0 || s.Sessions+s.SessionsDisconnected != 0 || s.PoolUsedBytes != 9*2*page {
		t.Fatalf("%+v", s)
	}
}

// A worker that reconnects names what it uses. What its scheduler may not have handed over yet is accounted for; what it was never asked for too.
func TestResumeOfARanksWorker(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	lease := r.ask(e, 1, 2, keysOf(0, 4))
	r.must(r.Begin(e.schedulers[1].id, lease.Lease, 1, 4))
	never := r.reserveFor(e, 0, 2, keysOf(20, 1))
	resume := func() {
		now := r.connect(e.workers[1].process, wire.RoleWorker)
		r.CloseSession(e.workers[1].id)
		_, _, err := r.Resume(now.id, e.workers[1].token, nil, nil)
		r.must(err)
		e.workers[1] = now
		r.check()
	}
	resume()
	if s := r.Stats(); s.QuarantinedBytes != 0 || s.QueryReservedByPhase["quarantined"] != 0 {
		t.Fatalf("%+v", s)
	}
	joined := r.reserveFor(e, 1, 2, keysOf(20, 1))
	left := r.connect(e.schedulers[1].process, wire.RoleScheduler)
	_, _, err := r.Resume(left.id, e.schedulers[1].token, nil, []uint64{joined.Reservation})
	r.must(err)
	r.must(r.Detach(left.id, "a"))
	resume()
	if s := r.Stats(); s.QuarantinedBytes != 2*page || s.QueryReservedByPhase["quarantined"] != 4*2*page || never.Reservation != joined.Reservation {
		t.Fatalf("nobody accounts for the copy of lease %#x and for reservation %#x: %+v", lease.Lease, joined.Reservation, s)
	}
}

func TestEpochsOfRanks(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	ready := r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 0, 3, keysOf(90, 1))
	open := r.reserveFor(e, 0, 2, keysOf(20, 2))
	one, err := r.NewEpoch(e.schedulers[0].id, "a", 11)
	r.must(err)
	r.check()
	if r.leases[ready.Lease].consumers[1].state != consumerReleased || r.reservations[open.Reservation].openBy[1] != 0 {
		t.Fatal("a rank can ask no more for what belongs to the old epoch")
	}
	_, err = r.SubmitQuery(e.schedulers[1].id, e.query(2, keysOf(0, 4)))
	r.fails(err, wire.StatusStale)
	_, err = r.tryReserve(e, 1, 2, keysOf(20, 2))
	r.fails(err, wire.StatusStale)
	two, err := r.NewEpoch(e.schedulers[0].id, "a", 12)
	r.must(err)
	for _, epoch := range []uint64{0, 11} { // rank 1 follows, late
		_, err = r.NewEpoch(e.schedulers[1].id, "a", epoch)
		r.fails(err, wire.StatusStale)
	}
	got, err := r.NewEpoch(e.schedulers[1].id, "a", 12)
	r.must(err)
	if got.Namespace != two.Namespace || got.Epoch != 12 || two.Namespace == one.Namespace {
		t.Fatalf("%+v", got)
	}
	e.ns = two
	r.publishAll(e, 5, keysOf(0, 4))
	r.wantOutcome(r.ask(e, 1, 6, keysOf(0, 4)), wire.OutcomeReady, 4)
	r.must(r.Release(e.schedulers[0].id, ready.Lease, 0))
	r.must(r.Abandoned(e.workers[0].id, open.Reservation, 0, all(2)))
	r.wantHeld(1, 1, 4*2*page)
	r.wantWriting(0, 0)
	for epoch := range uint64(2 * replacedEpochMax) {
		_, err := r.NewEpoch(e.schedulers[0].id, "a", 100+epoch)
		r.must(err)
	}
	if kept := len(r.instances["a"].joint.replaced); kept != replacedEpochMax {
		t.Fatalf("%d epochs are kept", kept)
	}
	r.check()
}

func TestDetachOfARank(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	got := r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 1, 2, keysOf(0, 4))
	r.reserveFor(e, 0, 2, keysOf(20, 1))
	r.must(r.Detach(e.workers[1].id, "a")) // its slices were not handed to it
	_, err := r.tryReserve(e, 1, 2, keysOf(20, 1))
	r.fails(err, wire.StatusConflict)
	other := r.connect(r.process(900), wire.RoleWorker)
	_, err = r.Attach(other.id, e.sh.attach("a", 1))
	r.must(err)
	_, err = r.tryReserve(e, 1, 3, keysOf(30, 1))
	r.fails(err, wire.StatusConflict)
	r.must(r.Begin(e.schedulers[1].id, got.Lease, 1, 4)) // a rank that another process took reads nothing for it
	r.wantHeld(1, 1, 4*2*page)
	r.kill(other)
	r.must(r.Detach(e.schedulers[1].id, "a"))
	r.must(r.Release(e.schedulers[0].id, got.Lease, 0))
	r.wantHeld(0, 0, 0)
	for _, s := range []client{e.schedulers[0], e.workers[0]} {
		r.must(r.Detach(s.id, "a"))
	}
	r.check()
	if s := r.Stats(); s.Instances != 0 || s.WritingBytes+s.AbandonedBytes != 0 {
		t.Fatalf("%+v", s)
	}
}

// A rank that has no scheduler yet was handed nothing: its slices are no danger when it dies.
func TestExitOfARankThatNeverScheduled(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := &team{id: "a", sh: writers(wire.WriterHost, wire.WriterCudaShared)}
	for rank := range e.sh.slices {
		e.workers = append(e.workers, r.connect(r.process(100+rank), wire.RoleWorker))
		r.attachWorker(e, rank)
	}
	e.schedulers = []client{r.connect(e.workers[0].process, wire.RoleScheduler)}
	var err error
	e.ns, err = r.Register(e.schedulers[0].id, "a", 0)
	r.must(err)
	got := r.reserveFor(e, 0, 1, keysOf(0, 2))
	r.kill(e.workers[1])
	r.check()
	if s := r.Stats(); s.QuarantinedBytes != 0 || s.AbandonedBytes != 2*2*page {
		t.Fatalf("%+v", s)
	}
	r.must(r.Abandoned(e.workers[0].id, got.Reservation, 0, all(2)))
	r.wantWriting(0, 0)
}
