package cache

import (
	"fmt"
	"testing"

	"orbitkv/internal/wire"
)

// fillSessions opens sessions of one process, each a rank of its own instance that is closed at once, as often as the table has places.
func (r *rig) fillSessions(process ProcessID) {
	r.t.Helper()
	for i := range SessionsMax + 10 {
		c := r.connect(process, wire.RoleScheduler)
		id := fmt.Sprint("h", i)
		if _, err := r.Attach(c.id, one(page).attach(id, 0)); err != nil {
			r.t.Fatal(err)
		}
		if i%2 == 0 {
			if _, err := r.Register(c.id, id, wire.AllRanks); err != nil {
				r.t.Fatal(err)
			}
		}
		r.CloseSession(c.id)
	}
}

func TestClosedSessionsThatHoldNothingKeepNobodyOut(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 64 * page})
	r.fillSessions(r.process(1))
	if s := r.Stats(); s.SessionsDisconnected != SessionsMax || s.Instances != SessionsMax {
		t.Fatalf("the table was to be full of places: %+v", s)
	}
	r.check()
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 2))
	r.check()
	if n := r.found(e, keysOf(0, 2)); n != 2 {
		t.Errorf("%d pages, want 2", n)
	}
}

func TestAFullTableEndsNoSessionThatMayUsePages(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 64 * page})
	reader := r.engine("reads", 100, one(page))
	writer := r.engine("writes", 200, one(page))
	r.publish(reader, keysOf(0, 4))
	lease := r.query(reader, keysOf(0, 4))
	r.must(r.Begin(reader.scheduler.id, lease.Lease, wire.AllRanks, 4))
	open := r.reserve(writer, keysOf(10, 4))
	private := r.connect(r.process(300), wire.RoleWorker)
	if _, err := r.Attach(private.id, one(page).attach("private", 0)); err != nil {
		t.Fatal(err)
	}
	r.must(r.Mapped(private.id, 0, true, ""))
	ns, err := r.OpenPrivate(private.id, page)
	r.must(err)
	if got, err := r.Reserve(private.id, Reserve{Operation: 1, Revision: 1, Namespace: ns.Namespace, Keys: keysOf(0, 1)}); err != nil || got.Pages != 1 {
		t.Fatal(got, err)
	}
	held := []client{reader.scheduler, reader.ranks[0], writer.scheduler, writer.ranks[0], private}
	for _, c := range held {
		r.CloseSession(c.id)
	}
	used := r.Stats().PoolUsedBytes
	r.fillSessions(r.process(1))
	r.check()
	if s := r.Stats(); s.PoolUsedBytes != used || s.WritingBytes == 0 {
		t.Fatalf("pages that a living process may use were freed: %+v", s)
	}
	for _, c := range held {
		if r.sessions[c.id] == nil {
			t.Errorf("session %d was ended, though its process may use pages", c.id)
		}
	}
	worker := r.connect(writer.ranks[0].process, wire.RoleWorker)
	if _, took, err := r.Resume(worker.id, writer.ranks[0].token, nil, []uint64{open.Reservation}); err != nil || len(took) != 1 {
		t.Fatal(took, err)
	}
	r.must(r.Committed(worker.id, open.Reservation, 0, all(4)))
	r.check()
}
