package session

import (
	"slices"
	"testing"

	"orbitkv/internal/wire"
)

// team is an instance of two ranks that schedule it together.
type team struct {
	workers    [2]*peerEnd
	schedulers [2]*peerEnd
	namespace  wire.Registered
}

func (r *rig) team(instance string) *team {
	r.Helper()
	e := &team{}
	for rank := range e.workers {
		e.workers[rank] = r.open(wire.RoleWorker)
		a := attachFrame(instance, 4096)
		a.Rank, a.World = uint16(rank), 2
		e.workers[rank].call(a, &wire.Done{})
		e.workers[rank].takeArena()
	}
	for rank := range e.schedulers {
		e.schedulers[rank] = r.open(wire.RoleScheduler)
		e.schedulers[rank].call(&wire.Register{Instance: instance, Rank: uint16(rank)}, &e.namespace)
	}
	return e
}

func TestRanksThatScheduleTogetherShareAnswers(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	e := r.team("a")
	if e.namespace.BudgetBytes != mib/4*3 || e.namespace.PageBytes != 8192 {
		t.Fatalf("%+v", e.namespace)
	}
	keys := keysOf(0, 3)
	var reserved [2]wire.Reserved
	for rank, s := range e.schedulers {
		s.call(&wire.Reserve{Operation: 1, Revision: 1, Parts: 1, Namespace: e.namespace.Namespace, Instance: "a", Keys: keys}, &reserved[rank])
		e.workers[rank].send(&wire.Committed{Reservation: reserved[rank].Reservation, Rank: uint16(rank), Ranges: []wire.Range{{Count: 3}}}, 0)
		e.workers[rank].alive()
	}
	if reserved[0].Pages != 3 || reserved[0].Reservation != reserved[1].Reservation || !slices.Equal(reserved[0].Runs, reserved[1].Runs) {
		t.Fatalf("%+v", reserved)
	}
	var results [2]wire.Result
	query := wire.Query{Operation: 2, Revision: 1, Parts: 1, Namespace: e.namespace.Namespace, Instance: "a", Request: "r", Keys: keys}
	for rank, s := range e.schedulers {
		s.call(&query, &results[rank])
	}
	if results[0].Lease == 0 || results[0].Lease != results[1].Lease || results[1].Pages != 3 {
		t.Fatalf("%+v", results)
	}
	if s := r.cache.Stats(); s.Leases != 1 || s.QueryReservedBytes != 3*8192 || s.OperationsReady != 1 {
		t.Fatalf("%+v", s)
	}
	other := query
	other.Request = "x"
	e.schedulers[0].refused(&other, wire.StatusConflict)
	e.schedulers[0].send(&wire.Begin{Lease: results[0].Lease, Rank: 0, Pages: 3}, 0)
	e.workers[0].send(&wire.Restored{Lease: results[0].Lease, Ok: true, Bytes: 3 * 4096, Ranges: []wire.Range{{Count: 3}}}, 0)
	e.schedulers[1].send(&wire.Release{Lease: results[1].Lease, Rank: 1}, 0)
	r.until("the lease to end", func() bool { return r.cache.Stats().Leases == 0 })

	e.schedulers[1].send(&wire.Begin{Lease: results[1].Lease, Rank: wire.AllRanks, Pages: 3}, 0)
	e.schedulers[1].ended(wire.StatusUnknown)
	e.schedulers[0].alive()
}

func TestOneWayOfSchedulingAnInstance(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	r.team("a")
	stranger := r.open(wire.RoleScheduler)
	stranger.refused(&wire.Register{Instance: "a", Rank: wire.AllRanks}, wire.StatusConflict)
	stranger.refused(&wire.Register{Instance: "a", Rank: 1}, wire.StatusConflict)
	stranger.refused(&wire.Register{Instance: "a", Rank: 2}, wire.StatusConflict)
	r.attach("b", 4096)
	stranger.refused(&wire.Register{Instance: "b", Rank: 0}, wire.StatusConflict)
	stranger.alive()
}
