package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

const kib, mib = uint64(1) << 10, uint64(1) << 20

// clock is a time that only tests move.
type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) forward(d time.Duration) { c.at = c.at.Add(d) }

// queue is a Sink that keeps its notices and may be full.
type queue struct {
	notices []Notice
	full    bool
}

func (q *queue) Push(n Notice) bool {
	if q.full {
		return false
	}
	q.notices = append(q.notices, n)
	return true
}

// take returns the notices of one kind that came since the last take of any.
func (q *queue) take(kind NoticeKind) (ids []uint64) {
	for _, n := range q.notices {
		if n.Kind == kind {
			ids = append(ids, n.ID)
		}
	}
	q.notices = nil
	return ids
}

// tester is what *testing.T and *rapid.T share.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
	Failed() bool
	FailNow()
}

// rig is a cache with its clock; every call of a helper that must not fail ends the test when it does.
type rig struct {
	*Cache
	t     tester
	clock *clock
}

func newRig(t tester, config Config) *rig {
	t.Helper()
	at := &clock{time.Unix(1000, 0)}
	config.Now = at.now
	if config.Seed == 0 {
		config.Seed = 7
	}
	r := &rig{New(config), t, at}
	if config.PoolBytes > 0 {
		r.AddArena(0, -1, config.PoolBytes)
	}
	return r
}

func (r *rig) check() {
	r.t.Helper()
	for _, v := range r.Check() {
		r.t.Errorf("I%d: %s", v.Invariant, v.Text)
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// client is one session of one process.
type client struct {
	id      SessionID
	process ProcessID
	token   wire.ID16
	queue   *queue
}

func (r *rig) process(pid int) ProcessID {
	return r.OpenProcess(Process{PID: pid, StartTime: uint64(pid), Command: fmt.Sprintf("engine-%d", pid), UID: 1000})
}

func (r *rig) connect(process ProcessID, role wire.Role) client {
	r.t.Helper()
	q := &queue{}
	id, token, err := r.OpenSession(process, role, "test", q)
	if err != nil {
		r.t.Fatal(err)
	}
	return client{id, process, token, q}
}

// engine is one sealed instance: a scheduler and its ranks, each in a process of its own.
type engine struct {
	id        string
	scheduler client
	ranks     []client
	ns        Registered
	operation uint64
	ticket    uint64 // of its last hint
}

type shape struct {
	slices  []uint64 // by rank; zero is a rank without storage
	writers []wire.Writer
	facts   map[string]string
	numa    []int
	arenas  []uint16
}

func (sh shape) attach(id string, rank int) Attach {
	a := Attach{
		Instance: id, Rank: uint16(rank), World: uint16(len(sh.slices)), Storage: sh.slices[rank] > 0, SliceBytes: sh.slices[rank],
		NUMA: -1, Writer: wire.WriterHost, Backend: "host", Facts: sh.facts,
	}
	if sh.writers != nil {
		a.Writer = sh.writers[rank]
	}
	if sh.numa != nil {
		a.NUMA = sh.numa[rank]
	}
	if a.Facts == nil {
		a.Facts = map[string]string{"model": "m"}
	}
	return a
}

func (r *rig) engine(id string, pid int, sh shape) *engine {
	r.t.Helper()
	e := &engine{id: id, scheduler: r.connect(r.process(pid), wire.RoleScheduler)}
	if sh.arenas == nil {
		sh.arenas = []uint16{0}
	}
	for rank := range sh.slices {
		worker := r.connect(r.process(pid+1+rank), wire.RoleWorker)
		if _, err := r.Attach(worker.id, sh.attach(id, rank)); err != nil {
			r.t.Fatal(err)
		}
		for _, a := range sh.arenas {
			r.must(r.Mapped(worker.id, a, true, ""))
		}
		e.ranks = append(e.ranks, worker)
	}
	var err error
	if e.ns, err = r.Register(e.scheduler.id, id, wire.AllRanks); err != nil {
		r.t.Fatal(err)
	}
	return e
}

func one(slice uint64) shape { return shape{slices: []uint64{slice}} }

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// fails wants an error of a status.
func (r *rig) fails(err error, status wire.Status) {
	r.t.Helper()
	var e *wire.Error
	if !errors.As(err, &e) || e.Status != status {
		r.t.Fatalf("got %v, want status %v", err, status)
	}
}

func keyOf(n int) (k wire.Key) {
	binary.LittleEndian.PutUint64(k[:], uint64(n)+1)
	binary.LittleEndian.PutUint64(k[16:], uint64(n)*0x9e3779b97f4a7c15)
	return k
}

func keysOf(from, count int) []wire.Key {
	keys := make([]wire.Key, count)
	for i := range keys {
		keys[i] = keyOf(from + i)
	}
	return keys
}

func (r *rig) reserve(e *engine, keys []wire.Key) Reserved {
	r.t.Helper()
	e.operation++
	got, err := r.Reserve(e.scheduler.id, Reserve{Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Keys: keys})
	r.must(err)
	return got
}

func all(n uint32) []wire.Range { return []wire.Range{{First: 0, Count: n}} }

// commit commits every slice of a reservation.
func (r *rig) commit(e *engine, got Reserved) {
	r.t.Helper()
	if got.Reservation == 0 {
		return
	}
	for _, s := range e.ns.Slices {
		r.must(r.Committed(e.ranks[s.Rank].id, got.Reservation, s.Rank, all(got.Pages)))
	}
}

func (r *rig) publish(e *engine, keys []wire.Key) Reserved {
	r.t.Helper()
	got := r.reserve(e, keys)
	r.commit(e, got)
	return got
}

func (r *rig) query(e *engine, keys []wire.Key) Result {
	r.t.Helper()
	e.operation++
	got, err := r.SubmitQuery(e.scheduler.id, Query{
		Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Request: fmt.Sprint(e.operation), Keys: keys,
	})
	r.must(err)
	return got
}

// found is how many leading pages a query finds; it gives the lease back.
func (r *rig) found(e *engine, keys []wire.Key) int {
	r.t.Helper()
	got := r.query(e, keys)
	if got.Outcome != wire.OutcomeReady {
		r.t.Fatalf("query of %d keys: %v", len(keys), got.Outcome)
	}
	if got.Lease != 0 {
		r.must(r.Release(e.scheduler.id, got.Lease, wire.AllRanks))
	}
	return int(got.Pages)
}

// restore begins a lease for all ranks and reports every page as restored.
func (r *rig) restore(e *engine, got Result) {
	r.t.Helper()
	r.must(r.Begin(e.scheduler.id, got.Lease, wire.AllRanks, got.Pages))
	for rank, worker := range e.ranks {
		r.must(r.Restored(worker.id, got.Lease, uint16(rank), true, uint64(got.Pages), all(got.Pages)))
	}
}

// warm puts a sealed page of origin warmed into the pool, as a slower tier will, and returns where its parts lie; nil when it is there already or
// finds no room.
func (r *rig) warm(e *engine, key wire.Key) []uint64 {
	c := r.Cache
	c.enter()
	defer c.leave()
	inst := c.instances[e.id]
	if _, _, known := c.index.Find(inst.namespace.handle, 0, (*index.Key)(&key)); known {
		return nil
	}
	c.makeRoom(inst, 1)
	if c.allocate(inst, 1) == 0 {
		return nil
	}
	parts := make([]uint64, len(inst.geometry.partBytes))
	for part := range parts {
		parts[part] = c.scratch.locations[part][0]
	}
	h := c.newPage(inst.namespace, 0, &key, parts, index.Reclaimable, index.Warmed)
	c.sealPage(inst.namespace, h)
	c.useful.prepared(h, inst.geometry.pageBytes, c.now)
	return parts
}
