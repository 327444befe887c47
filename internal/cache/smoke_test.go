package cache

import (
	"testing"

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
