package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

// A pool of 4 GiB holds 455 pages of 9 MiB, fewer than one batch of victims.
func TestSmallPoolIsNotEmptiedByOneReservation(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 4 << 30})
	e := r.engine("a", 100, one(9*mib))
	for from := 0; from < 455; from += 91 {
		if got := r.publish(e, keysOf(from, 91)); got.Pages != 91 {
			t.Fatalf("%d pages from %d", got.Pages, from)
		}
	}
	if s := r.Stats(); s.ResidentPages["retained"] != 455 || s.PageEvictionsTotal["retained"] != 0 {
		t.Fatalf("%+v", s)
	}
	if got := r.publish(e, keysOf(1000, 3)); got.Pages != 3 {
		t.Fatalf("%+v", got)
	}
	s := r.Stats()
	if evicted := s.PageEvictionsTotal["retained"]; evicted != 3 {
		t.Fatalf("%d pages were evicted for 3 that were wanted", evicted)
	}
	if s.EvictionReclaimedTotal != 3*9*mib {
		t.Fatalf("%d bytes reclaimed", s.EvictionReclaimedTotal)
	}
	r.check()
}

func TestVictimsAreTheTailOfWhatWasUsedLongestAgo(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 9 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 3))
	r.publish(e, keysOf(10, 3))
	r.publish(e, keysOf(20, 3))
	r.restore(e, r.query(e, keysOf(0, 3)))
	r.publish(e, keysOf(30, 4))
	for from, want := range map[int]int{0: 3, 10: 0, 20: 2, 30: 4} {
		if got := r.found(e, keysOf(from, 4)); got != want {
			t.Errorf("prefix from %d: %d pages are left, want %d", from, got, want)
		}
	}
	r.check()
}

func TestClassesAreVictimsInOrder(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 4 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 2))
	r.warm(e, keyOf(10))
	r.warm(e, keyOf(11))
	r.publish(e, keysOf(20, 2))
	if n := r.found(e, keysOf(0, 2)); n != 2 {
		t.Fatalf("retained pages went before reclaimable ones: %d left", n)
	}
	if s := r.Stats(); s.PageEvictionsTotal["reclaimable"] != 2 || s.WarmupUnusedBytesTotal != 2*page {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestReferencedPagesAreNeverVictims(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 8 * page, QueryBudgetBytes: 8 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 8))
	lease := r.query(e, keysOf(0, 6))
	if got := r.publish(e, keysOf(100, 8)); got.Pages != 2 {
		t.Fatalf("%d pages, two are not leased", got.Pages)
	}
	for _, run := range lease.Runs {
		if run.Count == 0 {
			t.Fatal("an empty run")
		}
	}
	r.check()
	r.restore(e, lease)
	if got := r.publish(e, keysOf(200, 8)); got.Pages != 8 {
		t.Fatalf("%d pages after the lease ended", got.Pages)
	}
	r.check()
}

func TestPoolSmallerThanAPage(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 8 * mib})
	small := r.engine("small", 200, shape{slices: []uint64{page}, facts: map[string]string{"model": "small"}})
	r.publish(small, keysOf(0, 10))
	e := r.engine("a", 100, one(9*mib))
	got := r.reserve(e, keysOf(0, 4))
	if got.Reservation != 0 || len(got.Grants) != 1 || got.Grants[0] != (wire.GrantRun{Grant: wire.GrantNoRoom, Count: 4}) {
		t.Fatalf("%+v", got)
	}
	if n := r.found(e, keysOf(0, 4)); n != 0 {
		t.Fatalf("%d pages", n)
	}
	if n := r.found(small, keysOf(0, 10)); n != 10 {
		t.Fatalf("pages were evicted for one that can never fit: %d left", n)
	}
	r.check()
}

func TestWithoutAMappedArenaThereIsNoRoomAndNoVictim(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 8 * page, QueryBudgetBytes: 8 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 8))
	late := r.engine("b", 200, shape{slices: []uint64{page}, facts: map[string]string{"model": "b"}, arenas: []uint16{}})
	if got := r.reserve(late, keysOf(0, 2)); got.Pages != 0 {
		t.Fatalf("%+v", got)
	}
	if n := r.found(e, keysOf(0, 8)); n != 8 {
		t.Fatalf("%d pages left", n)
	}
	r.check()
}

func TestVictimsLieWhereTheInstanceCanWrite(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 4 * page, QueryBudgetBytes: 16 * page})
	r.AddArena(1, -1, 4*page)
	a := r.engine("a", 100, shape{slices: []uint64{page}, arenas: []uint16{0, 1}})
	r.publish(a, keysOf(0, 4)) // in arena 0, used longest ago
	r.publish(a, keysOf(10, 4))
	b := r.engine("b", 200, shape{slices: []uint64{page}, facts: map[string]string{"model": "b"}, arenas: []uint16{1}})
	if got := r.publish(b, keysOf(0, 2)); got.Pages != 2 || got.Runs[0].First.Arena() != 1 {
		t.Fatalf("%+v", got)
	}
	if x, y := r.found(a, keysOf(0, 4)), r.found(a, keysOf(10, 4)); x != 4 || y != 2 {
		t.Fatalf("%d pages are left in the arena that b cannot use, %d in the other", x, y)
	}
	r.check()
}

// Free bytes in single pages do not make room for a page of three: reclaim goes by the largest contiguous extent.
func TestReclaimOfAFragmentedPool(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 100 * page})
	small := r.engine("small", 200, shape{slices: []uint64{page}, facts: map[string]string{"model": "small"}})
	r.publish(small, keysOf(0, 100))
	leases := []Result{}
	for i := 0; i < 100; i += 2 { // every second page is in use
		leases = append(leases, r.query(small, keysOf(i, 1)))
	}
	large := r.engine("large", 300, one(3*page))
	if got := r.publish(large, keysOf(0, 1)); got.Pages != 0 {
		t.Fatalf("%+v: no three free pages are adjacent", got)
	}
	if s := r.Stats(); s.PageEvictionsTotal["retained"] > reclaimEffort*3+3 {
		t.Fatalf("one reservation evicted %d pages", s.PageEvictionsTotal["retained"])
	}
	r.check()
	for _, l := range leases {
		r.must(r.Release(small.scheduler.id, l.Lease, wire.AllRanks))
	}
	tries := 1
	for ; r.publish(large, keysOf(0, 1)).Pages == 0; tries++ {
		if tries == 100/(reclaimEffort*3) {
			t.Fatalf("no room after %d reservations, each of which goes on where the last one stopped", tries)
		}
	}
	r.check()
}

func TestRestoredPrefixKeepsItsHead(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 4 * page, QueryBudgetBytes: 4 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 4))
	r.restore(e, r.query(e, keysOf(0, 4)))
	r.publish(e, keysOf(10, 2))
	if n := r.found(e, keysOf(0, 4)); n != 2 {
		t.Fatalf("%d leading pages are left of four, two were taken", n)
	}
	r.check()
}

func TestCleanupAndClear(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 10))
	lease := r.query(e, keysOf(0, 4))
	flight := r.reserve(e, keysOf(20, 2))
	got := r.Cleanup()
	want := CleanupReport{EvictedPages: 10, EvictedBytes: 10 * page, ReclaimedBytes: 6 * page, StillReferencedPages: 4}
	if got != want {
		t.Fatalf("%+v", got)
	}
	if s := r.Stats(); s.RetiredBytes != 4*page || s.ResidentBytes != 0 || s.EvictionsReferencedTotal != 4 {
		t.Fatalf("%+v", s)
	}
	r.check()
	r.publish(e, keysOf(0, 4)) // the keys are free for new pages while the old ones are read
	r.restore(e, lease)
	r.commit(e, flight)
	if n := r.found(e, keysOf(20, 2)); n != 2 {
		t.Fatal("a cleanup took away what was being published")
	}
	flight = r.reserve(e, keysOf(30, 2))
	if got := r.Clear(); got.EvictedPages != 6 || got.StillReferencedPages != 0 {
		t.Fatalf("%+v", got)
	}
	r.commit(e, flight)
	if n := r.found(e, keysOf(30, 2)); n != 0 || r.Stats().PoolUsedBytes != 0 {
		t.Fatal("what was being published before a clear became visible")
	}
	r.check()
}
