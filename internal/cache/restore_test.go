package cache

import (
	"testing"
	"time"

	"orbitkv/internal/wire"
)

func TestPublishThenRestore(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 64 * mib})
	e := r.engine("a", 100, one(100*kib))
	if e.ns.PageBytes != 100*kib || len(e.ns.PartBytes) != 1 || e.ns.Epoch != 0 {
		t.Fatalf("geometry %+v", e.ns)
	}
	keys := keysOf(0, 10)
	got := r.publish(e, keys)
	if got.Pages != 10 || len(got.Runs) != 1 || got.Runs[0].Count != 10 || len(got.Grants) != 1 {
		t.Fatalf("reserved %+v", got)
	}
	r.check()
	if ids := e.scheduler.queue.take(NoticeSealed); len(ids) != 1 || ids[0] != got.Reservation {
		t.Fatalf("notices %v", ids)
	}
	result := r.query(e, keysOf(0, 12))
	if result.Outcome != wire.OutcomeReady || result.Pages != 10 || result.Lease == 0 || result.Runs[0] != got.Runs[0] {
		t.Fatalf("result %+v", result)
	}
	r.check()
	r.restore(e, result)
	r.check()
	stats := r.Stats()
	if stats.LoadBytesTotal != 10 || stats.QueryReservedBytes != 0 || stats.Leases != 0 || stats.PageHitsTotal != 10 || stats.PageMissesTotal != 2 ||
		stats.SaveBytesTotal != 1000*kib || stats.OperationsReady != 0 {
		t.Fatalf("stats %+v", stats)
	}
}

func TestPagesBeyondABeginAreReleased(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	r.publish(e, keysOf(0, 8))
	got := r.query(e, keysOf(0, 8))
	r.must(r.Begin(e.scheduler.id, got.Lease, 0, 3))
	if s := r.Stats(); s.QueryReservedBytes != 8*2*page || s.OperationsReady != 1 {
		t.Fatal("the other rank may still begin all pages")
	}
	r.must(r.Begin(e.scheduler.id, got.Lease, 1, 5))
	if s := r.Stats(); s.QueryReservedByPhase["restoring"] != 5*2*page || s.OperationsReady != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, true, 5*page, all(5)))
	if s := r.Stats(); s.QueryReservedBytes != 3*2*page {
		t.Fatalf("charged %d bytes with rank 0 copying three pages", s.QueryReservedBytes)
	}
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, false, page, all(1)))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, 2*page, []wire.Range{{First: 1, Count: 2}}))
	s := r.Stats()
	if s.Leases != 0 || s.QueryReservedBytes != 0 || s.LoadBytesTotal != 7*page || s.LoadFailuresTotal != 1 {
		t.Fatalf("%+v", s)
	}
	if n := r.found(e, keysOf(0, 8)); n != 8 {
		t.Fatalf("a failed copy took pages away: %d left", n)
	}
	r.check()
}

func TestReportsThatBreakTheirLease(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	r.publish(e, keysOf(0, 4))
	got := r.query(e, keysOf(0, 4))
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, 3))
	rank := e.ranks[0].id
	r.fails(r.Restored(rank, got.Lease, 0, true, page+1, all(1)), wire.StatusTooLarge)
	r.fails(r.Restored(rank, got.Lease, 0, true, page, all(4)), wire.StatusMalformed)
	r.fails(r.Restored(rank, got.Lease, wire.AllRanks, true, page, all(3)), wire.StatusUnknown)
	r.must(r.Restored(rank, got.Lease, 0, true, page, []wire.Range{{First: 1, Count: 1}}))
	r.fails(r.Restored(rank, got.Lease, 0, true, page, all(2)), wire.StatusConflict)
	if s := r.Stats(); s.LoadBytesTotal != page {
		t.Fatalf("a refused report was credited: %d bytes", s.LoadBytesTotal)
	}
	r.must(r.Restored(rank, got.Lease, 0, true, page, []wire.Range{{First: 0, Count: 1}, {First: 2, Count: 1}}))
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, true, page, all(3)))
	r.fails(r.Restored(rank, got.Lease, 0, true, page, all(1)), wire.StatusUnknown)
	r.must(r.Release(e.scheduler.id, got.Lease, wire.AllRanks)) // crosses the end of the lease
	r.check()
}

func TestReleaseAndBeginOfWhatIsBegun(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	r.publish(e, keysOf(0, 4))
	got := r.query(e, keysOf(0, 4))
	r.must(r.Begin(e.scheduler.id, got.Lease, 0, 4))
	r.must(r.Begin(e.scheduler.id, got.Lease, 0, 4))
	r.fails(r.Begin(e.scheduler.id, got.Lease, 0, 3), wire.StatusConflict)
	r.fails(r.Release(e.scheduler.id, got.Lease, 0), wire.StatusConflict)
	r.must(r.Release(e.scheduler.id, got.Lease, wire.AllRanks)) // rank 1 alone
	if s := r.Stats(); s.Leases != 1 || s.QueryReservedByPhase["restoring"] != 4*2*page {
		t.Fatalf("%+v", s)
	}
	r.fails(r.Begin(e.scheduler.id, got.Lease, 1, 4), wire.StatusConflict)
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, 0, all(4)))
	if r.Stats().Leases != 0 {
		t.Fatal("the lease outlived its last consumer")
	}
	r.check()
}

func TestOneRankMayEndBeforeAnotherBegins(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	r.publish(e, keysOf(0, 4))
	got := r.query(e, keysOf(0, 4))
	r.must(r.Begin(e.scheduler.id, got.Lease, 0, 4))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, page, all(4)))
	if s := r.Stats(); s.QueryReservedByPhase["restoring"] != 4*2*page {
		t.Fatalf("%+v", s)
	}
	r.clock.forward(time.Hour)
	r.Tick()
	if ids := e.scheduler.queue.take(NoticeRevoke); len(ids) != 0 {
		t.Fatalf("a lease that was begun was asked back: %v", ids)
	}
	r.check()
	r.must(r.Begin(e.scheduler.id, got.Lease, 1, 2))
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, true, page, all(2)))
	if r.Stats().Leases != 0 {
		t.Fatal("the lease did not end")
	}
	r.check()
}

// The reports of a worker and the begin of its scheduler travel on two sockets, so the reports may be read first.
func TestReportBeforeItsBegin(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	r.publish(e, keysOf(0, 70))
	got := r.query(e, keysOf(0, 70))
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, true, page, []wire.Range{{First: 1, Count: 69}})) // the last page will not be begun
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, 69))
	r.check()
	r.fails(r.Restored(e.ranks[1].id, got.Lease, 1, true, page, []wire.Range{{First: 68, Count: 1}}), wire.StatusConflict)
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, true, page, all(1)))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, page, []wire.Range{{First: 0, Count: 68}}))
	if r.Stats().Leases != 1 {
		t.Fatal("the lease ended before rank 0 reported its last page")
	}
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, page, []wire.Range{{First: 68, Count: 1}}))
	if r.Stats().Leases != 0 {
		t.Fatal("the early report did not count")
	}
	r.check()
}

func TestWarmedPagesResolveOnce(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	for i := range 4 {
		if r.warm(e, keyOf(i)) == nil {
			t.Fatal("no room")
		}
	}
	footprint := e.ns.PageBytes
	got := r.query(e, keysOf(0, 3))
	if s := r.Stats(); s.WarmupPendingBytes != 4*footprint || s.ResidentPages["retained"] != 3 || s.PagePromotionsTotal != 3 {
		t.Fatalf("a lease resolved a page, or demand did not promote: %+v", s)
	}
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, 3))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, false, 0, all(1)))
	if s := r.Stats(); s.WarmupRestoredBytesTotal != 0 {
		t.Fatal("a failed copy was credited")
	}
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, true, 1, all(2)))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, 1, []wire.Range{{First: 1, Count: 1}}))
	if s := r.Stats(); s.WarmupRestoredBytesTotal != 2*footprint || s.WarmupPendingBytes != 2*footprint {
		t.Fatalf("%+v", s)
	}
	r.Cleanup()
	if s := r.Stats(); s.WarmupUnusedBytesTotal != footprint || s.WarmupPendingBytes != footprint {
		t.Fatalf("page 2 is referenced and undecided, page 3 is gone: %+v", s)
	}
	r.must(r.Restored(e.ranks[1].id, got.Lease, 1, false, 0, []wire.Range{{First: 2, Count: 1}}))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, 1, []wire.Range{{First: 2, Count: 1}}))
	if s := r.Stats(); s.WarmupRestoredBytesTotal != 3*footprint || s.WarmupPendingBytes != 0 || s.PoolUsedBytes != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}
