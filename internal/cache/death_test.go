package cache

import (
	"slices"
	"testing"
	"time"

	"orbitkv/internal/wire"
)

func writers(w ...wire.Writer) shape {
	sh := shape{writers: w}
	for range w {
		sh.slices = append(sh.slices, page)
	}
	return sh
}

func (r *rig) kill(c client) {
	r.CloseSession(c.id)
	r.ProcessExited(c.process)
}

func TestDeadWriter(t *testing.T) {
	for _, test := range []struct {
		writer           wire.Writer
		freed, forgotten uint64
	}{{wire.WriterHost, 4, 0}, {wire.WriterCuda, 4, 0}, {wire.WriterCudaShared, 0, 4}} {
		t.Run(test.writer.String(), func(t *testing.T) {
			r := newRig(t, Config{PoolBytes: 64 * page})
			e := r.engine("a", 100, writers(test.writer, wire.WriterHost))
			got := r.reserve(e, keysOf(0, 6))
			r.must(r.Committed(e.ranks[1].id, got.Reservation, 1, []wire.Range{{First: 1, Count: 5}}))
			r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, []wire.Range{{First: 5, Count: 1}}))
			used := r.Stats().PoolUsedBytes

			r.CloseSession(e.ranks[0].id)
			r.clock.forward(time.Hour)
			r.Tick()
			if s := r.Stats(); s.PoolUsedBytes != used || s.SettlingBytes != 5*page {
				t.Fatalf("a closed socket freed bytes, or its slices are not settling: %+v", s)
			}
			r.check()
			r.ProcessExited(e.ranks[0].process)
			r.check()
			s := r.Stats()
			// Page 0 is still written by rank 1; page 5 was sealed.
			if wantUsed := used - test.freed*2*page; s.PoolUsedBytes != wantUsed {
				t.Fatalf("%d bytes used, want %d", s.PoolUsedBytes, wantUsed)
			}
			if want := test.forgotten; want > 0 && s.QuarantinedBytes != (want+1)*2*page {
				t.Fatalf("%d bytes quarantined", s.QuarantinedBytes)
			}
			r.must(r.Committed(e.ranks[1].id, got.Reservation, 1, all(1)))
			r.check()
			s = r.Stats()
			if test.forgotten == 0 && s.PoolUsedBytes != 2*page {
				t.Fatalf("%d bytes used when every writer is terminal", s.PoolUsedBytes)
			}
			if test.forgotten > 0 && s.QuarantinedBytes != 5*2*page {
				t.Fatal("a quarantined page came back")
			}
			r.kill(e.ranks[1])
			r.kill(e.scheduler)
			if s := r.Stats(); s.Instances != 0 || s.Reservations != 0 || s.Sessions+s.SessionsDisconnected != 0 || s.Processes != 0 {
				t.Fatalf("%+v", s)
			}
			again := r.engine("b", 200, writers(wire.WriterHost, wire.WriterHost))
			if n := r.found(again, keysOf(5, 1)); n != 1 {
				t.Fatal("the sealed page did not outlive its instance")
			}
			if got := r.publish(again, keysOf(100, 40)); got.Pages != 32-uint32(test.forgotten+min(1, test.forgotten)) {
				t.Fatalf("%d pages: all but the quarantined ones can be reused", got.Pages)
			}
			r.check()
		})
	}
}

func TestDeadReaderIsHarmless(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, writers(wire.WriterCudaShared, wire.WriterHost))
	r.publish(e, keysOf(0, 4))
	got := r.query(e, keysOf(0, 4))
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, 4))
	r.kill(e.ranks[0])
	if s := r.Stats(); s.Leases != 1 || s.QueryReservedByPhase["restoring"] != 4*2*page {
		t.Fatalf("rank 1 still copies: %+v", s)
	}
	r.check()
	r.kill(e.ranks[1])
	if s := r.Stats(); s.Leases != 0 || s.QueryReservedBytes != 0 || s.QuarantinedBytes != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestSchedulerDiesWithLivingWorkers(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterHost))
	r.publish(e, keysOf(0, 8))
	begun, unbegun := r.query(e, keysOf(0, 4)), r.query(e, keysOf(4, 4))
	open := r.reserve(e, keysOf(20, 2))
	r.must(r.Begin(e.scheduler.id, begun.Lease, wire.AllRanks, 4))
	r.CloseSession(e.scheduler.id)
	r.check()
	if r.Stats().Leases != 2 {
		t.Fatal("a disconnect dropped a lease that may have been begun")
	}
	r.ProcessExited(e.scheduler.process)
	r.check()
	if s := r.Stats(); s.Leases != 1 || s.QueryReservedByPhase["restoring"] != 4*2*page || s.OperationsReady != 0 {
		t.Fatalf("the begun copies of living workers go on, unbegun lease %#x ends: %+v", unbegun.Lease, s)
	}
	for rank, worker := range e.ranks {
		r.must(r.Restored(worker.id, begun.Lease, uint16(rank), true, page, all(4)))
		r.must(r.Committed(worker.id, open.Reservation, uint16(rank), all(2)))
	}
	if s := r.Stats(); s.Leases != 0 || s.Reservations != 0 || s.ResidentPages["retained"] != 10 {
		t.Fatalf("%+v", s)
	}
	r.check()
	again := r.connect(r.process(900), wire.RoleScheduler)
	if _, err := r.Register(again.id, "a", wire.AllRanks); err != nil {
		t.Fatalf("another scheduler cannot take the place of a dead one: %v", err)
	}
}

func TestDisconnectAndResumeOfAScheduler(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 8))
	kept, dropped, begun := r.query(e, keysOf(0, 2)), r.query(e, keysOf(2, 2)), r.query(e, keysOf(4, 2))
	r.must(r.Begin(e.scheduler.id, begun.Lease, wire.AllRanks, 2))
	first, second := r.reserve(e, keysOf(20, 2)), r.reserve(e, keysOf(30, 2))
	r.CloseSession(e.scheduler.id)
	r.clock.forward(time.Hour)
	r.Tick()
	r.check()
	if s := r.Stats(); s.Leases != 3 || s.QueryReservedBytes != 2*page || s.StalledBytes != 4*page {
		t.Fatalf("the unbegun leases of a disconnected session are stalled, not freed: %+v", s)
	}

	now := r.connect(e.scheduler.process, wire.RoleScheduler)
	other := r.connect(r.process(901), wire.RoleScheduler)
	_, _, err := r.Resume(other.id, e.scheduler.token, []uint64{kept.Lease}, nil)
	r.fails(err, wire.StatusUnknown)
	leases, reservations, err := r.Resume(now.id, e.scheduler.token, []uint64{kept.Lease, kept.Lease, 12345}, []uint64{second.Reservation})
	r.must(err)
	if !slices.Equal(leases, []uint64{kept.Lease}) || !slices.Equal(reservations, []uint64{second.Reservation}) {
		t.Fatalf("took %v and %v", leases, reservations)
	}
	r.check()
	if s := r.Stats(); s.Leases != 2 || s.StalledBytes != 0 || s.QueryReservedBytes != 4*page {
		t.Fatalf("unbegun lease %#x was not named and ends: %+v", dropped.Lease, s)
	}
	r.must(r.Begin(now.id, kept.Lease, wire.AllRanks, 2))
	r.must(r.Begin(now.id, kept.Lease, wire.AllRanks, 2))
	for _, l := range []Result{kept, begun} {
		r.must(r.Restored(e.ranks[0].id, l.Lease, 0, true, page, all(2)))
	}
	if s := r.Stats(); s.Reservations != 1 || s.WritingBytes != 2*page {
		t.Fatalf("reservation %#x was not named and ends: %+v", first.Reservation, s)
	}
	r.must(r.Abandoned(now.id, second.Reservation, wire.AllRanks, all(2)))
	e.scheduler = now
	if got := r.publish(e, keysOf(20, 2)); got.Pages != 2 {
		t.Fatalf("the keys of an abandoned reservation are not granted again: %+v", got)
	}
	if s := r.Stats(); s.Leases != 0 || s.Reservations != 0 || s.SessionsDisconnected != 0 {
		t.Fatalf("%+v", s)
	}
	_, _, err = r.Resume(now.id, e.scheduler.token, nil, nil)
	r.fails(err, wire.StatusUnknown)
	r.check()
}

// A scheduler that resumes names every reservation that a rank may still write. One that it does not name ends, whatever its ranks reported: a report
// that was on the way is late. One that it names goes on.
func TestReservationsThatAResumedSchedulerDoesNotName(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterCudaShared))
	named, unnamed := r.reserve(e, keysOf(0, 2)), r.reserve(e, keysOf(10, 4))
	r.must(r.Committed(e.ranks[0].id, unnamed.Reservation, 0, all(3)))
	r.must(r.Committed(e.ranks[1].id, unnamed.Reservation, 1, all(1)))
	r.BreakSession(e.scheduler.id)
	now := r.connect(e.scheduler.process, wire.RoleScheduler)
	_, took, err := r.Resume(now.id, e.scheduler.token, nil, []uint64{named.Reservation})
	r.must(err)
	e.scheduler = now
	if s := r.Stats(); len(took) != 1 || s.Reservations != 1 || s.WritingBytes != 2*2*page || s.PoolUsedBytes != (2+1)*2*page {
		t.Fatalf("took %v: %+v", took, s)
	}
	r.check()

	r.must(r.Committed(e.ranks[1].id, unnamed.Reservation, 1, []wire.Range{{First: 1, Count: 3}}))
	r.must(r.Abandoned(e.ranks[0].id, unnamed.Reservation, 0, []wire.Range{{First: 3, Count: 1}}))
	r.must(r.Abandoned(now.id, unnamed.Reservation, wire.AllRanks, all(4)))
	if s := r.Stats(); s.LateReportsTotal != 3 || s.PageInsertionsTotal != 1 {
		t.Fatalf("%+v", s)
	}
	r.commit(e, named)
	if got := r.publish(e, keysOf(11, 3)); got.Pages != 3 || r.found(e, keysOf(0, 2)) != 2 || r.found(e, keysOf(10, 4)) != 4 {
		t.Fatalf("%+v", got)
	}
	r.fails(r.Committed(e.ranks[0].id, named.Reservation, 0, all(2)), wire.StatusUnknown)
	r.check()
}

func TestLateReportsOfUnnamedReservationsAreBounded(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, SessionOperations: 4})
	e := r.engine("a", 100, one(page))
	first := r.reserve(e, keysOf(0, 1))
	for ended := uint64(0); ended <= unnamedMax; {
		for range 4 - r.Stats().Reservations {
			r.reserve(e, keysOf(int(e.operation), 1))
		}
		ended += r.Stats().Reservations
		now := r.connect(e.scheduler.process, wire.RoleScheduler)
		_, _, err := r.Resume(now.id, e.scheduler.token, nil, nil)
		r.must(err)
		e.scheduler = now
	}
	if kept := len(r.instances["a"].unnamed); kept != unnamedMax {
		t.Fatalf("%d reservations are remembered", kept)
	}
	r.fails(r.Committed(e.ranks[0].id, first.Reservation, 0, all(1)), wire.StatusUnknown)
	r.check()
}

func TestDisconnectAndResumeOfAWorker(t *testing.T) {
	for _, attachFirst := range []bool{false, true} {
		r := newRig(t, Config{PoolBytes: 16 * mib})
		e := r.engine("a", 100, one(page))
		r.publish(e, keysOf(0, 4))
		lease := r.query(e, keysOf(0, 4))
		r.must(r.Begin(e.scheduler.id, lease.Lease, wire.AllRanks, 4))
		open := r.reserve(e, keysOf(20, 2))
		r.CloseSession(e.ranks[0].id)
		now := r.connect(e.ranks[0].process, wire.RoleWorker)
		if attachFirst {
			if _, err := r.Attach(now.id, one(page).attach("a", 0)); err != nil {
				t.Fatal(err)
			}
			r.must(r.Mapped(now.id, 0, true, ""))
			if s := r.Stats(); s.SettlingBytes != 0 {
				t.Fatalf("%+v", s)
			}
		}
		leases, reservations, err := r.Resume(now.id, e.ranks[0].token, []uint64{lease.Lease}, []uint64{open.Reservation})
		r.must(err)
		if len(leases) != 1 || len(reservations) != 1 || r.Stats().SessionsDisconnected != 0 {
			t.Fatalf("took %v and %v", leases, reservations)
		}
		r.check()
		r.must(r.Restored(now.id, lease.Lease, 0, true, page, all(4)))
		r.must(r.Committed(now.id, open.Reservation, 0, all(2)))
		if !attachFirst {
			if got := r.query(e, keysOf(20, 2)); got.Pages != 0 || got.NotMapped != 2 {
				t.Fatalf("%d pages are named to a rank that has mapped nothing since it came back", got.Pages)
			}
			if _, err := r.Attach(now.id, one(page).attach("a", 0)); err != nil {
				t.Fatal(err)
			}
			r.must(r.Mapped(now.id, 0, true, ""))
		}
		if n := r.found(e, keysOf(20, 2)); n != 2 {
			t.Fatalf("%d pages", n)
		}
		r.check()
	}
}

// A worker that reconnects without naming a copy is no proof that it ended: while the scheduler lives, it may not have handed it over yet. When the
// scheduler is gone, nobody accounts for it.
func TestWhatNobodyAccountsForIsQuarantined(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 64 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 4))
	lease := r.query(e, keysOf(0, 4))
	r.must(r.Begin(e.scheduler.id, lease.Lease, wire.AllRanks, 4))
	open := r.reserve(e, keysOf(20, 2))

	r.CloseSession(e.ranks[0].id)
	now := r.connect(e.ranks[0].process, wire.RoleWorker)
	_, _, err := r.Resume(now.id, e.ranks[0].token, nil, nil)
	r.must(err)
	r.check()
	if s := r.Stats(); s.QueryReservedByPhase["restoring"] != 4*page || s.QuarantinedBytes != 0 {
		t.Fatalf("%+v", s)
	}
	r.kill(e.scheduler)
	r.CloseSession(now.id)
	last := r.connect(e.ranks[0].process, wire.RoleWorker)
	_, _, err = r.Resume(last.id, now.token, nil, nil)
	r.must(err)
	r.check()
	s := r.Stats()
	if s.QueryReservedByPhase["quarantined"] != 4*page || s.QuarantinedBytes != 2*page || s.QueryReservedBytes != 0 || s.Reservations != 0 {
		t.Fatalf("%+v", s)
	}
	// Late reports change nothing.
	r.must(r.Restored(last.id, lease.Lease, 0, true, page, all(4)))
	r.must(r.Committed(last.id, open.Reservation, 0, all(2)))
	if s := r.Stats(); s.LateReportsTotal != 3 || s.QuarantinedBytes != 2*page || s.Leases != 1 {
		t.Fatalf("%+v", s)
	}
	r.kill(last)
	r.Clear()
	r.check()
	if s := r.Stats(); s.PoolUsedBytes != 6*page || s.Instances != 0 {
		t.Fatalf("quarantine ended before the Manager's life: %+v", s)
	}
}

func TestDisconnectedSchedulerThatNeverResumes(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 4))
	r.query(e, keysOf(0, 4))
	r.CloseSession(e.scheduler.id)
	now := r.connect(e.scheduler.process, wire.RoleScheduler)
	if _, err := r.Register(now.id, "a", wire.AllRanks); err != nil {
		t.Fatalf("the same process cannot register again: %v", err)
	}
	r.clock.forward(time.Hour)
	r.Tick()
	r.check()
	if r.Stats().Leases != 1 {
		t.Fatal("time or a second session ended a lease")
	}
	r.CloseSession(now.id)
	r.ProcessExited(e.scheduler.process)
	r.ProcessExited(e.scheduler.process)
	if s := r.Stats(); s.Leases != 0 || s.SessionsDisconnected != 0 || s.QueryReservedBytes != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestStalledIsALabel(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 10 * page, InstanceBudgetBytes: 8 * page})
	a, b := r.engine("a", 100, one(page)), r.engine("b", 200, one(page))
	r.publish(a, keysOf(0, 8))
	ready := r.query(a, keysOf(0, 2))
	begun := r.query(a, keysOf(2, 6))
	r.must(r.Begin(a.scheduler.id, begun.Lease, wire.AllRanks, 6))
	waiting := r.query(b, keysOf(0, 8))
	if waiting.Outcome != wire.OutcomeWaiting {
		t.Fatalf("%+v", waiting)
	}
	pings := func(except ...client) {
		r.clock.forward(5 * time.Second)
		r.Tick()
		for _, c := range []client{a.scheduler, a.ranks[0], b.scheduler, b.ranks[0]} {
			if !slices.Contains(except, c) {
				r.Heard(c.id)
			}
		}
	}
	pings(a.scheduler, a.ranks[0])
	pings(a.scheduler, a.ranks[0])
	if s := r.Stats(); s.StalledBytes != 0 {
		t.Fatalf("stalled before 10 s of silence: %+v", s)
	}
	pings(a.scheduler, a.ranks[0])
	r.check()
	s := r.Stats()
	if s.StalledBytes != 8*page || s.SessionsStalled != 2 || s.Leases != 3 {
		t.Fatalf("%+v", s)
	}
	if got := r.outcome(b, waiting.Operation, 1, wire.OutcomeReady); got.Pages != 8 {
		t.Fatalf("a stalled session starves another: %+v", got)
	}
	if got := r.query(a, keysOf(0, 1)); got.Outcome != wire.OutcomeWaiting {
		t.Fatalf("stalled bytes left the instance's own budget: %v", got.Outcome)
	}
	r.Heard(a.scheduler.id)
	if s := r.Stats(); s.QueryReservedByPhase["ready"] != 10*page || s.StalledBytes != 6*page {
		t.Fatalf("%+v", s)
	}
	r.must(r.Restored(a.ranks[0].id, begun.Lease, 0, true, page, all(6)))
	r.must(r.Release(a.scheduler.id, ready.Lease, wire.AllRanks))
	r.check()
}

// A connection that the Manager gave up may have held a begin that nobody read: the workers copy although the lease looks unbegun.
func TestBrokenConnectionOfADeadSchedulerMayHaveBegun(t *testing.T) {
	for _, broken := range []bool{false, true} {
		r := newRig(t, Config{PoolBytes: 16 * mib})
		e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterHost))
		r.publish(e, keysOf(0, 4))
		lease := r.query(e, keysOf(0, 4))
		r.must(r.Restored(e.ranks[0].id, lease.Lease, 0, true, page, all(1)))
		want := uint64(0)
		if broken {
			r.BreakSession(e.scheduler.id)
			want = 4 * 2 * page
		} else {
			r.CloseSession(e.scheduler.id)
		}
		r.ProcessExited(e.scheduler.process)
		r.check()
		if s := r.Stats(); s.QueryReservedByPhase["restoring"] != want {
			t.Fatalf("broken %v: %+v", broken, s)
		}
		r.kill(e.ranks[0])
		r.kill(e.ranks[1])
		if s := r.Stats(); s.Leases != 0 || s.Instances != 0 {
			t.Fatalf("%+v", s)
		}
		r.check()
	}
}

// A client cannot know which of its last reports were read, so a session that resumed may say all of them again, even when the lease or
// the reservation has ended by then. A session that did not resume may not.
func TestEchoesAfterAResume(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterHost))
	r.publish(e, keysOf(0, 4))
	lease := r.query(e, keysOf(0, 4))
	r.must(r.Begin(e.scheduler.id, lease.Lease, wire.AllRanks, 4))
	open := r.reserve(e, keysOf(20, 2))
	r.must(r.Restored(e.ranks[0].id, lease.Lease, 0, true, page, all(1)))
	r.must(r.Committed(e.ranks[0].id, open.Reservation, 0, all(1)))
	r.CloseSession(e.ranks[0].id)
	now := r.connect(e.ranks[0].process, wire.RoleWorker)
	_, _, err := r.Resume(now.id, e.ranks[0].token, []uint64{lease.Lease}, []uint64{open.Reservation})
	r.must(err)

	r.must(r.Restored(now.id, lease.Lease, 0, true, 4*page, all(4)))
	if s := r.Stats(); s.LoadBytesTotal != page+3*page {
		t.Fatalf("an echo was credited twice: %d bytes", s.LoadBytesTotal)
	}
	r.must(r.Restored(now.id, lease.Lease, 0, true, 4*page, all(4)))
	r.must(r.Committed(now.id, open.Reservation, 0, all(2)))
	r.must(r.Restored(e.ranks[1].id, lease.Lease, 1, true, page, all(4)))
	r.must(r.Committed(e.ranks[1].id, open.Reservation, 1, all(2)))
	if s := r.Stats(); s.Leases != 0 || s.Reservations != 0 {
		t.Fatalf("%+v", s)
	}
	r.must(r.Restored(now.id, lease.Lease, 0, true, 4*page, all(4)))
	r.must(r.Committed(now.id, open.Reservation, 0, all(2)))
	r.fails(r.Restored(e.ranks[1].id, lease.Lease, 1, true, page, all(4)), wire.StatusUnknown)
	r.fails(r.Committed(e.ranks[1].id, open.Reservation, 1, all(2)), wire.StatusUnknown)
	if s := r.Stats(); s.LoadBytesTotal != 5*page || s.PageInsertionsTotal != 6 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

// A begin may be lost with its connection, and its client cannot know it: after a resume it is said again, whether it was read or not, and
// whether the lease still lives or not.
func TestBeginSaidAgainAfterAResume(t *testing.T) {
	for _, read := range []bool{false, true} {
		for _, reports := range []int{0, 1, 2} { // ranks that reported before the begin is said again
			r := newRig(t, Config{PoolBytes: 16 * mib})
			e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterHost))
			r.publish(e, keysOf(0, 4))
			lease := r.query(e, keysOf(0, 4))
			if read {
				r.must(r.Begin(e.scheduler.id, lease.Lease, wire.AllRanks, 3))
			}
			r.BreakSession(e.scheduler.id)
			now := r.connect(e.scheduler.process, wire.RoleScheduler)
			took, _, err := r.Resume(now.id, e.scheduler.token, []uint64{lease.Lease}, nil)
			r.must(err)
			if len(took) != 1 {
				t.Fatalf("took %v", took)
			}
			for rank := range reports {
				r.must(r.Restored(e.ranks[rank].id, lease.Lease, uint16(rank), true, page, all(3)))
			}
			r.must(r.Begin(now.id, lease.Lease, wire.AllRanks, 3))
			r.must(r.Begin(now.id, lease.Lease, wire.AllRanks, 3))
			r.check()
			for rank := reports; rank < 2; rank++ {
				r.must(r.Restored(e.ranks[rank].id, lease.Lease, uint16(rank), true, page, all(3)))
			}
			if s := r.Stats(); s.Leases != 0 || s.QueryReservedBytes != 0 || s.LoadBytesTotal != 2*page {
				t.Fatalf("begin read before %v, %d reports before the second: %+v", read, reports, s)
			}
			r.check()
		}
	}
}

// The exit of the last writer may end a reservation while its scheduler gives the same pages up.
func TestAbandonThatCrossesTheDeathOfItsRanks(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	open := r.reserve(e, keysOf(0, 2))
	r.kill(e.ranks[0])
	r.must(r.Abandoned(e.scheduler.id, open.Reservation, wire.AllRanks, all(2)))
	if s := r.Stats(); s.PoolUsedBytes != 0 || s.LateReportsTotal != 1 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestBeginForARankThatDied(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterHost))
	r.publish(e, keysOf(0, 4))
	lease := r.query(e, keysOf(0, 4))
	r.kill(e.ranks[0])
	if r.Stats().Leases != 1 {
		t.Fatal("an unbegun lease is its owner's, not its dead rank's")
	}
	r.must(r.Begin(e.scheduler.id, lease.Lease, wire.AllRanks, 4))
	r.check()
	r.must(r.Restored(e.ranks[1].id, lease.Lease, 1, true, page, all(4)))
	if r.Stats().Leases != 0 {
		t.Fatal("the lease waits for the report of a rank that was dead when it was begun")
	}
	r.check()
}

func TestResumedLeaseIsAskedBackAnew(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 4))
	lease := r.query(e, keysOf(0, 4))
	r.clock.forward(time.Minute)
	r.Tick()
	r.BreakSession(e.scheduler.id) // the revoke was not read
	now := r.connect(e.scheduler.process, wire.RoleScheduler)
	_, _, err := r.Resume(now.id, e.scheduler.token, []uint64{lease.Lease}, nil)
	r.must(err)
	r.Tick()
	if ids := now.queue.take(NoticeRevoke); len(ids) != 1 || ids[0] != lease.Lease {
		t.Fatalf("revokes %v", ids)
	}
	r.must(r.Revoked(now.id, lease.Lease, true))
	if r.Stats().Leases != 0 {
		t.Fatal("the lease was not given back")
	}
	r.check()
}

// The begin was lost with the connection, its copy ended, and the scheduler knows that from the engine: it does not name the lease. The worker's report is
// late then, and no violation.
func TestReportOfALeaseThatAResumedSchedulerDoesNotName(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, writers(wire.WriterHost, wire.WriterHost))
	r.publish(e, keysOf(0, 8))
	lost, half := r.query(e, keysOf(0, 4)), r.query(e, keysOf(4, 4))
	r.must(r.Begin(e.scheduler.id, half.Lease, 0, 4))
	r.BreakSession(e.scheduler.id)
	now := r.connect(e.scheduler.process, wire.RoleScheduler)
	_, _, err := r.Resume(now.id, e.scheduler.token, nil, nil)
	r.must(err)
	r.must(r.Restored(e.ranks[0].id, lost.Lease, 0, true, page, all(4)))
	r.must(r.Restored(e.ranks[1].id, half.Lease, 1, true, page, all(4)))
	if s := r.Stats(); s.Leases != 1 || s.LoadBytesTotal != 0 || s.LateReportsTotal != 2 {
		t.Fatalf("%+v", s)
	}
	r.must(r.Restored(e.ranks[0].id, half.Lease, 0, true, page, all(4)))
	r.fails(r.Restored(e.ranks[0].id, lost.Lease+1, 0, true, page, all(4)), wire.StatusUnknown)
	r.check()
}
