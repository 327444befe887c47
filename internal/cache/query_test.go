package cache

import (
	"testing"
	"time"

	"orbitkv/internal/wire"
)

const page = 64 * kib

// submit is a query with explicit operation and revision.
func (r *rig) submit(e *engine, operation uint64, revision uint32, request string, keys []wire.Key) (Result, error) {
	return r.SubmitQuery(e.scheduler.id, Query{
		Operation: operation, Revision: revision, Namespace: e.ns.Namespace, Instance: e.id, Request: request, Keys: keys,
	})
}

func (r *rig) outcome(e *engine, operation uint64, revision uint32, want wire.Outcome) Result {
	r.t.Helper()
	got, err := r.PollQuery(e.scheduler.id, operation, revision)
	r.must(err)
	if got.Outcome != want {
		r.t.Fatalf("poll of %d/%d: %v, want %v", operation, revision, got.Outcome, want)
	}
	return got
}

func TestLongestContiguousPrefix(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 5))
	r.publish(e, keysOf(6, 4))
	for from, want := range map[int]int{0: 5, 4: 1, 5: 0, 6: 4, 9: 1, 10: 0} {
		if got := r.found(e, keysOf(from, 20)); got != want {
			t.Errorf("prefix from %d: %d pages, want %d", from, got, want)
		}
	}
	r.check()
}

func TestReservedPagesAreInvisibleUntilEveryByteIsThere(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	got := r.reserve(e, keysOf(0, 4))
	if n := r.found(e, keysOf(0, 4)); n != 0 {
		t.Fatalf("%d reserved pages are visible", n)
	}
	r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, []wire.Range{{First: 0, Count: 1}, {First: 2, Count: 2}}))
	if n := r.found(e, keysOf(0, 4)); n != 1 {
		t.Fatalf("%d pages are visible, one leading page is committed", n)
	}
	r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, []wire.Range{{First: 1, Count: 1}}))
	if n := r.found(e, keysOf(0, 4)); n != 4 {
		t.Fatalf("%d pages are visible", n)
	}
	r.check()
}

func TestOperationsAndRevisions(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 8))

	first, err := r.submit(e, 10, 2, "x", keysOf(0, 4))
	r.must(err)
	again, err := r.submit(e, 10, 2, "x", keysOf(0, 4))
	r.must(err)
	if again.Lease != first.Lease || again.Pages != 4 || len(again.Runs) != 1 || again.Runs[0] != first.Runs[0] {
		t.Fatalf("a repetition answered %+v, the first was %+v", again, first)
	}
	if polled := r.outcome(e, 10, 2, wire.OutcomeReady); polled.Lease != first.Lease {
		t.Fatal("a poll did not read the operation")
	}
	_, err = r.submit(e, 10, 2, "x", keysOf(0, 5))
	r.fails(err, wire.StatusConflict)
	_, err = r.submit(e, 10, 3, "another request", keysOf(0, 5))
	r.fails(err, wire.StatusConflict)
	if stale, err := r.submit(e, 10, 1, "x", keysOf(0, 4)); err != nil || stale.Outcome != wire.OutcomeStale {
		t.Fatalf("an older revision: %v %v", stale.Outcome, err)
	}

	second, err := r.submit(e, 10, 3, "x", keysOf(0, 6))
	r.must(err)
	if second.Pages != 6 || second.Lease == first.Lease || r.Stats().Leases != 1 {
		t.Fatalf("the newer revision did not replace the older: %+v", second)
	}
	r.outcome(e, 10, 2, wire.OutcomeStale)
	r.check()

	r.must(r.CancelQuery(e.scheduler.id, 10, 3))
	if r.Stats().Leases != 0 || r.Stats().QueryReservedBytes != 0 {
		t.Fatal("cancel kept the lease")
	}
	for _, operation := range []uint64{10, 9} {
		if got, err := r.submit(e, operation, 9, "x", keysOf(0, 4)); err != nil || got.Outcome != wire.OutcomeStale {
			t.Fatalf("retired operation %d was revived: %v %v", operation, got.Outcome, err)
		}
	}
	_, err = r.PollQuery(e.scheduler.id, 11, 1)
	r.fails(err, wire.StatusUnknown)
	_, err = r.submit(e, 12, 0, "x", nil)
	r.fails(err, wire.StatusMalformed)
	r.check()
}

func TestNothingFoundRetiresAtOnce(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	got := r.query(e, keysOf(0, 9))
	if got.Outcome != wire.OutcomeReady || got.Lease != 0 || got.Pages != 0 || r.Stats().OperationsReady != 0 {
		t.Fatalf("%+v", got)
	}
	r.outcome(e, got.Operation, 1, wire.OutcomeStale)
}

func TestForeignIdsAreRefused(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	a, b := r.engine("a", 100, one(page)), r.engine("b", 200, one(page))
	got := r.publish(a, keysOf(0, 4))
	lease := r.query(a, keysOf(0, 4))
	open := r.reserve(a, keysOf(10, 2))

	_, err := r.SubmitQuery(b.scheduler.id, Query{Operation: 1, Revision: 1, Namespace: a.ns.Namespace, Instance: "a", Keys: keysOf(0, 4)})
	r.fails(err, wire.StatusUnknown)
	_, err = r.SubmitQuery(a.ranks[0].id, Query{Operation: 1, Revision: 1, Namespace: a.ns.Namespace, Instance: "a", Keys: keysOf(0, 4)})
	r.fails(err, wire.StatusUnknown)
	_, err = r.SubmitQuery(a.scheduler.id, Query{Operation: 50, Revision: 1, Namespace: 999, Instance: "a"})
	r.fails(err, wire.StatusUnknown)
	r.fails(r.Begin(b.scheduler.id, lease.Lease, wire.AllRanks, 1), wire.StatusUnknown)
	r.fails(r.Begin(a.scheduler.id, lease.Lease+1, wire.AllRanks, 1), wire.StatusUnknown)
	r.fails(r.Release(b.scheduler.id, lease.Lease, wire.AllRanks), wire.StatusUnknown)
	r.fails(r.Revoked(b.scheduler.id, lease.Lease, true), wire.StatusUnknown)
	r.fails(r.Restored(b.ranks[0].id, lease.Lease, 0, true, 1, all(1)), wire.StatusUnknown)
	r.fails(r.Restored(a.ranks[0].id, lease.Lease, 1, true, 1, all(1)), wire.StatusUnknown)
	r.fails(r.Begin(a.scheduler.id, lease.Lease, wire.AllRanks, 5), wire.StatusTooLarge)
	r.fails(r.Begin(a.scheduler.id, lease.Lease, 1, 1), wire.StatusTooLarge)
	r.fails(r.Committed(b.ranks[0].id, open.Reservation, 0, all(2)), wire.StatusUnknown)
	r.fails(r.Committed(a.scheduler.id, open.Reservation, 0, all(2)), wire.StatusUnknown)
	r.fails(r.Committed(a.ranks[0].id, open.Reservation, 0, all(3)), wire.StatusMalformed)
	r.fails(r.Abandoned(b.scheduler.id, open.Reservation, wire.AllRanks, all(2)), wire.StatusUnknown)
	r.fails(r.Committed(a.ranks[0].id, got.Reservation, 0, all(4)), wire.StatusUnknown)
	r.fails(r.Detach(b.scheduler.id, "a"), wire.StatusUnknown)
	r.check()
	if r.Stats().Leases != 1 || r.Stats().Reservations != 1 {
		t.Fatal("a refused message changed something")
	}
	if r.Stats().ViolationsTotal["begin"] != 4 {
		t.Fatalf("violations %v", r.Stats().ViolationsTotal)
	}
}

func TestDemandIsCutToThePrefixThatFits(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 40 * page, InstanceBudgetBytes: 10*page + page/2})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 20))
	got := r.query(e, keysOf(0, 20))
	if got.Outcome != wire.OutcomeReady || !got.Cut || got.Pages != 10 {
		t.Fatalf("%+v", got)
	}
	if r.Stats().QueryReservedBytes != 10*page || r.Stats().QueryBudgetBypassesTotal != 1 {
		t.Fatal("the cut demand is charged wrongly")
	}
	r.must(r.Release(e.scheduler.id, got.Lease, wire.AllRanks))
	if got := r.query(e, keysOf(0, 10)); got.Cut || got.Pages != 10 {
		t.Fatalf("a demand that fits was cut: %+v", got)
	}
	r.check()
}

func TestChargeIsOncePerOperationNotPerRank(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page, page}})
	r.publish(e, keysOf(0, 4))
	r.query(e, keysOf(0, 6))
	if got, want := r.Stats().QueryReservedBytes, 4*3*page; got != want {
		t.Fatalf("charged %d bytes, want %d", got, want)
	}
	r.query(e, keysOf(0, 4))
	if got, want := r.Stats().QueryReservedBytes, 2*4*3*page; got != want {
		t.Fatalf("a second owner charges its own: %d, want %d", got, want)
	}
	r.check()
}

func TestWaitingQueryIsServedWhenBytesReturn(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 10 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 10))
	first := r.query(e, keysOf(0, 8))
	keys := keysOf(0, 6)
	second := r.query(e, keys)
	clear(keys) // the caller's keys are only read during the call
	third := r.query(e, keysOf(0, 2))
	if second.Outcome != wire.OutcomeWaiting || third.Outcome != wire.OutcomeWaiting {
		t.Fatalf("outcomes %v and %v: the later one may not overtake", second.Outcome, third.Outcome)
	}
	missing := r.query(e, keysOf(100, 2))
	r.check()
	if r.Stats().OperationsWaiting != 3 || r.Stats().QueryBudgetWaitsTotal != 3 {
		t.Fatalf("stats %+v", r.Stats())
	}
	e.scheduler.queue.take(NoticeQuery)

	r.restore(e, first)
	if ids := e.scheduler.queue.take(NoticeQuery); len(ids) != 3 || ids[0] != second.Operation {
		t.Fatalf("notices %v", ids)
	}
	if got := r.outcome(e, second.Operation, 1, wire.OutcomeReady); got.Pages != 6 {
		t.Fatalf("%+v", got)
	}
	if got := r.outcome(e, missing.Operation, 1, wire.OutcomeReady); got.Lease != 0 {
		t.Fatalf("%+v", got)
	}
	r.outcome(e, missing.Operation, 1, wire.OutcomeStale)
	r.check()
}

func TestALaterQueryDoesNotOvertakeOneThatWaitsForTheGlobalBudget(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 10 * page})
	a, b, c := r.engine("a", 100, one(page)), r.engine("b", 200, one(page)), r.engine("c", 300, one(page))
	r.publish(a, keysOf(0, 8))
	held := r.query(a, keysOf(0, 8))
	first, second := r.query(b, keysOf(0, 6)), r.query(c, keysOf(0, 2))
	if first.Outcome != wire.OutcomeWaiting || second.Outcome != wire.OutcomeWaiting {
		t.Fatalf("outcomes %v and %v: small demands would starve a large one", first.Outcome, second.Outcome)
	}
	r.restore(a, held)
	r.outcome(b, first.Operation, 1, wire.OutcomeReady)
	r.outcome(c, second.Operation, 1, wire.OutcomeReady)
	r.check()
}

func TestOneInstanceOverItsBudgetDoesNotHoldUpAnother(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 20 * page, InstanceBudgetBytes: 8 * page})
	a, b := r.engine("a", 100, one(page)), r.engine("b", 200, one(page))
	r.publish(a, keysOf(0, 8))
	r.query(a, keysOf(0, 6))
	if got := r.query(a, keysOf(0, 6)); got.Outcome != wire.OutcomeWaiting {
		t.Fatalf("%+v", got)
	}
	if got := r.query(b, keysOf(0, 8)); got.Outcome != wire.OutcomeReady || got.Pages != 8 {
		t.Fatalf("%+v", got)
	}
	r.check()
}

func TestTablesOfOperationsAreBounded(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 256 * mib})
	var engines []*engine
	for i := range 9 {
		engines = append(engines, r.engine(string(rune('a'+i)), 100*(i+1), one(page)))
	}
	r.publish(engines[0], keysOf(0, 1))
	var leases []Result
	for _, e := range engines[:8] {
		for i := range DefaultSessionOperations {
			got := r.query(e, keysOf(0, 1))
			if got.Outcome != wire.OutcomeReady {
				t.Fatalf("query %d of %s: %v", i, e.id, got.Outcome)
			}
			leases = append(leases, got)
		}
		if got := r.query(e, keysOf(0, 1)); got.Outcome != wire.OutcomeBusy {
			t.Fatalf("query 129 of one session: %v", got.Outcome)
		}
	}
	if got := r.query(engines[8], keysOf(0, 1)); got.Outcome != wire.OutcomeBusy {
		t.Fatalf("query 1,025 in all: %v", got.Outcome)
	}
	if r.Stats().BusyTotal != 9 || r.Stats().Leases != 1024 {
		t.Fatalf("stats %+v", r.Stats())
	}
	// Messages that end something never count, and make room again.
	r.must(r.Begin(engines[0].scheduler.id, leases[0].Lease, wire.AllRanks, 1))
	if got := r.query(engines[0], keysOf(0, 1)); got.Outcome != wire.OutcomeReady {
		t.Fatalf("after a begin: %v", got.Outcome)
	}
	r.check()
}

func TestBusyKeepsNothing(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, SessionOperations: 1})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 2))
	held := r.query(e, keysOf(0, 1))
	busy := r.query(e, keysOf(0, 2))
	r.must(r.Release(e.scheduler.id, held.Lease, wire.AllRanks))
	got, err := r.submit(e, busy.Operation, 1, "again", keysOf(0, 2))
	r.must(err)
	if busy.Outcome != wire.OutcomeBusy || got.Outcome != wire.OutcomeReady || got.Pages != 2 {
		t.Fatalf("%v, then %v", busy.Outcome, got.Outcome)
	}
}

func TestRevoke(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 8))
	idle, used := r.query(e, keysOf(0, 8)), r.query(e, keysOf(0, 8))
	r.clock.forward(59 * time.Second)
	r.Heard(e.scheduler.id)
	r.Tick()
	if ids := e.scheduler.queue.take(NoticeRevoke); len(ids) != 0 {
		t.Fatalf("asked back after 59 s: %v", ids)
	}
	r.clock.forward(time.Second)
	r.Tick()
	r.Tick()
	if ids := e.scheduler.queue.take(NoticeRevoke); len(ids) != 2 {
		t.Fatalf("asked back %v, want both once", ids)
	}
	r.clock.forward(24 * time.Hour)
	r.Tick()
	r.check()
	if r.Stats().Leases != 2 {
		t.Fatal("time ended a lease")
	}

	r.Heard(e.ranks[0].id)
	r.must(r.Revoked(e.scheduler.id, idle.Lease, true))
	r.outcome(e, idle.Operation, 1, wire.OutcomeYielded)
	r.must(r.Begin(e.scheduler.id, used.Lease, wire.AllRanks, 8)) // the begin was on the way when the revoke came
	r.must(r.Revoked(e.scheduler.id, used.Lease, false))
	r.must(r.Revoked(e.scheduler.id, idle.Lease, true)) // an answer that crossed the end
	r.fails(r.Revoked(e.scheduler.id, used.Lease, true), wire.StatusConflict)
	stats := r.Stats()
	if stats.Leases != 1 || stats.QueryReservedByPhase["restoring"] != 8*page || stats.LateReportsTotal != 1 {
		t.Fatalf("stats %+v", stats)
	}
	r.clock.forward(2 * time.Minute)
	r.Heard(e.scheduler.id)
	r.Tick()
	if ids := e.scheduler.queue.take(NoticeRevoke); len(ids) != 0 {
		t.Fatalf("a begun lease was asked back: %v", ids)
	}
	r.check()
}

func TestRevokeThatFindsTheQueueFullIsSentAgain(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 1))
	got := r.query(e, keysOf(0, 1))
	e.scheduler.queue.full = true
	r.clock.forward(time.Minute)
	r.Tick()
	e.scheduler.queue.full = false
	r.Tick()
	if ids := e.scheduler.queue.take(NoticeRevoke); len(ids) != 1 || ids[0] != got.Lease {
		t.Fatalf("revokes %v", ids)
	}
	if r.Stats().NoticesDroppedTotal == 0 {
		t.Fatal("a dropped notice was not counted")
	}
}

func TestLargestOperation(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 512 * mib, QueryBudgetBytes: 512 * mib})
	e := r.engine("a", 100, one(4*kib))
	keys := keysOf(0, wire.OperationKeysMax)
	got := r.publish(e, keys)
	if got.Pages != wire.OperationKeysMax || len(got.Runs) != 1 {
		t.Fatalf("%d pages in %d runs", got.Pages, len(got.Runs))
	}
	lease := r.query(e, keys)
	if lease.Pages != wire.OperationKeysMax || len(lease.Runs) != 1 {
		t.Fatalf("%d pages in %d runs", lease.Pages, len(lease.Runs))
	}
	r.restore(e, lease)
	r.check()
	_, err := r.submit(e, 1<<40, 1, "x", append(keys, keyOf(-1)))
	r.fails(err, wire.StatusTooLarge)
}

func TestTheKeysOfWaitingQueriesAreBounded(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 4 * page, QueryBudgetBytes: 2 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 2))
	holds := r.query(e, keysOf(0, 2))
	keys := keysOf(0, wire.OperationKeysMax)
	for n := 1; n <= waitingBytesMax/(wire.OperationKeysMax*wire.KeyBytes); n++ {
		if got := r.query(e, keys); got.Outcome != wire.OutcomeWaiting {
			t.Fatalf("query %d: %v, want waiting", n, got.Outcome)
		}
	}
	if got := r.query(e, keys[:1]); got.Outcome != wire.OutcomeBusy {
		t.Fatalf("a query without room for its keys: %v, want busy", got.Outcome)
	}
	r.check()
	e.operation-- // the same one again
	r.must(r.Release(e.scheduler.id, holds.Lease, wire.AllRanks))
	for operation := holds.Operation + 1; operation <= e.operation; operation++ {
		r.must(r.CancelQuery(e.scheduler.id, operation, 1))
	}
	r.check()
	if got := r.query(e, keys[:2]); got.Outcome != wire.OutcomeReady || got.Pages != 2 {
		t.Fatalf("when the others have ended: %+v", got)
	}
	r.check()
}
