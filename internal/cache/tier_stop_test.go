package cache

import (
	"testing"
	"time"

	"orbitkv/internal/wire"
)

// The time of a query runs from its submission, whether it waits for budget or for the tier.
func TestTimeoutCountsTheWaitForBudget(t *testing.T) {
	r, b, e := tierRig(t, Config{StopPolicy: Timeout, ReadTimeout: time.Second, QueryBudgetBytes: 8 * page}, 8)
	r.publish(e, keysOf(20, 6))
	r.endWrites(b)
	held := r.query(e, keysOf(20, 6))
	first, second := r.query(e, keysOf(0, 4)), r.query(e, keysOf(0, 8))
	r.outcome(e, first.Operation, 1, wire.OutcomeWaiting)
	r.outcome(e, second.Operation, 1, wire.OutcomeWaiting)
	r.clock.forward(time.Second - 1)
	r.must(r.Release(e.scheduler.id, held.Lease, wire.AllRanks))
	r.outcome(e, first.Operation, 1, wire.OutcomePreparing)
	r.endRead(b, 0, true)
	r.Tick()
	r.outcome(e, first.Operation, 1, wire.OutcomePreparing)
	r.clock.forward(1)
	r.Tick()
	if ready := r.outcome(e, first.Operation, 1, wire.OutcomeReady); ready.Pages != 1 {
		t.Errorf("%d pages after its time", ready.Pages)
	}
	if ready := r.outcome(e, second.Operation, 1, wire.OutcomeReady); ready.Pages != 0 {
		t.Errorf("a query that had no budget in its time has %d pages", ready.Pages)
	}
	r.check()
	r.endReads(b)
	r.check()
}

// One batch is one batch, also when the tier takes it in pieces.
func TestBestEffortReadsOneBatchThroughAShortQueue(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 4 * page, StopPolicy: BestEffort}, 8)
	b.room = 1
	got := r.query(e, keysOf(0, 8))
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 4 {
		t.Fatalf("%d pages of one batch of four", ready.Pages)
	}
	r.check()
}

// A disk that hangs keeps what it reads, once: whoever waited for that in vain must not take the budget from pages that are in the pool.
func TestADiskThatHangsKeepsTheBudgetOfItsReadsAlone(t *testing.T) {
	r, b, e := tierRig(t, Config{SessionOperations: 16, GlobalOperations: 16}, 2)
	other := r.engine("b", 200, one(page))
	r.publish(e, keysOf(20, 2))
	r.endWrites(b)
	for range 400 {
		for _, asker := range []*engine{e, other} {
			got := r.query(asker, keysOf(0, 2))
			r.outcome(asker, got.Operation, 1, wire.OutcomePreparing)
			if stopped, err := r.StopQuery(asker.scheduler.id, got.Operation, 1); err != nil || stopped.Outcome != wire.OutcomeReady {
				t.Fatal(stopped, err)
			}
		}
	}
	r.check()
	if phaseOf(r, "draining") != 2*page || len(b.reads) != 2 || r.Stats().OperationsDraining != 1 {
		t.Fatalf("two pages are being read, %d bytes are charged", phaseOf(r, "draining"))
	}
	if n := r.found(e, keysOf(20, 2)); n != 2 {
		t.Fatalf("%d pages of the pool are found", n)
	}
	r.endReads(b)
	r.check()
	if phaseOf(r, "draining") != 0 || r.Stats().OperationsDraining != 0 {
		t.Fatalf("%+v", r.Stats())
	}
}
