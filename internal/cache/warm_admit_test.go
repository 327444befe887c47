package cache

import (
	"testing"
	"time"

	"orbitkv/internal/wire"
)

func TestAHintIsSkippedWholeAndAtOnce(t *testing.T) {
	r, b, e := tierRig(t, Config{QueryBudgetBytes: 64 * page, InstanceBudgetBytes: 32 * page}, 20)
	other := r.engine("b", 200, one(page))
	r.hints(e, "a", keysOf(0, 9), wire.HintOversized, 0) // a quarter of the instance's budget is eight pages
	if len(b.reads) != 0 {
		t.Fatal("a part of it is read")
	}
	r.hints(e, "a", keysOf(50, 33), wire.HintOversized, 0) // no query can lease as much, so nobody looks
	r.hints(e, "a", keysOf(0, 5), wire.HintAccepted, 5)
	r.hints(e, "b", keysOf(10, 4), wire.HintBytes, 0) // nine in all
	r.hints(e, "b", keysOf(10, 3), wire.HintAccepted, 3)
	r.hints(other, "a", keysOf(10, 8), wire.HintAccepted, 8) // joins three, and is charged for itself
	r.hints(other, "b", keysOf(18, 1), wire.HintBytes, 0)
	if charged := phaseOf(r, "warming"); charged != 16*page { // a quarter of the global one
		t.Fatalf("%d bytes are charged", charged)
	}
	third := r.engine("c", 300, one(page))
	r.hints(third, "a", keysOf(18, 1), wire.HintBytes, 0)
	r.endReads(b)
	r.idle()
	r.warms(13, 0, 0, 13)
	b.room = 0
	r.hints(third, "b", keysOf(18, 1), wire.HintQueue, 0)
	r.hints(third, "b", keysOf(0, 5), wire.HintComplete, 0)
	r.hints(third, "b", keysOf(30, 5), wire.HintComplete, 0) // nobody has any of it
	want := map[string]uint64{"accepted": 3, "complete": 2, "foreground": 0, "operations": 0, "oversized": 2, "bytes": 3, "queue": 1, "no_tier": 0}
	for outcome, count := range r.Stats().WarmupHintsTotal {
		if count != want[outcome] {
			t.Errorf("%d hints were %s, want %d", count, outcome, want[outcome])
		}
	}
}

func TestABudgetOfLessThanFourPagesWarmsNothing(t *testing.T) {
	r, b, e := tierRig(t, Config{QueryBudgetBytes: 3 * page}, 4)
	r.hints(e, "a", keysOf(0, 1), wire.HintOversized, 0)
	if r.query(e, keysOf(0, 1)); len(b.reads) != 1 {
		t.Fatal("a query is not read")
	}
}

// Room in the hints' share is not room in the budgets: what drains takes both, what is stalled its instance's.
func TestAHintNeedsRoomInBothBudgets(t *testing.T) {
	r, b, e := tierRig(t, Config{QueryBudgetBytes: 8 * page}, 12)
	other := r.engine("b", 200, one(page))
	drains := r.query(e, keysOf(0, 7))
	r.must(r.CancelQuery(e.scheduler.id, drains.Operation, 1))
	r.hints(other, "a", keysOf(8, 2), wire.HintBytes, 0)
	r.hints(other, "a", keysOf(8, 1), wire.HintAccepted, 1)
	r.endReads(b)
	stalled := r.query(e, keysOf(0, 7))
	r.must(r.Begin(e.scheduler.id, stalled.Lease, wire.AllRanks, 7))
	r.clock.forward(6 * time.Second)
	r.Tick() // asks
	r.clock.forward(11 * time.Second)
	r.Tick()
	r.Heard(other.scheduler.id)
	r.Heard(e.scheduler.id)
	if phaseOf(r, "stalled") != 7*page {
		t.Fatalf("%v", r.Stats().QueryReservedByPhase)
	}
	r.hints(e, "a", keysOf(10, 2), wire.HintBytes, 0)
	r.hints(other, "b", keysOf(10, 2), wire.HintAccepted, 2)
	r.endReads(b)
}

func TestAManagerWithoutATierSkipsEveryHint(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	r.hints(e, "a", keysOf(0, 4), wire.HintNoTier, 0)
	r.idle()
}

// One idle lease is enough, and so is a query whose pages are on their way. What is stalled or drains does not count.
func TestQueriesKeepHintsOut(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 8)
	other := r.engine("b", 200, one(page))
	got := r.query(e, keysOf(0, 2))
	r.hints(other, "a", keysOf(4, 2), wire.HintForeground, 0)
	r.endReads(b)
	ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady)
	r.hints(other, "a", keysOf(4, 2), wire.HintForeground, 0)
	r.must(r.Begin(e.scheduler.id, ready.Lease, wire.AllRanks, 1))
	r.hints(other, "a", keysOf(4, 2), wire.HintForeground, 0)
	r.must(r.Restored(e.ranks[0].id, ready.Lease, 0, true, 1, all(1)))
	drains := r.query(e, keysOf(6, 2))
	r.must(r.CancelQuery(e.scheduler.id, drains.Operation, 1))
	if phaseOf(r, "draining") != 2*page {
		t.Fatal("nothing drains")
	}
	r.hints(other, "a", keysOf(4, 2), wire.HintAccepted, 2)
	if skips := r.Stats().WarmupSkippedForeground; skips != 3 {
		t.Fatalf("%d skips were counted", skips)
	}
	r.endReads(b)
	r.found(e, keysOf(0, 1))
	stalled := r.query(e, keysOf(0, 1))
	r.Tick()
	r.clock.forward(11 * time.Second)
	r.Tick()
	r.clock.forward(11 * time.Second)
	r.Tick()
	r.must(func() error { r.Heard(other.scheduler.id); return nil }())
	if phaseOf(r, "stalled") != page || stalled.Lease == 0 {
		t.Fatalf("%v", r.Stats().QueryReservedByPhase)
	}
	r.Cleanup()
	r.hints(other, "b", keysOf(6, 1), wire.HintAccepted, 1)
}

func TestHintsHaveSixteenPermitsASessionAndEightTimesAsManyInAll(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 64 * mib}, 160)
	engines := []*engine{e}
	for i := range 8 {
		engines = append(engines, r.engine(string(rune('b'+i)), 200+10*i, one(page)))
	}
	for i := range WarmSessionMax {
		r.hints(e, string(rune('a'+i)), keysOf(i, 1), wire.HintAccepted, 1)
	}
	r.hints(e, "q", keysOf(17, 1), wire.HintOperations, 0)
	for n, other := range engines[1:8] {
		for i := range WarmSessionMax {
			r.hints(other, string(rune('a'+i)), keysOf(16*(n+1)+i, 1), wire.HintAccepted, 1)
		}
	}
	r.hints(engines[8], "a", keysOf(150, 1), wire.HintOperations, 0)
	r.endRead(b, 3, true) // with the end of the read the permit is back
	r.hints(engines[8], "a", keysOf(150, 1), wire.HintAccepted, 1)
	r.hints(e, "q", keysOf(17, 1), wire.HintOperations, 0) // a hundred and twenty-eight again
	r.endReads(b)
	r.idle()
}

// The permits of hints are among those of queries.
func TestHintsTakePermitsOfQueries(t *testing.T) {
	r, b, e := tierRig(t, Config{SessionOperations: 2}, 8)
	r.hints(e, "a", keysOf(0, 1), wire.HintAccepted, 1)
	r.hints(e, "b", keysOf(1, 1), wire.HintAccepted, 1)
	r.hints(e, "c", keysOf(2, 1), wire.HintOperations, 0)
	if got := r.query(e, keysOf(3, 1)); got.Outcome != wire.OutcomeBusy {
		t.Fatalf("a query found a third permit: %v", got.Outcome)
	}
	r.endRead(b, 0, true)
	if got := r.query(e, keysOf(3, 1)); got.Outcome != wire.OutcomePreparing {
		t.Fatalf("%v", got.Outcome)
	}
	r.endReads(b)
}
