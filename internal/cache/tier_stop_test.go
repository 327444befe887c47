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

// A read that hangs is waited for by nobody: the queries that did go on without it, later ones do not join it, and it keeps its place until it ends.
func TestAReadThatHangsEndsThePrefixBeforeIt(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 3)
	r.publish(e, keysOf(0, 1))
	waits := r.query(e, keysOf(0, 3))
	r.clock.forward(readHangsAfter - 1)
	r.Tick()
	r.outcome(e, waits.Operation, 1, wire.OutcomePreparing)
	r.clock.forward(1)
	r.Tick()
	if got := r.outcome(e, waits.Operation, 1, wire.OutcomeReady); got.Pages != 1 {
		t.Fatalf("%d pages", got.Pages)
	}
	if got := r.query(e, keysOf(0, 3)); got.Outcome != wire.OutcomeReady || got.Pages != 1 {
		t.Fatalf("a read that hangs was joined: %+v", got)
	}
	if stats := r.Stats(); stats.WritingBytes != 2*page || len(b.reads) != 2 {
		t.Fatalf("what is being read was let go: %+v", stats)
	}
	r.check()
	r.endReads(b)
	if n := r.found(e, keysOf(0, 3)); n != 3 {
		t.Fatalf("%d pages after the disk answered", n)
	}
	r.check()
}
