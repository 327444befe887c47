package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

// A rank's worker that reports slices which its scheduler has not asked for would end a reservation whose answer is still kept for that rank.
func TestAWorkerReportsOnlyWhatItsRankWasHanded(t *testing.T) {
	for name, report := range map[string]func(*rig, SessionID, uint64) error{
		"committed": func(r *rig, id SessionID, reservation uint64) error { return r.Committed(id, reservation, 1, all(2)) },
		"abandoned": func(r *rig, id SessionID, reservation uint64) error { return r.Abandoned(id, reservation, 1, all(2)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{PoolBytes: 16 * mib})
			e := r.team("a", 100, two())
			got := r.reserveFor(e, 0, 1, keysOf(0, 2))
			r.must(r.Committed(e.workers[0].id, got.Reservation, 0, all(2)))
			r.fails(report(r, e.workers[1].id, got.Reservation), wire.StatusUnknown)
			r.wantWriting(1, 2)
			if late := r.reserveFor(e, 1, 1, keysOf(0, 2)); late.Reservation != got.Reservation {
				t.Fatalf("the rank was handed %+v", late)
			}
			r.must(r.Committed(e.workers[1].id, got.Reservation, 1, all(2)))
			r.wantWriting(0, 0)
			r.wantOutcome(r.ask(e, 0, 2, keysOf(0, 2)), wire.OutcomeReady, 2)
		})
	}
}

// A rank that asked and leaves while the query waits has decided the ranks' common answer, as one that gives up has.
func TestARankThatLeavesAWaitingQueryLeavesNoneBehind(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 4 * 3 * page})
	e := r.team("a", 100, writers(wire.WriterHost, wire.WriterHost, wire.WriterHost))
	r.publishAll(e, 1, keysOf(0, 6))
	full := r.ask(e, 1, 2, keysOf(0, 4))
	r.wantOutcome(r.ask(e, 0, 3, keysOf(2, 4)), wire.OutcomeWaiting, 0)
	r.wantOutcome(r.ask(e, 1, 3, keysOf(2, 4)), wire.OutcomeWaiting, 0)
	r.CloseSession(e.schedulers[0].id)
	r.must(r.Release(e.schedulers[1].id, full.Lease, 1))
	r.check()
	got, err := r.PollQuery(e.schedulers[1].id, 3, 1)
	r.must(err)
	r.wantOutcome(got, wire.OutcomeReady, 4)
	r.must(r.Release(e.schedulers[1].id, got.Lease, 1))
	r.wantHeld(0, 0, 0)
}

// The bound of the grants that all answers hold falls on the instance that keeps the most, so that one that hoards cannot keep others from publishing.
func TestAnInstanceThatHoardsAnswersGivesUpItsOwn(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	hoarder, other := r.team("a", 100, two()), r.team("b", 200, two())
	for n := range uint64(4) {
		r.reserveFor(hoarder, 0, n+1, keysOf(int(n), 1))
	}
	held := r.answersBytes
	r.answersBytes += answersBytesMax - held
	first := r.reserveFor(other, 0, 1, keysOf(100, 1))
	r.answersBytes -= answersBytesMax - held
	if s := r.Stats(); s.JointAnswersDroppedTotal != 1 {
		t.Fatalf("%+v", s)
	}
	if second := r.reserveFor(other, 1, 1, keysOf(100, 1)); second.Reservation != first.Reservation {
		t.Fatalf("the other instance lost its answer: %+v and %+v", first, second)
	}
	r.check()
}
