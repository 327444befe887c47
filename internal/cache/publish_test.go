package cache

import (
	"slices"
	"testing"

	"orbitkv/internal/wire"
)

func TestGrantsSayWhatEachKeyIs(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 8 * page, QueryBudgetBytes: 16 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 2))
	lease := r.query(e, keysOf(0, 2)) // so that reclaim finds no victim
	writing := r.reserve(e, keysOf(2, 3))
	got := r.reserve(e, keysOf(0, 12))
	want := []wire.GrantRun{
		{Grant: wire.GrantPresent, Count: 2},
		{Grant: wire.GrantBeingWritten, Count: 3},
		{Grant: wire.GrantGranted, Count: 3},
		{Grant: wire.GrantNoRoom, Count: 4},
	}
	if !slices.Equal(got.Grants, want) || got.Pages != 3 {
		t.Fatalf("%+v", got)
	}
	r.check()
	if none := r.reserve(e, keysOf(20, 2)); none.Reservation != 0 || none.Pages != 0 || none.Grants[0] != (wire.GrantRun{Grant: wire.GrantNoRoom, Count: 2}) {
		t.Fatalf("%+v", none)
	}
	r.commit(e, writing)
	r.commit(e, got)
	r.must(r.Release(e.scheduler.id, lease.Lease, wire.AllRanks))
	if n := r.found(e, keysOf(0, 12)); n != 8 {
		t.Fatalf("%d pages", n)
	}
	if r.Stats().PoolAllocFailuresTotal != 6 { // pages, not calls
		t.Fatalf("%d failures", r.Stats().PoolAllocFailuresTotal)
	}
}

func TestAKeyNamedTwiceTakesOnePage(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 8 * page})
	e := r.engine("a", 100, one(page))
	got := r.reserve(e, []wire.Key{keyOf(1), keyOf(1), keyOf(2), keyOf(1)})
	want := []wire.GrantRun{
		{Grant: wire.GrantGranted, Count: 1},
		{Grant: wire.GrantBeingWritten, Count: 1},
		{Grant: wire.GrantGranted, Count: 1},
		{Grant: wire.GrantBeingWritten, Count: 1},
	}
	if !slices.Equal(got.Grants, want) || r.Stats().PoolUsedBytes != 2*page {
		t.Fatalf("%+v, %d bytes used", got, r.Stats().PoolUsedBytes)
	}
	r.check()
}

func TestReserveOperationsAreAnsweredOnce(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 8 * page, SessionOperations: 2})
	e := r.engine("a", 100, one(page))
	first := r.reserve(e, keysOf(0, 1))
	_, err := r.Reserve(e.scheduler.id, Reserve{Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Instance: "a", Keys: keysOf(0, 1)})
	r.fails(err, wire.StatusStale)
	r.reserve(e, keysOf(1, 1))
	_, err = r.Reserve(e.scheduler.id, Reserve{Operation: 9, Revision: 1, Namespace: e.ns.Namespace, Instance: "a", Keys: keysOf(2, 1)})
	r.fails(err, wire.StatusBusy)
	r.commit(e, first)
	_, err = r.Reserve(e.scheduler.id, Reserve{Operation: 9, Revision: 1, Namespace: e.ns.Namespace, Instance: "a", Keys: keysOf(2, 1)})
	r.must(err)
	r.check()
}

func TestTwoRanksSeal(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{5 * kib, 3 * kib}})
	if e.ns.PageBytes != 12*kib || e.ns.Slices[1] != (wire.Slice{Rank: 1, Part: 0, Offset: 8 * kib, Bytes: 3 * kib}) {
		t.Fatalf("%+v", e.ns)
	}
	got := r.reserve(e, keysOf(0, 4))
	r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, all(4)))
	if n := r.found(e, keysOf(0, 4)); n != 0 {
		t.Fatalf("%d pages are visible with one of two slices", n)
	}
	r.must(r.Abandoned(e.ranks[1].id, got.Reservation, 1, []wire.Range{{First: 2, Count: 1}}))
	r.must(r.Committed(e.ranks[1].id, got.Reservation, 1, []wire.Range{{First: 0, Count: 2}, {First: 3, Count: 1}}))
	if n := r.found(e, keysOf(0, 4)); n != 2 {
		t.Fatalf("%d pages", n)
	}
	if r.Stats().PoolUsedBytes != 3*12*kib {
		t.Fatal("the page with an abandoned slice was not freed with its last writer")
	}
	r.fails(r.Committed(e.ranks[1].id, got.Reservation, 1, all(1)), wire.StatusUnknown)
	r.check()
}

func TestAbandonedSliceKeepsThePageUntilTheOtherWriterEnds(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	got := r.reserve(e, keysOf(0, 1))
	r.must(r.Abandoned(e.ranks[0].id, got.Reservation, 0, all(1)))
	again := r.reserve(e, keysOf(0, 1))
	if again.Pages != 1 || again.Runs[0].First == got.Runs[0].First {
		t.Fatalf("the key can be reserved anew, elsewhere: %+v", again)
	}
	if r.Stats().AbandonedBytes != 2*page {
		t.Fatal("the page was freed while rank 1 may write to it")
	}
	r.fails(r.Committed(e.ranks[0].id, got.Reservation, 0, all(1)), wire.StatusConflict)
	r.must(r.Committed(e.ranks[1].id, got.Reservation, 1, all(1)))
	if r.Stats().AbandonedBytes != 0 {
		t.Fatal("the page was not freed with its last writer")
	}
	r.commit(e, again)
	if n := r.found(e, keysOf(0, 1)); n != 1 {
		t.Fatal("the second publish is not visible")
	}
	r.check()
}

func TestAbandonForAllRanks(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	got := r.reserve(e, keysOf(0, 4))
	r.must(r.Committed(e.ranks[1].id, got.Reservation, 1, all(1)))
	r.fails(r.Abandoned(e.scheduler.id, got.Reservation, wire.AllRanks, all(2)), wire.StatusConflict)
	r.fails(r.Abandoned(e.ranks[0].id, got.Reservation, wire.AllRanks, []wire.Range{{First: 1, Count: 1}}), wire.StatusUnknown)
	r.must(r.Abandoned(e.scheduler.id, got.Reservation, wire.AllRanks, []wire.Range{{First: 1, Count: 3}}))
	if r.Stats().PoolUsedBytes != 2*page || r.Stats().Reservations != 1 {
		t.Fatalf("%+v", r.Stats())
	}
	r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, all(1)))
	if ids := e.scheduler.queue.take(NoticeSealed); len(ids) != 1 {
		t.Fatalf("notices %v", ids)
	}
	r.check()
}

func TestReplicatedContentHasOneSlice(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, 0, 0}})
	if len(e.ns.Slices) != 1 || e.ns.PageBytes != page {
		t.Fatalf("%+v", e.ns)
	}
	got := r.reserve(e, keysOf(0, 3))
	r.fails(r.Committed(e.ranks[1].id, got.Reservation, 1, all(3)), wire.StatusDenied)
	r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, all(3)))
	lease := r.query(e, keysOf(0, 3))
	r.must(r.Begin(e.scheduler.id, lease.Lease, wire.AllRanks, 3))
	for rank, worker := range e.ranks {
		if r.Stats().Leases != 1 {
			t.Fatalf("the lease ended before rank %d restored", rank)
		}
		r.must(r.Restored(worker.id, lease.Lease, uint16(rank), true, 3*page, all(3)))
	}
	if r.Stats().Leases != 0 || r.Stats().LoadBytesTotal != 9*page {
		t.Fatalf("%+v", r.Stats())
	}
	r.check()
}

func TestNewEpochWithReservationsInFlight(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	a, b := r.engine("a", 100, shape{slices: []uint64{page, page}}), r.engine("b", 200, shape{slices: []uint64{page, page}})
	if a.ns.Namespace != b.ns.Namespace {
		t.Fatal("two instances with equal facts do not share a namespace")
	}
	r.publish(a, keysOf(0, 2))
	flight := r.reserve(a, keysOf(2, 2))
	r.must(r.Committed(a.ranks[0].id, flight.Reservation, 0, all(2)))
	old := a.ns

	var err error
	a.ns, err = r.NewEpoch(a.scheduler.id, "a", 77)
	r.must(err)
	if a.ns.Namespace == old.Namespace || a.ns.Epoch != 77 {
		t.Fatalf("%+v", a.ns)
	}
	_, err = r.SubmitQuery(a.scheduler.id, Query{Operation: 50, Revision: 1, Namespace: old.Namespace, Instance: "a", Keys: keysOf(0, 2)})
	r.fails(err, wire.StatusStale)
	if n := r.found(a, keysOf(0, 4)); n != 0 {
		t.Fatalf("%d pages of the old epoch are reachable", n)
	}
	again := r.reserve(b, keysOf(2, 2)) // the other instance still has epoch zero, and may write what a no longer will
	if again.Pages != 2 {
		t.Fatalf("%+v", again)
	}
	r.check()
	r.must(r.Committed(a.ranks[1].id, flight.Reservation, 1, all(2)))
	r.commit(b, again)
	if n := r.found(b, keysOf(0, 4)); n != 4 {
		t.Fatalf("%d pages of epoch zero", n)
	}
	if r.Stats().AbandonedBytes != 0 || r.Stats().PoolUsedBytes != 4*2*page {
		t.Fatal("the pages of the reservation in flight were not freed at commit")
	}
	r.check()
	r.publish(a, keysOf(0, 3))
	if _, err = r.NewEpoch(a.scheduler.id, "a", 78); err != nil {
		t.Fatal(err)
	}
	if r.Stats().PoolUsedBytes != 4*2*page {
		t.Fatal("the pages of an epoch without users were not reclaimed at once")
	}
	_, err = r.NewEpoch(a.scheduler.id, "a", 0)
	r.fails(err, wire.StatusConflict)
	_, err = r.NewEpoch(a.ranks[0].id, "a", 5)
	r.fails(err, wire.StatusUnknown)
	r.check()
}

func TestNewEpochEndsWaitingQueries(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 4 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 4))
	held := r.query(e, keysOf(0, 4))
	waiting := r.query(e, keysOf(0, 4))
	_, err := r.NewEpoch(e.scheduler.id, "a", 9)
	r.must(err)
	r.outcome(e, waiting.Operation, 1, wire.OutcomeStale)
	r.restore(e, held) // what was leased before stays readable to its end
	r.check()
	if s := r.Stats(); s.Leases != 0 || s.OperationsWaiting != 0 {
		t.Fatalf("%+v", s)
	}
}
