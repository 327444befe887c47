package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

// tierTeam is two ranks that schedule together, whose pages 0 to pages-1 the tier has and the pool has not.
func tierTeam(t *testing.T, pages int) (*rig, *bench, *team) {
	t.Helper()
	b := newBench()
	r := newRig(t, Config{PoolBytes: 16 * mib, Tier: b})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, pages))
	r.endWrites(b)
	r.Cleanup()
	r.check()
	return r, b, e
}

func (r *rig) pollAs(e *team, rank int, n uint64) Result {
	r.t.Helper()
	got, err := r.PollQuery(e.schedulers[rank].id, n, 1)
	r.must(err)
	return got
}

func TestRanksWaitForOneReading(t *testing.T) {
	r, b, e := tierTeam(t, 4)
	r.wantOutcome(r.ask(e, 0, 2, keysOf(0, 4)), wire.OutcomePreparing, 0)
	r.wantOutcome(r.ask(e, 1, 2, keysOf(0, 4)), wire.OutcomePreparing, 0)
	if len(b.reads) != 4 || phaseOf(r, "preparing") != 4*e.ns.PageBytes {
		t.Fatalf("%d reads, %v", len(b.reads), r.Stats().QueryReservedByPhase)
	}
	r.check()
	r.endReads(b)
	for rank := range e.schedulers {
		if told := e.schedulers[rank].queue.take(NoticeQuery); len(told) != 1 || told[0] != 2 {
			t.Fatalf("rank %d was told of %v", rank, told)
		}
	}
	first, second := r.pollAs(e, 0, 2), r.pollAs(e, 1, 2)
	r.wantOutcome(first, wire.OutcomeReady, 4)
	if first.Lease != second.Lease {
		t.Fatalf("%+v and %+v", first, second)
	}
	r.wantHeld(1, 1, 4*e.ns.PageBytes)
}

func TestOneRankStopsTheReadingForAll(t *testing.T) {
	r, b, e := tierTeam(t, 4)
	r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 1, 2, keysOf(0, 4))
	r.endRead(b, 0, true)
	got, err := r.StopQuery(e.schedulers[1].id, 2, 1)
	r.must(err)
	r.wantOutcome(got, wire.OutcomeReady, 1)
	other, err := r.StopQuery(e.schedulers[0].id, 2, 1)
	r.must(err)
	if other.Lease != got.Lease {
		t.Fatalf("%+v and %+v", got, other)
	}
	r.check()
	r.endReads(b)
	r.wantHeld(1, 1, e.ns.PageBytes)
}

func TestARankThatGivesUpLeavesTheReadingToTheOther(t *testing.T) {
	r, b, e := tierTeam(t, 4)
	r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 1, 2, keysOf(0, 4))
	r.must(r.CancelQuery(e.schedulers[0].id, 2, 1))
	r.check()
	r.endReads(b)
	r.wantOutcome(r.pollAs(e, 1, 2), wire.OutcomeReady, 4)

	r.Cleanup()
	r.ask(e, 0, 3, keysOf(0, 4))
	r.ask(e, 1, 3, keysOf(0, 4))
	r.must(r.CancelQuery(e.schedulers[0].id, 3, 1))
	r.must(r.CancelQuery(e.schedulers[1].id, 3, 1))
	if s := r.Stats(); s.OperationsDraining != 1 || s.QueryReservedByPhase["draining"] != 4*e.ns.PageBytes {
		t.Fatalf("%+v", s)
	}
	r.check()
	r.endReads(b)
	if s := r.Stats(); s.OperationsDraining != 0 || s.QueryReservedByPhase["draining"] != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestAStopThatFindsNothingIsReadByEveryRank(t *testing.T) {
	r, b, e := tierTeam(t, 2)
	r.ask(e, 0, 2, keysOf(0, 2))
	r.ask(e, 1, 2, keysOf(0, 2))
	got, err := r.StopQuery(e.schedulers[0].id, 2, 1)
	r.must(err)
	r.wantOutcome(got, wire.OutcomeReady, 0)
	r.check()
	r.wantOutcome(r.pollAs(e, 1, 2), wire.OutcomeReady, 0)
	r.check()
	r.endReads(b)
	if s := r.Stats(); s.OperationsDraining != 0 || s.OperationsReady != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}
