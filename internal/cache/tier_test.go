package cache

import (
	"testing"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// tierRig is a cache above a tier, with one engine whose pages 0 to pages-1 the tier has and the pool has not.
func tierRig(t *testing.T, config Config, pages int) (*rig, *bench, *engine) {
	t.Helper()
	b := newBench()
	config.Tier = b
	if config.PoolBytes == 0 {
		config.PoolBytes = 16 * mib
	}
	r := newRig(t, config)
	e := r.engine("a", 100, one(page))
	r.evictAll(b, e, pages)
	return r, b, e
}

// evictAll publishes pages, has them written and takes them out of the pool.
func (r *rig) evictAll(b *bench, e *engine, pages int) {
	r.t.Helper()
	r.publish(e, keysOf(0, pages))
	if len(b.writes) != pages {
		r.t.Fatalf("%d pages were offered to the tier, %d are sealed", len(b.writes), pages)
	}
	r.endWrites(b)
	if report := r.Cleanup(); report.StillReferencedPages != 0 || report.EvictedPages != uint64(pages) {
		r.t.Fatalf("the cleanup left pages: %+v", report)
	}
	r.check()
}

func phaseOf(r *rig, phase string) uint64 { return r.Stats().QueryReservedByPhase[phase] }

func TestAPrefixThatLeftThePoolIsReadAndLeased(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 6)
	got := r.query(e, keysOf(0, 8))
	if got.Outcome != wire.OutcomePreparing || got.Lease != 0 {
		t.Fatalf("the query answered %+v", got)
	}
	if charged := phaseOf(r, "preparing"); charged != 6*page {
		t.Fatalf("%d bytes are charged for six pages", charged)
	}
	r.check()
	for i := 0; len(b.reads) > 1; i++ {
		r.endRead(b, i%len(b.reads), true) // in another order than they were asked for
		r.outcome(e, got.Operation, 1, wire.OutcomePreparing)
		r.check()
	}
	r.endRead(b, 0, true)
	if told := e.scheduler.queue.take(NoticeQuery); len(told) != 1 || told[0] != got.Operation {
		t.Fatalf("notices of queries: %v", told)
	}
	ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady)
	if ready.Pages != 6 || ready.Cut {
		t.Fatalf("the lease covers %d pages", ready.Pages)
	}
	stats := r.Stats()
	if stats.PageHitsTotal != 6 || stats.PageHitsTierTotal != 6 || stats.PageMissesTotal != 2 || stats.QueryReservedByPhase["ready"] != 6*page {
		t.Fatalf("%+v", stats)
	}
	r.restore(e, ready)
	if n := r.found(e, keysOf(0, 8)); n != 6 {
		t.Fatalf("%d pages are resident after they were read", n)
	}
	r.check()
}

func TestWhatIsResidentIsHeldAndOnlyTheRestIsRead(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 6)
	r.publish(e, keysOf(2, 2)) // resident again, in the middle
	got := r.query(e, keysOf(0, 6))
	if len(b.reads) != 4 {
		t.Fatalf("%d reads for four pages that are missing", len(b.reads))
	}
	if report := r.Cleanup(); report.StillReferencedPages != 2 {
		t.Fatalf("pages of a prefix that is being read are not held: %+v", report)
	}
	r.check()
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 6 || r.Stats().PageHitsTierTotal != 4 {
		t.Fatalf("%+v", ready)
	}
	r.check()
}

func TestAFailedReadCutsThePrefixAndLeavesNoPage(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 6)
	got := r.query(e, keysOf(0, 6))
	r.endRead(b, 3, false)
	r.check()
	r.outcome(e, got.Operation, 1, wire.OutcomePreparing)
	if drain := r.Stats(); drain.QueryReservedByPhase["preparing"] != 5*page {
		t.Fatalf("three pages are wanted and two are being read in vain: %+v", drain.QueryReservedByPhase)
	}
	for range 3 {
		r.endRead(b, 0, true)
	}
	ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady)
	if ready.Pages != 3 || phaseOf(r, "draining") != 2*page {
		t.Fatalf("%d pages, %v", ready.Pages, r.Stats().QueryReservedByPhase)
	}
	r.check()
	r.endReads(b)
	if phaseOf(r, "draining") != 0 {
		t.Fatal("what drained is still charged")
	}
	r.must(r.Release(e.scheduler.id, ready.Lease, wire.AllRanks))
	for from, want := range map[int]int{0: 3, 4: 2} {
		delete(b.stored, storedKey{1, 0, keyOf(3)})
		if n := r.found(e, keysOf(from, 6)); n != want {
			t.Errorf("from page %d: %d pages, want %d", from, n, want)
		}
	}
	r.check()
}

func TestIdenticalReadsAreOneAndEachKeepsItsInterest(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	other := r.engine("b", 200, one(page))
	first, second := r.query(e, keysOf(0, 4)), r.query(other, keysOf(0, 4))
	if len(b.reads) != 4 || r.Stats().ReadsCoalescedTotal != 4 {
		t.Fatalf("%d reads, %d joined", len(b.reads), r.Stats().ReadsCoalescedTotal)
	}
	if charged := phaseOf(r, "preparing"); charged != 8*page {
		t.Fatalf("each owner is charged: %d bytes", charged)
	}
	r.must(r.CancelQuery(e.scheduler.id, first.Operation, 1))
	if phaseOf(r, "preparing") != 4*page || phaseOf(r, "draining") != 4*page {
		t.Fatalf("%v", r.Stats().QueryReservedByPhase)
	}
	r.check()
	r.endReads(b)
	if ready := r.outcome(other, second.Operation, 1, wire.OutcomeReady); ready.Pages != 4 {
		t.Fatalf("the cancel of one took %d pages from the other", 4-ready.Pages)
	}
	r.check()
}

func TestACancelledQueryKeepsBytesAndPermitUntilItsReadsEnd(t *testing.T) {
	r, b, e := tierRig(t, Config{SessionOperations: 1}, 3)
	got := r.query(e, keysOf(0, 3))
	r.must(r.CancelQuery(e.scheduler.id, got.Operation, 1))
	r.check()
	if again := r.query(e, keysOf(0, 3)); again.Outcome != wire.OutcomeBusy {
		t.Fatalf("its permit was used again: %v", again.Outcome)
	}
	if stats := r.Stats(); stats.QueryReservedByPhase["draining"] != 3*page || stats.OperationsDraining != 1 || stats.WritingBytes != 3*page {
		t.Fatalf("%+v", stats)
	}
	r.endRead(b, 1, true)
	r.endRead(b, 0, false)
	if phaseOf(r, "draining") != page {
		t.Fatalf("%v", r.Stats().QueryReservedByPhase)
	}
	r.endReads(b)
	r.check()
	if n := r.found(e, keysOf(1, 2)); n != 2 {
		t.Fatalf("%d pages that were read for nobody are resident", n)
	}
	if stats := r.Stats(); stats.OperationsDraining != 0 || stats.PoolUsedBytes != 2*page {
		t.Fatalf("%+v", stats)
	}
}

func TestAStopTakesTheLeadingPagesThatAreComplete(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 6)
	got := r.query(e, keysOf(0, 6))
	r.endRead(b, 0, true)
	r.endRead(b, 0, true)
	r.endRead(b, 1, true) // page 3, behind a gap
	ready, err := r.StopQuery(e.scheduler.id, got.Operation, 1)
	r.must(err)
	if ready.Outcome != wire.OutcomeReady || ready.Pages != 2 || phaseOf(r, "draining") != 3*page {
		t.Fatalf("%+v %v", ready, r.Stats().QueryReservedByPhase)
	}
	r.check()
	r.endReads(b)
	r.restore(e, ready)
	r.check()
	if n := r.found(e, keysOf(0, 6)); n != 6 {
		t.Fatalf("what drained is not resident: %d pages", n)
	}

	r.Cleanup()
	got = r.query(e, keysOf(0, 6))
	if ready, err = r.StopQuery(e.scheduler.id, got.Operation, 1); err != nil || ready.Outcome != wire.OutcomeReady || ready.Pages != 0 {
		t.Fatalf("nothing is there: %+v %v", ready, err)
	}
	r.check()
	if again, err := r.StopQuery(e.scheduler.id, got.Operation, 1); err != nil || again.Outcome != wire.OutcomeStale {
		t.Fatalf("the answer was read: %+v %v", again, err)
	}
	_, err = r.StopQuery(e.scheduler.id, got.Operation+1, 1)
	r.fails(err, wire.StatusUnknown)
}

func TestAStopOfAQueryThatWaitsForBudgetFindsNothing(t *testing.T) {
	r, _, e := tierRig(t, Config{QueryBudgetBytes: 4 * page}, 3)
	r.publish(e, keysOf(10, 4))
	held := r.query(e, keysOf(10, 4))
	waits := r.query(e, keysOf(0, 3))
	if held.Pages != 4 || waits.Outcome != wire.OutcomeWaiting {
		t.Fatalf("%+v %+v", held, waits)
	}
	if got, err := r.StopQuery(e.scheduler.id, waits.Operation, 1); err != nil || got.Outcome != wire.OutcomeReady || got.Pages != 0 {
		t.Fatalf("%+v %v", got, err)
	}
	r.check()
}

func TestReadsGoInBatches(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 3 * page}, 8)
	got := r.query(e, keysOf(0, 8))
	for left := 8; left > 0; left-- {
		if want := min(3, left); len(b.reads) != want {
			t.Fatalf("%d reads run with %d pages left, want %d", len(b.reads), left, want)
		}
		r.endRead(b, 0, true)
		r.check()
	}
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 8 {
		t.Fatalf("%d pages", ready.Pages)
	}
}

func TestBestEffortIsOneBatch(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 3 * page, StopPolicy: BestEffort}, 8)
	got := r.query(e, keysOf(0, 8))
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 3 {
		t.Fatalf("%d pages of one batch of three", ready.Pages)
	}
	r.check()
}

func TestTimeoutTakesWhatIsThere(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page, StopPolicy: Timeout, ReadTimeout: time.Second}, 8)
	got := r.query(e, keysOf(0, 8))
	r.endRead(b, 0, true)
	r.clock.forward(time.Second - 1)
	r.Tick()
	r.outcome(e, got.Operation, 1, wire.OutcomePreparing)
	r.clock.forward(1)
	r.Tick()
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 1 || len(b.reads) != 2 {
		t.Fatalf("%d pages, %d reads drain", ready.Pages, len(b.reads))
	}
	r.check()
	r.endReads(b)
	if len(b.reads) != 0 {
		t.Fatal("a stopped query began another read")
	}
	r.check()
}

func TestAFullQueueOfReadsMakesADemandWait(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 5)
	b.room = 2
	got := r.query(e, keysOf(0, 5))
	if len(b.reads) != 2 || r.Stats().ReadBackpressureTotal == 0 {
		t.Fatalf("%d reads in a queue of two", len(b.reads))
	}
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 5 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.check()
}

func TestAPoolFullOfRetainedPagesMakesRoomForAHit(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 8 * page}, 4)
	r.publish(e, keysOf(20, 8))
	r.endWrites(b)
	if stats := r.Stats(); stats.PoolUsedBytes != 8*page || stats.ResidentPages["retained"] != 8 {
		t.Fatalf("%+v", stats)
	}
	got := r.query(e, keysOf(0, 4))
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 4 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.check()
}

func TestAPoolInWhichNothingCanBeEvictedCutsThePrefix(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 8 * page, QueryBudgetBytes: 16 * page}, 6)
	reserved := r.reserve(e, keysOf(20, 5)) // being written: no victims
	got := r.query(e, keysOf(0, 6))
	if len(b.reads) != 3 {
		t.Fatalf("%d reads into three free places", len(b.reads))
	}
	r.endRead(b, 0, true)
	r.outcome(e, got.Operation, 1, wire.OutcomePreparing)
	r.check()
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 3 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.commit(e, reserved)
	r.check()
}

func TestTheTierLosesAPageBetweenAnswerAndRead(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 5)
	got := r.query(e, keysOf(0, 5))
	delete(b.stored, storedKey{1, 0, keyOf(3)})
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 3 {
		t.Fatalf("%d pages in front of one that is gone", ready.Pages)
	}
	r.check()
}

func TestAPageThatIsBeingPublishedEndsThePrefix(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 5)
	reserved := r.reserve(e, keysOf(2, 1))
	got := r.query(e, keysOf(0, 5))
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 2 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.commit(e, reserved)
	r.check()
}

func TestAReserveFindsAPageThatIsBeingRead(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 2)
	r.query(e, keysOf(0, 2))
	got := r.reserve(e, keysOf(0, 3))
	if got.Pages != 1 || got.Grants[0].Grant != wire.GrantBeingWritten || got.Grants[0].Count != 2 {
		t.Fatalf("%+v", got)
	}
	r.endReads(b)
	r.commit(e, got)
	r.check()
}

func TestAQueryThatNamesAKeyTwiceIsServedTwice(t *testing.T) {
	for _, ok := range []bool{true, false} {
		r, b, e := tierRig(t, Config{}, 2)
		got := r.query(e, append(keysOf(0, 2), keysOf(1, 1)...))
		if len(b.reads) != 2 {
			t.Fatalf("%d reads", len(b.reads))
		}
		r.endRead(b, 0, true)
		r.endRead(b, 0, ok)
		want := uint32(1)
		if ok {
			want = 3
		}
		if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != want {
			t.Fatalf("%d pages, want %d", ready.Pages, want)
		}
		r.check()
	}
}

func TestAWriteHoldsItsPageAndIsOfferedOnce(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 4 * page, Tier: b})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 3))
	if stats := r.Stats(); len(b.writes) != 3 || stats.TierWriteBytes != 3*page {
		t.Fatalf("%d writes, %d bytes", len(b.writes), stats.TierWriteBytes)
	}
	if got := r.reserve(e, keysOf(10, 4)); got.Pages != 1 {
		t.Fatalf("%d pages were granted beside three that are being written out", got.Pages)
	}
	r.check()
	r.endWrite(b, 0, true)
	r.endWrite(b, 0, false) // a miss of the tier, no more
	if n := r.found(e, keysOf(0, 3)); n != 3 {
		t.Fatalf("%d pages are resident", n)
	}
	r.Cleanup()
	r.check()
	r.endWrites(b)
	if stats := r.Stats(); stats.TierWriteBytes != 0 || stats.ResidentBytes != 0 {
		t.Fatalf("%+v", stats)
	}
	r.check()
}

func TestAFullTierTakesNothingAndHoldsNothing(t *testing.T) {
	b := newBench()
	b.full = true
	r := newRig(t, Config{PoolBytes: 4 * page, Tier: b})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 3))
	if stats := r.Stats(); stats.TierWriteBytes != 0 {
		t.Fatalf("%+v", stats)
	}
	if got := r.reserve(e, keysOf(10, 4)); got.Pages != 4 {
		t.Fatalf("%d pages were granted", got.Pages)
	}
	r.check()
}

func TestADemandTellsTheTierWhichOffersWhatItLacks(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 2)
	b.full = true
	r.publish(e, keysOf(2, 2))
	b.full = false
	r.query(e, keysOf(0, 4))
	r.endReads(b)
	if len(b.demanded) != 4 || b.demanded[3] != (storedKey{1, 0, keyOf(3)}) {
		t.Fatalf("the tier heard of %v", b.demanded)
	}
	r.Offer(1, 0, keysOf(0, 9))
	if len(b.writes) != 2 {
		t.Fatalf("%d pages were offered, two are not stored", len(b.writes))
	}
	r.Offer(77, 0, keysOf(0, 9)) // a namespace that was dropped
	r.endWrites(b)
	r.check()
}

func TestPrivatePagesStayOutOfTheTier(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 16 * mib, Tier: b})
	e := r.engine("a", 100, one(page))
	private, err := r.OpenPrivate(e.ranks[0].id, page)
	r.must(err)
	got, err := r.Reserve(e.ranks[0].id, Reserve{Operation: 1, Revision: 1, Namespace: private.Namespace, Keys: keysOf(0, 1)})
	r.must(err)
	r.must(r.Committed(e.ranks[0].id, got.Reservation, 0, all(1)))
	if len(b.writes) != 0 || b.last != 1 {
		t.Fatalf("%d writes, %d namespaces", len(b.writes), b.last)
	}
	b.stored[storedKey{0, 0, keyOf(0)}], b.stored[storedKey{0, 0, keyOf(1)}] = true, true
	found, err := r.SubmitQuery(e.ranks[0].id, Query{Operation: 1, Revision: 1, Namespace: private.Namespace, Keys: keysOf(0, 2)})
	if err != nil || found.Outcome != wire.OutcomeReady || found.Pages != 1 {
		t.Fatalf("%+v %v", found, err)
	}
	r.check()
}

func TestANewEpochDropsItsPagesInTheTier(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 2)
	ns, err := r.NewEpoch(e.scheduler.id, e.id, 5)
	r.must(err)
	e.ns = ns
	r.publish(e, keysOf(0, 2))
	r.endWrites(b)
	r.Cleanup()
	got := r.query(e, keysOf(0, 2))
	ns, err = r.NewEpoch(e.scheduler.id, e.id, 6)
	r.must(err)
	e.ns = ns
	if len(b.dropped) != 1 || b.dropped[0] != 2 {
		t.Fatalf("dropped namespaces: %v", b.dropped)
	}
	r.outcome(e, got.Operation, 1, wire.OutcomeStale)
	r.check()
	r.endReads(b)
	if stats := r.Stats(); stats.ResidentBytes != 0 || stats.QueryReservedByPhase["draining"] != 0 {
		t.Fatalf("pages of a dead namespace came into the pool: %+v", stats)
	}
	r.check()
}

func TestClearForgetsTheTierAndWhatIsBeingRead(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	got := r.query(e, keysOf(0, 4))
	r.endRead(b, 0, true)
	r.Clear()
	if b.cleared != 1 {
		t.Fatal("the tier was not cleared")
	}
	r.check()
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 1 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.endReads(b)
	if stats := r.Stats(); stats.ResidentBytes != 0 {
		t.Fatalf("a page was read into a cache that was cleared: %+v", stats)
	}
	r.check()
}

func TestTheDeathOfAnEngineLeavesItsReadsToDrain(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	r.query(e, keysOf(0, 4))
	r.ProcessExited(e.scheduler.process)
	r.ProcessExited(e.ranks[0].process)
	r.check()
	if stats := r.Stats(); stats.QueryReservedByPhase["draining"] != 4*page || stats.Instances != 1 {
		t.Fatalf("%+v", stats)
	}
	r.endReads(b)
	if stats := r.Stats(); stats.QueryReservedByPhase["draining"] != 0 || stats.Instances != 0 || stats.ResidentPages[index.Retained.String()] != 4 {
		t.Fatalf("%+v", stats)
	}
	r.check()
}

func TestALaterRevisionReplacesOneThatIsBeingRead(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	e.operation++
	first, err := r.submit(e, e.operation, 1, "x", keysOf(0, 4))
	r.must(err)
	second, err := r.submit(e, e.operation, 2, "x", keysOf(0, 2))
	r.must(err)
	if first.Outcome != wire.OutcomePreparing || second.Outcome != wire.OutcomePreparing || len(b.reads) != 4 {
		t.Fatalf("%v %v, %d reads", first.Outcome, second.Outcome, len(b.reads))
	}
	r.check()
	r.endReads(b)
	if ready := r.outcome(e, e.operation, 2, wire.OutcomeReady); ready.Pages != 2 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.check()
}

func TestATierThatReadsNothingEndsThePrefixAtOnce(t *testing.T) {
	for name, how := range map[string]func(*bench){
		"its queue takes nothing": func(b *bench) { b.room = 0 },
		"it lost what it had":     func(b *bench) { b.refuses = true },
	} {
		t.Run(name, func(t *testing.T) {
			r, b, e := tierRig(t, Config{}, 4)
			r.publish(e, keysOf(0, 2))
			how(b)
			if got := r.query(e, keysOf(0, 4)); got.Outcome != wire.OutcomeReady || got.Pages != 2 {
				t.Fatalf("%+v", got)
			}
			if stats := r.Stats(); stats.PoolUsedBytes != 2*page || stats.QueryReservedByPhase["preparing"] != 0 {
				t.Fatalf("%+v", stats)
			}
			r.check()
		})
	}
}

// TestPagesThatARankCannotReachEndThePrefix has an engine that maps arena 0 alone beside one that maps arena 1 alone, with the same namespace.
func TestPagesThatARankCannotReachEndThePrefix(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 8 * page, QueryBudgetBytes: 64 * page, Tier: b})
	r.AddArena(1, -1, 8*page)
	sh := one(page)
	e := r.engine("a", 100, sh)
	sh.arenas = []uint16{1}
	other := r.engine("b", 200, sh)
	r.evictAll(b, e, 4)

	reading := r.query(e, keysOf(2, 2)) // into arena 0
	got := r.query(other, keysOf(0, 4))
	if len(b.reads) != 4 {
		t.Fatalf("%d reads", len(b.reads))
	}
	r.check()
	r.endReads(b)
	if ready := r.outcome(other, got.Operation, 1, wire.OutcomeReady); ready.Pages != 2 {
		t.Fatalf("%d pages, two lie where the rank cannot reach them", ready.Pages)
	}
	r.outcome(e, reading.Operation, 1, wire.OutcomeReady)

	// A rank that loses its arena while pages are read into it.
	r.Cleanup()
	got = r.query(e, keysOf(0, 2))
	r.must(r.Mapped(e.ranks[0].id, 0, false, "lost"))
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 0 || ready.NotMapped != 2 {
		t.Fatalf("%+v", ready)
	}
	r.check()

	// Pages that came back into an arena that is out of reach while the first of a batch is being read.
	r.must(r.Mapped(e.ranks[0].id, 0, true, ""))
	r.Cleanup()
	b.room = 1
	got = r.query(e, keysOf(0, 3))
	r.publish(other, keysOf(1, 1))
	r.endReads(b)
	if ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady); ready.Pages != 1 {
		t.Fatalf("%d pages", ready.Pages)
	}
	r.check()
}
