package cache

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"orbitkv/internal/wire"
)

// team is an instance that its ranks schedule together: each rank is one process with a worker and a scheduler session.
type team struct {
	id         string
	sh         shape
	workers    []client
	schedulers []client
	ns         Registered
}

func (r *rig) team(id string, pid int, sh shape) *team {
	r.t.Helper()
	e := &team{id: id, sh: sh}
	for rank := range sh.slices {
		process := r.process(pid + rank)
		e.workers = append(e.workers, r.connect(process, wire.RoleWorker))
		e.schedulers = append(e.schedulers, r.connect(process, wire.RoleScheduler))
		r.attachWorker(e, rank)
	}
	for rank, s := range e.schedulers {
		ns, err := r.Register(s.id, id, uint16(rank))
		r.must(err)
		e.ns = ns
	}
	return e
}

func (r *rig) attachWorker(e *team, rank int) {
	r.t.Helper()
	if _, err := r.Attach(e.workers[rank].id, e.sh.attach(e.id, rank)); err != nil {
		r.t.Fatal(err)
	}
	r.must(r.Mapped(e.workers[rank].id, 0, true, ""))
}

func two() shape { return writers(wire.WriterHost, wire.WriterHost) }

func (e *team) query(n uint64, keys []wire.Key) Query {
	return Query{Operation: n, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Request: fmt.Sprint(n), Keys: keys}
}

func (r *rig) ask(e *team, rank int, n uint64, keys []wire.Key) Result {
	r.t.Helper()
	got, err := r.SubmitQuery(e.schedulers[rank].id, e.query(n, keys))
	r.must(err)
	return got
}

func (r *rig) tryReserve(e *team, rank int, n uint64, keys []wire.Key) (Reserved, error) {
	return r.Reserve(e.schedulers[rank].id, Reserve{Operation: n, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Keys: keys})
}

func (r *rig) reserveFor(e *team, rank int, n uint64, keys []wire.Key) Reserved {
	r.t.Helper()
	got, err := r.tryReserve(e, rank, n, keys)
	r.must(err)
	return got
}

// publishAll has every rank reserve and commit the same pages.
func (r *rig) publishAll(e *team, n uint64, keys []wire.Key) {
	r.t.Helper()
	for rank := range e.schedulers {
		got := r.reserveFor(e, rank, n, keys)
		if int(got.Pages) != len(keys) {
			r.t.Fatalf("%d pages of %d were granted", got.Pages, len(keys))
		}
		r.must(r.Committed(e.workers[rank].id, got.Reservation, uint16(rank), all(got.Pages)))
	}
}

func (r *rig) wantOutcome(got Result, outcome wire.Outcome, pages int) {
	r.t.Helper()
	if got.Outcome != outcome || int(got.Pages) != pages {
		r.t.Fatalf("got %+v, want %v with %d pages", got, outcome, pages)
	}
}

func (r *rig) wantHeld(leases, operations, bytes uint64) {
	r.t.Helper()
	r.check()
	if s := r.Stats(); s.Leases != leases || s.OperationsReady != operations || s.QueryReservedBytes != bytes {
		r.t.Fatalf("%d leases, %d ready operations and %d bytes, want %d, %d and %d", s.Leases, s.OperationsReady, s.QueryReservedBytes, leases, operations, bytes)
	}
}

func TestRanksAskOneOperation(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	first := r.ask(e, 0, 2, keysOf(0, 4))
	r.wantOutcome(first, wire.OutcomeReady, 4)
	second := r.ask(e, 1, 2, keysOf(0, 4))
	if second.Lease != first.Lease || !slices.Equal(second.Runs, first.Runs) {
		t.Fatalf("%+v and %+v", first, second)
	}
	if again := r.ask(e, 1, 2, keysOf(0, 4)); again.Lease != first.Lease {
		t.Fatalf("%+v", again)
	}
	r.wantHeld(1, 1, 4*2*page)
	if s := r.Stats(); s.PageHitsTotal != 4 || s.PageMissesTotal != 0 {
		t.Fatalf("one operation was counted twice: %+v", s)
	}
	r.must(r.Begin(e.schedulers[0].id, first.Lease, 0, 3))
	r.wantHeld(1, 1, 4*2*page)
	r.must(r.Begin(e.schedulers[1].id, first.Lease, 1, 3))
	r.wantHeld(1, 0, 3*2*page)
	r.must(r.Restored(e.workers[1].id, first.Lease, 1, true, 3*page, all(3)))
	r.wantHeld(1, 0, 3*2*page)
	r.must(r.Restored(e.workers[0].id, first.Lease, 0, true, 3*page, all(3)))
	r.wantHeld(0, 0, 0)
	if s := r.ask(e, 0, 2, keysOf(0, 4)); s.Outcome != wire.OutcomeStale {
		t.Fatalf("%+v", s)
	}
	r.wantHeld(0, 0, 0)
}

// What a rank that has not asked could still use ends when a rank that did ask decides, or when the rank itself goes on to a later number.
func TestARankThatSkipsHoldsNothing(t *testing.T) {
	for name, decide := range map[string]func(r *rig, e *team, lease uint64){
		"begin":   func(r *rig, e *team, lease uint64) { r.must(r.Begin(e.schedulers[0].id, lease, 0, 4)) },
		"release": func(r *rig, e *team, lease uint64) { r.must(r.Release(e.schedulers[0].id, lease, 0)) },
		"cancel":  func(r *rig, e *team, _ uint64) { r.must(r.CancelQuery(e.schedulers[0].id, 2, 1)) },
		"yield":   func(r *rig, e *team, lease uint64) { r.must(r.Revoked(e.schedulers[0].id, lease, true)) },
		"later":   func(r *rig, e *team, _ uint64) { r.ask(e, 1, 3, keysOf(50, 1)) },
		"exit":    func(r *rig, e *team, _ uint64) { r.kill(e.schedulers[0]) },
		"detach":  func(r *rig, e *team, _ uint64) { r.must(r.Detach(e.schedulers[0].id, "a")) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{PoolBytes: 16 * mib})
			e := r.team("a", 100, two())
			r.publishAll(e, 1, keysOf(0, 4))
			got := r.ask(e, 0, 2, keysOf(0, 4))
			decide(r, e, got.Lease)
			r.check()
			if l := r.leases[got.Lease]; l != nil && l.consumers[1].state != consumerReleased {
				t.Fatalf("the part of rank 1 is %s", consumerMachine.Names[l.consumers[1].state])
			}
			if name == "begin" {
				r.must(r.Restored(e.workers[0].id, got.Lease, 0, true, 4*page, all(4)))
			}
			if name == "later" {
				r.wantHeld(1, 1, 4*2*page)
				r.wantOutcome(r.ask(e, 1, 2, keysOf(0, 4)), wire.OutcomeStale, 0)
				r.must(r.Release(e.schedulers[0].id, got.Lease, 0))
			}
			r.wantHeld(0, 0, 0)
		})
	}
}

func TestARankThatAsksLateMakesAnOperationOfItsOwn(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	first := r.ask(e, 0, 2, keysOf(0, 4))
	r.must(r.Release(e.schedulers[0].id, first.Lease, 0))
	own := r.ask(e, 1, 2, keysOf(0, 4))
	r.wantOutcome(own, wire.OutcomeReady, 4)
	r.wantHeld(1, 1, 4*2*page)
	r.must(r.Begin(e.schedulers[1].id, own.Lease, 1, 4))
	r.must(r.Restored(e.workers[1].id, own.Lease, 1, true, 4*page, all(4)))
	r.wantHeld(0, 0, 0)
}

func TestRanksThatDisagreeAreTold(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	got := r.ask(e, 0, 2, keysOf(0, 4))
	for field, change := range map[string]func(*Query){
		"revision":     func(q *Query) { q.Revision = 2 },
		"request":      func(q *Query) { q.Request = "x" },
		"group":        func(q *Query) { q.Group = 1 },
		"list of keys": func(q *Query) { q.Keys = keysOf(0, 3) },
	} {
		q := e.query(2, keysOf(0, 4))
		change(&q)
		_, err := r.SubmitQuery(e.schedulers[1].id, q)
		r.fails(err, wire.StatusConflict)
		for _, word := range []string{"query 2", `"a"`, field, "rank 1"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not name %s", err, word)
			}
		}
	}
	first := r.reserveFor(e, 0, 3, keysOf(10, 2))
	for field, change := range map[string]func(*Reserve){
		"revision":     func(q *Reserve) { q.Revision = 2 },
		"group":        func(q *Reserve) { q.Group = 1 },
		"list of keys": func(q *Reserve) { q.Keys = keysOf(10, 3) },
	} {
		q := Reserve{Operation: 3, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Keys: keysOf(10, 2)}
		change(&q)
		_, err := r.Reserve(e.schedulers[1].id, q)
		r.fails(err, wire.StatusConflict)
		if !strings.Contains(err.Error(), "reserve 3") || !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
	r.check()
	if again := r.ask(e, 1, 2, keysOf(0, 4)); again.Lease != got.Lease {
		t.Fatalf("the call that agrees: %+v", again)
	}
	if again := r.reserveFor(e, 1, 3, keysOf(10, 2)); again.Reservation != first.Reservation {
		t.Fatalf("the call that agrees: %+v", again)
	}
	r.check()
}

func TestResultsThatFoundNothingWaitForTheOtherRanks(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, SessionOperations: 8})
	e := r.team("a", 100, two())
	for n := range uint64(JointAnswersMax + 1) {
		r.wantOutcome(r.ask(e, 0, n+1, keysOf(int(n), 1)), wire.OutcomeReady, 0)
	}
	r.check()
	if s := r.Stats(); s.JointAnswersDroppedTotal != 1 || s.BusyTotal != 0 || len(r.instances["a"].joint.empty) != JointAnswersMax {
		t.Fatalf("%+v", s)
	}
	r.publishAll(e, 1, keysOf(0, JointAnswersMax+1))
	r.wantOutcome(r.ask(e, 1, 2, keysOf(1, 1)), wire.OutcomeReady, 0) // the common answer, although the page is there now
	r.wantOutcome(r.ask(e, 1, 2, keysOf(1, 1)), wire.OutcomeStale, 0)
	r.wantOutcome(r.ask(e, 1, 1, keysOf(0, 1)), wire.OutcomeStale, 0)
	r.wantOutcome(r.ask(e, 1, JointAnswersMax+1, keysOf(JointAnswersMax, 1)), wire.OutcomeReady, 0)
	r.check()
	if kept := len(r.instances["a"].joint.operations); kept != 0 {
		t.Fatalf("%d results are kept for a rank that passed them", kept)
	}
	if s := r.Stats(); s.PageMissesTotal != JointAnswersMax+1 {
		t.Fatalf("%+v", s)
	}
}

func TestTheFirstThatAsksPays(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, SessionOperations: 2})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 6))
	leases := []uint64{r.ask(e, 0, 2, keysOf(0, 1)).Lease, r.ask(e, 0, 3, keysOf(1, 1)).Lease}
	r.wantOutcome(r.ask(e, 0, 4, keysOf(2, 1)), wire.OutcomeBusy, 0)
	r.ask(e, 1, 2, keysOf(0, 1))
	r.ask(e, 1, 3, keysOf(1, 1))
	leases = append(leases, r.ask(e, 1, 5, keysOf(2, 1)).Lease, r.ask(e, 1, 6, keysOf(3, 1)).Lease)
	r.wantOutcome(r.ask(e, 1, 7, keysOf(4, 1)), wire.OutcomeBusy, 0)
	r.ask(e, 0, 6, keysOf(3, 1))
	r.wantHeld(4, 4, 4*2*page)
	r.kill(e.schedulers[0]) // rank 1 shares two of its queries and pays for them now
	r.wantHeld(4, 4, 4*2*page)
	for _, s := range r.Status().Sessions {
		if s.Session == uint64(e.schedulers[1].id) && s.Operations != 4 {
			t.Fatalf("%+v", s)
		}
	}
	for _, lease := range leases {
		r.must(r.Release(e.schedulers[1].id, lease, 1))
	}
	r.wantHeld(0, 0, 0)
}

func TestQueriesOfRanksWaitForBudgetOnce(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 4 * 2 * page})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 6))
	full := r.ask(e, 0, 2, keysOf(0, 4))
	r.wantOutcome(r.ask(e, 0, 3, keysOf(2, 4)), wire.OutcomeWaiting, 0)
	r.wantOutcome(r.ask(e, 1, 3, keysOf(2, 4)), wire.OutcomeWaiting, 0) // and so skips query 2
	if s := r.Stats(); s.OperationsWaiting != 1 || s.QueryBudgetWaitsTotal != 1 {
		t.Fatalf("%+v", s)
	}
	r.must(r.Release(e.schedulers[0].id, full.Lease, 0))
	var lease uint64
	for rank, s := range e.schedulers {
		if ids := s.queue.take(NoticeQuery); !slices.Equal(ids, []uint64{3}) {
			t.Fatalf("rank %d was told of %v", rank, ids)
		}
		got, err := r.PollQuery(s.id, 3, 1)
		r.must(err)
		r.wantOutcome(got, wire.OutcomeReady, 4)
		if lease != 0 && got.Lease != lease {
			t.Fatal("two leases")
		}
		lease = got.Lease
	}
	r.wantHeld(1, 1, 4*2*page)
	// Nobody is left of a query that waits: it ends.
	r.wantOutcome(r.ask(e, 1, 4, keysOf(0, 4)), wire.OutcomeWaiting, 0)
	r.must(r.CancelQuery(e.schedulers[1].id, 4, 1))
	_, err := r.PollQuery(e.schedulers[0].id, 4, 1)
	r.fails(err, wire.StatusUnknown)
	got, err := r.PollQuery(e.schedulers[1].id, 4, 1)
	r.must(err)
	r.wantOutcome(got, wire.OutcomeStale, 0)
	r.wantHeld(1, 1, 4*2*page)
}

func TestARankSpeaksForItselfAlone(t *testing.T) {
	for name, call := range map[string]func(r *rig, e *team, lease, reservation uint64) error{
		"begin of another rank": func(r *rig, e *team, lease, _ uint64) error { return r.Begin(e.schedulers[0].id, lease, 1, 1) },
		"begin of all": func(r *rig, e *team, lease, _ uint64) error {
			return r.Begin(e.schedulers[0].id, lease, wire.AllRanks, 1)
		},
		"release of all": func(r *rig, e *team, lease, _ uint64) error {
			return r.Release(e.schedulers[0].id, lease, wire.AllRanks)
		},
		"begin unasked":   func(r *rig, e *team, lease, _ uint64) error { return r.Begin(e.schedulers[1].id, lease, 1, 1) },
		"revoked unasked": func(r *rig, e *team, lease, _ uint64) error { return r.Revoked(e.schedulers[1].id, lease, true) },
		"abandoned of all": func(r *rig, e *team, _, reservation uint64) error {
			return r.Abandoned(e.schedulers[0].id, reservation, wire.AllRanks, all(1))
		},
		"abandoned of another rank": func(r *rig, e *team, _, reservation uint64) error {
			return r.Abandoned(e.schedulers[0].id, reservation, 1, all(1))
		},
		"abandoned unasked": func(r *rig, e *team, _, reservation uint64) error {
			return r.Abandoned(e.schedulers[1].id, reservation, 1, all(1))
		},
		"committed by the scheduler": func(r *rig, e *team, _, reservation uint64) error {
			return r.Committed(e.schedulers[0].id, reservation, 0, all(1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{PoolBytes: 16 * mib})
			e := r.team("a", 100, two())
			r.publishAll(e, 1, keysOf(0, 4))
			r.fails(call(r, e, r.ask(e, 0, 2, keysOf(0, 4)).Lease, r.reserveFor(e, 0, 2, keysOf(10, 1)).Reservation), wire.StatusUnknown)
			r.wantHeld(1, 1, 4*2*page)
		})
	}
}

func TestARevokeReachesEveryRankThatHolds(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, writers(wire.WriterHost, wire.WriterHost, wire.WriterHost))
	r.publishAll(e, 1, keysOf(0, 4))
	got := r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 1, 2, keysOf(0, 4))
	r.ask(e, 2, 2, keysOf(0, 4))
	r.must(r.Begin(e.schedulers[0].id, got.Lease, 0, 4))
	r.clock.forward(time.Hour)
	r.Tick()
	for rank, want := range []int{0, 1, 1} {
		if ids := e.schedulers[rank].queue.take(NoticeRevoke); len(ids) != want {
			t.Fatalf("rank %d was asked for %v", rank, ids)
		}
	}
	r.must(r.Revoked(e.schedulers[1].id, got.Lease, true))
	r.must(r.Revoked(e.schedulers[2].id, got.Lease, false))
	r.must(r.Revoked(e.schedulers[1].id, got.Lease, true)) // crosses the end of its part
	poll, err := r.PollQuery(e.schedulers[1].id, 2, 1)
	r.must(err)
	r.wantOutcome(poll, wire.OutcomeYielded, 0)
	poll, err = r.PollQuery(e.schedulers[2].id, 2, 1)
	r.must(err)
	r.wantOutcome(poll, wire.OutcomeReady, 4)
	r.wantHeld(1, 1, 4*3*page)
	r.must(r.Release(e.schedulers[2].id, got.Lease, 2))
	r.must(r.Restored(e.workers[0].id, got.Lease, 0, true, 4*page, all(4)))
	r.wantHeld(0, 0, 0)
}

func TestWhoSchedulesAnInstance(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	other := r.connect(r.process(900), wire.RoleScheduler)
	for _, rank := range []uint16{0, 1, 2, wire.AllRanks} {
		_, err := r.Register(other.id, "a", rank)
		r.fails(err, wire.StatusConflict)
	}
	_, err := r.Register(e.schedulers[0].id, "a", 1)
	r.fails(err, wire.StatusConflict)
	rival := r.connect(e.schedulers[0].process, wire.RoleScheduler)
	_, err = r.Register(rival.id, "a", 0)
	r.fails(err, wire.StatusConflict)
	r.CloseSession(e.schedulers[0].id)
	_, err = r.Register(rival.id, "a", 0)
	r.must(err)
	r.check()

	whole := r.engine("b", 200, one(page))
	_, err = r.Register(r.connect(whole.ranks[0].process, wire.RoleScheduler).id, "b", 0)
	r.fails(err, wire.StatusConflict)
	_, err = r.Register(rival.id, "b", wire.AllRanks)
	r.fails(err, wire.StatusConflict)

	r.must(r.Detach(rival.id, "a"))
	r.must(r.Detach(e.schedulers[1].id, "a"))
	if _, err := r.Register(other.id, "a", wire.AllRanks); err != nil {
		t.Fatalf("nobody schedules the instance: %v", err)
	}
	_, err = r.Register(rival.id, "a", 0)
	r.fails(err, wire.StatusConflict)
	r.check()
}

func TestStatusNamesWhatRanksShare(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 0, 3, keysOf(90, 1))
	r.reserveFor(e, 1, 4, keysOf(20, 1))
	inst := r.Status().Instances[0]
	if inst.SchedulerPID != 0 || inst.Joint == nil || *inst.Joint != (JointStatus{Operations: 2, Empty: 1, Answers: 1}) {
		t.Fatalf("%+v", inst)
	}
	for rank, want := range []RankStatus{{SchedulerPID: 100, LastQuery: 3, LastReserve: 1}, {SchedulerPID: 101, LastReserve: 4}} {
		if got := inst.Ranks[rank]; got.SchedulerPID != want.SchedulerPID || got.LastQuery != want.LastQuery || got.LastReserve != want.LastReserve {
			t.Fatalf("rank %d: %+v", rank, got)
		}
	}
}

// A process that registers again without a resume gets nothing of what its older connection holds: a copy may run under it.
func TestARankThatRegistersAgainWithoutAResume(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	got := r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 1, 2, keysOf(0, 4))
	old := e.schedulers[0]
	r.CloseSession(old.id)
	e.schedulers[0] = r.connect(old.process, wire.RoleScheduler)
	_, err := r.Register(e.schedulers[0].id, "a", 0)
	r.must(err)
	r.wantOutcome(r.ask(e, 0, 2, keysOf(0, 4)), wire.OutcomeStale, 0)
	poll, err := r.PollQuery(e.schedulers[0].id, 2, 1)
	r.must(err)
	r.wantOutcome(poll, wire.OutcomeStale, 0)
	r.must(r.CancelQuery(e.schedulers[0].id, 2, 1))
	r.fails(r.Release(e.schedulers[0].id, got.Lease, 0), wire.StatusUnknown)
	r.must(r.Release(e.schedulers[1].id, got.Lease, 1))
	r.clock.forward(time.Hour)
	r.Tick()
	if s := r.Stats(); s.Leases != 1 || s.StalledBytes != 4*2*page {
		t.Fatalf("%+v", s)
	}
	leases, _, err := r.Resume(e.schedulers[0].id, old.token, []uint64{got.Lease}, nil)
	r.must(err)
	if len(leases) != 1 {
		t.Fatal("a resume that comes later finds it")
	}
	r.must(r.Release(e.schedulers[0].id, got.Lease, 0))
	r.wantHeld(0, 0, 0)
}

func TestARankThatLeavesPaysNoMore(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.team("a", 100, two())
	r.publishAll(e, 1, keysOf(0, 4))
	got := r.ask(e, 0, 2, keysOf(0, 4))
	r.ask(e, 1, 2, keysOf(0, 4))
	r.must(r.Detach(e.schedulers[0].id, "a"))
	r.wantHeld(1, 1, 4*2*page)
	for _, s := range r.Status().Sessions {
		if want := map[uint64]int{uint64(e.schedulers[1].id): 1}[s.Session]; s.Operations != want {
			t.Fatalf("%+v", s)
		}
	}
	r.must(r.Release(e.schedulers[1].id, got.Lease, 1))
	r.wantHeld(0, 0, 0)
}
