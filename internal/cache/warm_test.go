package cache

import (
	"fmt"
	"testing"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// hint hints at a prefix under a request's name.
func (r *rig) hint(e *engine, request string, keys []wire.Key) Warmed {
	r.t.Helper()
	e.ticket++
	got, err := r.WarmPrefix(e.scheduler.id, Warm{Ticket: e.ticket, Namespace: e.ns.Namespace, Instance: e.id, Request: request, Keys: keys})
	r.must(err)
	r.check()
	return got
}

// hints wants one outcome of a hint, and the pages that it brings.
func (r *rig) hints(e *engine, request string, keys []wire.Key, want wire.Hint, pages uint32) {
	r.t.Helper()
	if got := r.hint(e, request, keys); got != (Warmed{want, pages}) {
		r.t.Fatalf("the hint was answered %v with %d pages, want %v with %d", got.Outcome, got.Pages, want, pages)
	}
}

// warms wants the account of warmed pages, in pages.
func (r *rig) warms(prepared, restored, unused, pending uint64) {
	r.t.Helper()
	r.check()
	s := r.Stats()
	got := [4]uint64{s.WarmupPreparedBytesTotal / page, s.WarmupRestoredBytesTotal / page, s.WarmupUnusedBytesTotal / page, s.WarmupPendingBytes / page}
	if want := [4]uint64{prepared, restored, unused, pending}; got != want {
		r.t.Fatalf("prepared, restored, unused and pending pages are %v, want %v", got, want)
	}
}

// idle wants that hints hold neither bytes nor permits.
func (r *rig) idle() {
	r.t.Helper()
	r.check()
	if s := r.Stats(); s.QueryReservedByPhase["warming"] != 0 || s.OperationsWarming != 0 || len(r.Cache.hints) != 0 || r.Cache.operations != 0 {
		r.t.Fatalf("hints keep %d bytes, %d hints and %d permits are left", s.QueryReservedByPhase["warming"], s.OperationsWarming, r.Cache.operations)
	}
}

func TestAHintBringsWhatOnlyTheTierHasAndNobodyNeedsToAsk(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 6)
	r.hints(e, "a", keysOf(0, 8), wire.HintAccepted, 6)
	if charged := phaseOf(r, "warming"); charged != 6*page || len(b.reads) != 6 {
		t.Fatalf("%d bytes are charged and %d reads run for six pages", charged, len(b.reads))
	}
	for i, priority := range b.priorities {
		if priority != ReadWarm {
			t.Fatalf("read %d has priority %d", i, priority)
		}
	}
	for len(b.reads) > 0 {
		r.endRead(b, len(b.reads)/2, true)
		r.check()
	}
	r.idle()
	r.warms(6, 0, 0, 6)
	if s := r.Stats(); s.ResidentPages["reclaimable"] != 6 || s.Leases != 0 || s.PageHitsTotal+s.PageMissesTotal != 0 || s.WarmupEndsTotal["read"] != 1 {
		t.Fatalf("%+v", s)
	}
	if told := e.scheduler.queue.take(NoticeQuery); len(told) != 0 {
		t.Fatalf("a hint promises nothing, its client was told of %v", told)
	}
	got := r.query(e, keysOf(0, 8))
	if got.Outcome != wire.OutcomeReady || got.Pages != 6 || len(b.reads) != 0 {
		t.Fatalf("the query was answered %+v", got)
	}
	r.warms(6, 0, 0, 6) // a lease decides nothing
	if s := r.Stats(); s.ResidentPages["retained"] != 6 || s.PageHitsTierTotal != 0 {
		t.Fatalf("%+v", s)
	}
	r.clock.forward(3 * time.Second)
	r.restore(e, got)
	r.warms(6, 6, 0, 0)
	if waited := r.Stats().WarmupByteSecondsTotal; waited["restored"] != float64(6*page)*3 || waited["unused"] != 0 {
		t.Fatalf("byte-seconds are %v", waited)
	}
}

func TestAHintExpiresWithoutAPollAndItsReadsDrain(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 6)
	r.hints(e, "a", keysOf(0, 6), wire.HintAccepted, 6)
	r.endRead(b, 0, true)
	if len(b.reads) != 2 || phaseOf(r, "warming") != 6*page {
		t.Fatalf("%d reads, %v", len(b.reads), r.Stats().QueryReservedByPhase)
	}
	r.clock.forward(WarmExpiry - time.Millisecond)
	r.Tick()
	if len(r.Cache.hints) != 1 || phaseOf(r, "warming") != 6*page {
		t.Fatal("it expired too early")
	}
	r.clock.forward(time.Millisecond)
	r.Tick()
	if s := r.Stats(); s.QueryReservedByPhase["warming"] != 2*page || s.OperationsWarming != 1 || s.WarmupEndsTotal["expired"] != 1 || s.ResidentPages["reclaimable"] != 1 {
		t.Fatalf("%+v", s)
	}
	r.check()
	r.endReads(b)
	r.idle()
	r.warms(3, 0, 0, 3) // the pages stay: no clock frees them
	r.clock.forward(time.Hour)
	r.Tick()
	r.warms(3, 0, 0, 3)
}

func TestACancelledHintStartsNothingAndItsReadsDrain(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 6)
	r.hints(e, "a", keysOf(0, 6), wire.HintAccepted, 6)
	r.must(r.CancelWarm(e.scheduler.id, 77)) // another one
	r.must(r.CancelWarm(e.scheduler.id, e.ticket))
	if phaseOf(r, "warming") != 2*page || len(b.reads) != 2 {
		t.Fatalf("%d reads, %v", len(b.reads), r.Stats().QueryReservedByPhase)
	}
	r.must(r.CancelWarm(e.scheduler.id, e.ticket))
	r.check()
	r.endRead(b, 1, true)
	r.endRead(b, 0, false)
	r.idle()
	r.warms(1, 0, 0, 1)
}

// The query of a request ends its hint first, whatever its keys are, joins what is read for it and goes before other hints.
func TestAQueryEndsTheHintOfItsRequest(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 12)
	next := func() string { return fmt.Sprint(e.operation + 1) } // the request of the next query
	r.hints(e, next(), keysOf(0, 6), wire.HintAccepted, 6)
	r.hints(e, "another", keysOf(6, 2), wire.HintAccepted, 2)
	got := r.query(e, keysOf(0, 6))
	if s := r.Stats(); s.WarmupEndsTotal["demanded"] != 1 || s.QueryReservedByPhase["warming"] != 4*page || s.QueryReservedByPhase["preparing"] != 6*page {
		t.Fatalf("%+v", s)
	}
	if len(b.hastened) != 2 || b.hastened[0].key != keyOf(0) || b.hastened[1].key != keyOf(1) {
		t.Fatalf("hastened: %v", b.hastened)
	}
	r.check()
	r.endReads(b)
	ready := r.outcome(e, got.Operation, 1, wire.OutcomeReady)
	r.restore(e, ready)
	r.warms(4, 2, 0, 2) // two of the query's six pages were read by the hint
	r.idle()
	if s := r.Stats(); s.ResidentPages["retained"] != 6 || s.ResidentPages["reclaimable"] != 2 {
		t.Fatalf("%+v", s.ResidentPages)
	}
	r.hints(e, next(), keysOf(8, 4), wire.HintAccepted, 4)
	r.query(e, keysOf(100, 2)) // other hashes than the hint named
	if s := r.Stats(); s.WarmupEndsTotal["demanded"] != 2 {
		t.Fatalf("%+v", s.WarmupEndsTotal)
	}
	r.endReads(b)
	r.idle()
}

// Two requests with one prefix: one read, two owners, counted once.
func TestHintsJoinOneAnother(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	other := r.engine("b", 200, one(page))
	r.hints(e, "a", keysOf(0, 4), wire.HintAccepted, 4)
	r.hints(other, "b", keysOf(0, 4), wire.HintAccepted, 4)
	if len(b.reads) != 4 || phaseOf(r, "warming") != 8*page {
		t.Fatalf("%d reads, %v", len(b.reads), r.Stats().QueryReservedByPhase)
	}
	r.must(r.CancelWarm(e.scheduler.id, e.ticket)) // the other one's work goes on
	r.endReads(b)
	r.idle()
	r.warms(4, 0, 0, 4)
	if len(b.hastened) != 0 {
		t.Fatal("no query waits")
	}
}

// A hint that joins a read of a query neither counts its pages nor makes them its own.
func TestAHintThatJoinsAQueryCountsNothing(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	other := r.engine("b", 200, one(page))
	got := r.query(e, keysOf(0, 4))
	r.must(r.CancelQuery(e.scheduler.id, got.Operation, 1)) // else the guard keeps the hint out
	r.hints(other, "b", keysOf(0, 4), wire.HintAccepted, 4)
	if len(b.reads) != 4 {
		t.Fatalf("%d reads", len(b.reads))
	}
	for len(b.reads) > 0 {
		r.endRead(b, 0, true)
		r.check()
	}
	r.idle()
	r.warms(0, 0, 0, 0)
	if s := r.Stats(); s.ResidentPages["retained"] != 4 {
		t.Fatalf("%+v", s.ResidentPages)
	}
}

func TestResidentPagesAreLookedAtAndNotTouched(t *testing.T) {
	r, b, e := tierRig(t, Config{LFUAdmission: true, ProtectedPercent: 50}, 6)
	r.publish(e, keysOf(0, 3))
	r.endWrites(b)
	order := func() (oldest []index.Handle) {
		for h := range r.victims(r.instances[e.id]) {
			oldest = append(oldest, h)
		}
		return oldest
	}
	before, uses := order(), r.uses.Estimate(policyPage(e.ns.Namespace, 0, &keysOf(0, 1)[0]))
	r.hints(e, "a", keysOf(0, 3), wire.HintComplete, 0)
	r.hints(e, "a", keysOf(0, 4), wire.HintAccepted, 1)
	r.must(r.CancelWarm(e.scheduler.id, e.ticket))
	after := order()
	if len(before) != 3 || len(after) != 3 || before[0] != after[0] || before[1] != after[1] || before[2] != after[2] {
		t.Fatalf("the order of victims was %v, it is %v", before, after)
	}
	if r.uses.Estimate(policyPage(e.ns.Namespace, 0, &keysOf(0, 1)[0])) != uses {
		t.Fatal("a hint counted as a use")
	}
	r.endReads(b)
	r.warms(1, 0, 0, 1)
}

// What a hint brought is the first to go, a page that is read again is another cohort, and a page is unused with its last reference, not with its eviction.
func TestUnusedPagesAreCountedWithTheirLastReference(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 4)
	r.hint(e, "a", keysOf(0, 4))
	r.endReads(b)
	r.clock.forward(2 * time.Second)
	got := r.query(e, keysOf(0, 2))
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, 2))
	r.Cleanup()
	r.warms(4, 0, 2, 2) // a copy may still arrive from the other two
	if waited := r.Stats().WarmupByteSecondsTotal["unused"]; waited != float64(2*page)*2 {
		t.Fatalf("%g byte-seconds", waited)
	}
	r.clock.forward(time.Second)
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, true, 1, all(1)))
	r.must(r.Restored(e.ranks[0].id, got.Lease, 0, false, 0, []wire.Range{{First: 1, Count: 1}}))
	r.warms(4, 1, 3, 0) // one arrived, the copy of the other failed and nobody has it any more
	r.hint(e, "b", keysOf(0, 2))
	r.endReads(b)
	r.warms(6, 1, 3, 2)
}

// A failed copy leaves a page undecided; a later one that arrives decides it, once whatever the number of ranks.
func TestAFailedCopyDecidesNothingAndRanksCountOnce(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 16 * mib, Tier: b})
	e := r.engine("a", 100, shape{slices: []uint64{page / 2, page / 2}})
	r.evictAll(b, e, 2)
	r.hint(e, "a", keysOf(0, 2))
	r.endReads(b)
	got := r.query(e, keysOf(0, 2))
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, 2))
	for rank := range e.ranks {
		r.must(r.Restored(e.ranks[rank].id, got.Lease, uint16(rank), false, 0, all(2)))
	}
	r.warms(2, 0, 0, 2)
	r.restore(e, r.query(e, keysOf(0, 2)))
	r.restore(e, r.query(e, keysOf(0, 2)))
	r.warms(2, 2, 0, 0)
}

// A hint holds what came until all of it came: in a full pool its later reads would take that first.
func TestAHintDoesNotEvictItself(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 32 * page, ReadBatchBytes: page}, 24)
	r.publish(e, keysOf(100, 32))
	r.endWrites(b)
	r.hints(e, "a", keysOf(0, 6), wire.HintAccepted, 6)
	for len(b.reads) > 0 {
		r.endRead(b, 0, true)
		r.check()
	}
	if n := r.found(e, keysOf(0, 6)); n != 6 {
		t.Fatalf("%d of six pages are left", n)
	}
	r.warms(6, 0, 0, 6)
	r.Cleanup()
	r.publish(e, keysOf(200, 30))
	r.hint(e, "b", keysOf(0, 2))
	r.endReads(b)
	r.publish(e, keysOf(300, 2)) // takes what the hint brought
	r.warms(8, 0, 8, 0)
}

// Whatever takes a hint's owner or pages away leaves its reads their bytes and the permit until they end.
func TestHintsEndWithTheirSessionTheirNamespaceAndAllPages(t *testing.T) {
	for name, end := range map[string]func(*rig, *engine){
		"session closes": func(r *rig, e *engine) { r.CloseSession(e.scheduler.id) },
		"process exits":  func(r *rig, e *engine) { r.ProcessExited(e.scheduler.process) },
		"detach":         func(r *rig, e *engine) { r.must(r.Detach(e.scheduler.id, e.id)) },
		"resume": func(r *rig, e *engine) {
			next := r.connect(e.scheduler.process, wire.RoleScheduler)
			_, _, err := r.Resume(next.id, e.scheduler.token, nil, nil)
			r.must(err)
		},
		"epoch": func(r *rig, e *engine) {
			_, err := r.NewEpoch(e.scheduler.id, e.id, 5)
			r.must(err)
		},
		"clear": func(r *rig, e *engine) { r.Clear() },
		"everything exits": func(r *rig, e *engine) {
			r.ProcessExited(e.scheduler.process)
			r.ProcessExited(e.ranks[0].process)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 6)
			r.hints(e, "a", keysOf(0, 5), wire.HintAccepted, 5)
			r.endRead(b, 0, true)
			end(r, e)
			r.check()
			instances := uint64(1) // it lives as long as a read of it runs
			if s := r.Stats(); s.QueryReservedByPhase["warming"] != 2*page || s.OperationsWarming != 1 || s.WarmupEndsTotal["dropped"] != 1 || s.Instances != instances {
				t.Fatalf("%+v", s)
			}
			r.endReads(b)
			r.idle()
			if name == "everything exits" {
				instances = 0
			}
			s := r.Stats()
			if s.Instances != instances {
				t.Fatalf("%d instances are left, want %d", s.Instances, instances)
			}
			if s.WarmupPreparedBytesTotal != s.WarmupUnusedBytesTotal+s.WarmupPendingBytes {
				t.Fatalf("%+v", s)
			}
			r.Clear()
			if s := r.Stats(); s.WarmupPendingBytes != 0 || s.PoolUsedBytes != 0 {
				t.Fatalf("%+v", s)
			}
		})
	}
}

// A page in the middle that fails, is lost or finds no room ends the hint there: no prefix goes on behind it.
func TestAHintEndsWhereItsPrefixBreaks(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 8)
	r.hints(e, "a", keysOf(0, 8), wire.HintAccepted, 8)
	r.endRead(b, 0, false)
	r.endReads(b)
	r.idle()
	r.warms(1, 0, 0, 1)
	r.hints(e, "b", keysOf(2, 6), wire.HintAccepted, 6)
	delete(b.stored, storedKey{1, 0, keyOf(5)})
	r.endReads(b)
	r.idle()
	r.warms(4, 0, 0, 4)
	if ends := r.Stats().WarmupEndsTotal; ends["broken"] != 2 {
		t.Fatalf("%v", ends)
	}
	full := r.query(e, keysOf(2, 3))
	r.must(r.Begin(e.scheduler.id, full.Lease, wire.AllRanks, 3))
	r.must(r.Restored(e.ranks[0].id, full.Lease, 0, true, 3, all(3)))
	r.warms(4, 3, 0, 1)
}

func TestAHintThatFindsNoRoomEnds(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 16 * page, QueryBudgetBytes: 16 * page}, 4)
	got := r.reserve(e, keysOf(100, 16)) // an engine writes the whole pool
	r.hints(e, "a", keysOf(0, 2), wire.HintAccepted, 2)
	if ends := r.Stats().WarmupEndsTotal; ends["no_room"] != 1 || len(b.reads) != 0 {
		t.Fatalf("%v, %d reads", ends, len(b.reads))
	}
	r.idle()
	r.commit(e, got)
}

// While anything is read, a hint leaves the tier's queue room for a batch of a query, and goes on by itself when there is some.
func TestHintsLeaveRoomInTheQueue(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 12)
	b.room = 4
	r.hints(e, "a", keysOf(0, 3), wire.HintAccepted, 3)
	r.hints(e, "b", keysOf(4, 3), wire.HintAccepted, 3)
	if len(b.reads) != 2 || b.ReadRoom() != 2 {
		t.Fatalf("%d reads", len(b.reads))
	}
	other := r.engine("z", 200, one(page))
	if r.query(other, keysOf(8, 2)); len(b.reads) != 4 {
		t.Fatal("a query found no room")
	}
	r.endReads(b)
	r.warms(6, 0, 0, 6)
	if s := r.Stats(); s.OperationsWarming != 0 || s.QueryReservedByPhase["warming"] != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestAHintThatCannotBeOneIsRefused(t *testing.T) {
	r, _, e := tierRig(t, Config{}, 2)
	w := Warm{Ticket: 1, Namespace: e.ns.Namespace, Instance: e.id, Request: "a", Keys: keysOf(0, 1)}
	try := func(change func(*Warm)) error {
		next := w
		change(&next)
		_, err := r.WarmPrefix(e.scheduler.id, next)
		return err
	}
	r.fails(try(func(w *Warm) { w.Ticket = 0 }), wire.StatusStale)
	r.fails(try(func(w *Warm) { w.Request = "" }), wire.StatusConflict)
	r.fails(try(func(w *Warm) { w.Instance = "other" }), wire.StatusUnknown)
	r.fails(try(func(w *Warm) { w.Namespace = 9 }), wire.StatusUnknown)
	r.fails(try(func(w *Warm) { w.Keys = make([]wire.Key, wire.OperationKeysMax+1) }), wire.StatusTooLarge)
	r.must(try(func(*Warm) {}))
	r.fails(try(func(*Warm) {}), wire.StatusStale)
	_, err := r.WarmPrefix(e.ranks[0].id, w)
	r.fails(err, wire.StatusUnknown)
}

// One rank hints for all that schedule together: it charges once, the query of any of them ends it, and so does its leaving.
func TestOneRankHintsForAll(t *testing.T) {
	r, b, e := tierTeam(t, 4)
	hint := func(ticket uint64, request string) {
		t.Helper()
		got, err := r.WarmPrefix(e.schedulers[0].id, Warm{Ticket: ticket, Namespace: e.ns.Namespace, Instance: e.id, Request: request, Keys: keysOf(0, 4)})
		r.must(err)
		if got != (Warmed{wire.HintAccepted, 4}) || phaseOf(r, "warming") != 4*e.ns.PageBytes {
			t.Fatalf("%+v, %v", got, r.Stats().QueryReservedByPhase)
		}
		r.check()
	}
	hint(1, "2")
	r.wantOutcome(r.ask(e, 1, 2, keysOf(0, 4)), wire.OutcomePreparing, 0)
	if r.Stats().WarmupEndsTotal["demanded"] != 1 {
		t.Fatal("the other rank's query did not end it")
	}
	r.endReads(b)
	got := r.pollAs(e, 1, 2)
	r.wantOutcome(got, wire.OutcomeReady, 4)
	r.must(r.Release(e.schedulers[1].id, got.Lease, 1))
	r.Cleanup()
	hint(2, "3")
	r.must(r.Detach(e.schedulers[0].id, e.id))
	if s := r.Stats(); s.WarmupEndsTotal["dropped"] != 1 || s.OperationsWarming != 1 {
		t.Fatalf("%+v", s)
	}
	r.endReads(b)
	r.idle()
}

// What hints charge is in both budgets: a query that does not fit beside it waits until their reads have ended.
func TestAQueryWaitsForTheBytesOfHints(t *testing.T) {
	for name, config := range map[string]Config{
		"global":   {QueryBudgetBytes: 8 * page},
		"instance": {QueryBudgetBytes: 64 * page, InstanceBudgetBytes: 8 * page},
	} {
		t.Run(name, func(t *testing.T) {
			r, b, e := tierRig(t, config, 12)
			hinter := e
			if name == "global" {
				hinter = r.engine("b", 200, one(page))
			}
			r.hints(hinter, "a", keysOf(8, 2), wire.HintAccepted, 2)
			got := r.query(e, keysOf(0, 7))
			if got.Outcome != wire.OutcomeWaiting {
				t.Fatalf("the query is %v", got.Outcome)
			}
			r.endRead(b, 0, true) // a hint holds what came until all of it came
			r.outcome(e, got.Operation, 1, wire.OutcomeWaiting)
			r.endRead(b, 0, true)
			r.outcome(e, got.Operation, 1, wire.OutcomePreparing)
			r.endReads(b)
			r.outcome(e, got.Operation, 1, wire.OutcomeReady)
		})
	}
}
