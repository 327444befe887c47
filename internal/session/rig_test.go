package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/arena"
	"orbitkv/internal/cache"
	"orbitkv/internal/metrics"
	"orbitkv/internal/wire"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	// patience ends a test that would hang; no test passes or fails by how long something took.
	patience = 60 * time.Second
)

// rig is a server on a cache with one arena that nobody has populated: no test touches its bytes.
type rig struct {
	*testing.T
	server *Server
	cache  *cache.Cache
	arena  *arena.Arena
	socket string
	served *metrics.Registry
	log    *lockedBuffer
	clock  atomic.Int64 // what is added to the time that the cache sees
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newRig(t *testing.T, poolBytes uint64) *rig {
	t.Helper()
	pool, err := arena.Create(arena.Config{PoolBytes: poolBytes, Incarnation: "test"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, arena: pool.Arenas()[0], socket: filepath.Join(t.TempDir(), "s"), log: &lockedBuffer{}}
	r.cache = cache.New(cache.Config{
		PoolBytes: poolBytes, Seed: 1, Now: func() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) },
	})
	r.served = metrics.New(r.cache.Stats, nil, "test")
	r.server, err = Listen(Config{
		Socket: r.socket, Cache: r.cache, Incarnation: wire.ID16{1}, PoolBytes: poolBytes, SessionOperations: 128,
		Metrics: r.served.Channel, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.server.Close(), pool.Close()); err != nil {
			t.Error(err)
		}
		for _, v := range r.cache.Check() {
			t.Errorf("invariant %d: %s", v.Invariant, v.Text)
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", r.log)
		}
	})
	return r
}

// lend makes the arena usable.
func (r *rig) lend() {
	r.cache.AddArena(r.arena.ID, r.arena.Node, r.arena.Bytes)
	r.server.AddArena(r.arena)
}

// until waits for a condition that another goroutine brings about.
func (r *rig) until(what string, done func() bool) {
	r.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			r.Fatalf("%s did not come about; stats %+v", what, r.cache.Stats())
		}
		<-time.After(time.Millisecond)
	}
}

// peerEnd is the client's end of a connection, frame by frame.
type peerEnd struct {
	*rig
	conn        *net.UnixConn
	frames      *wire.Reader
	descriptors []int
	id          uint64
}

// dial connects without a hello.
func (r *rig) dial() *peerEnd {
	r.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		r.Fatal(err)
	}
	p := &peerEnd{rig: r, conn: conn}
	p.frames = wire.NewReader(p)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		conn.Close()
		for _, fd := range p.descriptors {
			unix.Close(fd)
		}
	})
	return p
}

// Read takes bytes and descriptors off the socket.
func (p *peerEnd) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(8*4))
	n, oobn, _, _, err := p.conn.ReadMsgUnix(b, oob)
	if err != nil {
		return n, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return n, err
		}
		p.descriptors = append(p.descriptors, fds...)
	}
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// open connects and says hello.
func (r *rig) open(role wire.Role) *peerEnd {
	r.Helper()
	p := r.dial()
	p.call(&wire.Hello{ABI: wire.ABI, Role: role, Name: "test"}, &wire.Welcome{})
	return p
}

// raw writes bytes.
func (p *peerEnd) raw(b []byte) {
	p.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.Fatal(err)
	}
}

// send writes one frame.
func (p *peerEnd) send(m wire.Message, id uint64) {
	p.Helper()
	frame, err := m.Append(nil, id)
	if err != nil {
		p.Fatal(err)
	}
	p.raw(frame)
}

// next reads one frame.
func (p *peerEnd) next() (wire.Header, wire.Message) {
	p.Helper()
	h, body, err := p.frames.Next()
	if err != nil {
		p.Fatalf("reading a frame: %v", err)
	}
	m := wire.New(h.Type)
	if err := m.Decode(bytes.Clone(body)); err != nil {
		p.Fatal(err)
	}
	return h, m
}

// call sends a call and decodes its one answer into reply. Pushes that come before are skipped.
func (p *peerEnd) call(m, reply wire.Message) {
	p.Helper()
	p.id++
	p.send(m, p.id)
	p.answer(p.id, reply)
}

func (p *peerEnd) answer(id uint64, reply wire.Message) {
	p.Helper()
	for {
		h, got := p.next()
		if h.ID == 0 && h.Type != wire.TypeError {
			continue
		}
		if h.ID != id || h.Type != reply.Type() {
			p.Fatalf("answer %d is %v (%+v), want %v with id %d", h.ID, h.Type, got, reply.Type(), id)
		}
		frame, err := got.Append(nil, id)
		if err != nil {
			p.Fatal(err)
		}
		if err := reply.Decode(frame[wire.HeaderBytes:]); err != nil {
			p.Fatal(err)
		}
		return
	}
}

// refused sends a call that must be answered with an error and returns it.
func (p *peerEnd) refused(m wire.Message, want wire.Status) *wire.Error {
	p.Helper()
	reply := &wire.Error{}
	p.call(m, reply)
	if reply.Status != want {
		p.Fatalf("%v was refused with %v, want %v", m.Type(), reply, want)
	}
	return reply
}

// ended reads up to the end of the session and returns the reason that the Manager gave.
func (p *peerEnd) ended(want wire.Status) *wire.Error {
	p.Helper()
	var reason *wire.Error
	for {
		h, body, err := p.frames.Next()
		if err != nil {
			if reason == nil {
				p.Fatalf("the session ended without a reason: %v", err)
			}
			if reason.Status != want {
				p.Fatalf("the session ended with %v, want %v", reason, want)
			}
			return reason
		}
		if h.Type == wire.TypeError && h.ID == 0 {
			reason = &wire.Error{}
			if err := reason.Decode(body); err != nil {
				p.Fatal(err)
			}
		}
	}
}

// alive proves that the session works.
func (p *peerEnd) alive() {
	p.Helper()
	reply := &wire.Pong{}
	p.call(&wire.Ping{Nonce: 77}, reply)
	if reply.Nonce != 77 {
		p.Fatalf("pong %d", reply.Nonce)
	}
}

// engine is one rank and its scheduler in this process.
type engine struct {
	*rig
	worker    *peerEnd
	scheduler *peerEnd
	instance  string
	namespace wire.Registered
	operation uint64
}

// attach opens an instance of one rank whose pages have one slice, with the arena mapped.
func (r *rig) attach(instance string, sliceBytes uint64) *engine {
	r.Helper()
	e := &engine{rig: r, worker: r.open(wire.RoleWorker), scheduler: r.open(wire.RoleScheduler), instance: instance}
	e.worker.call(attachFrame(instance, sliceBytes), &wire.Done{})
	e.worker.takeArena()
	e.scheduler.call(&wire.Register{Instance: instance, Rank: wire.AllRanks}, &e.namespace)
	return e
}

func attachFrame(instance string, sliceBytes uint64) *wire.Attach {
	return &wire.Attach{
		Instance: instance, World: 1, Storage: true, SliceBytes: sliceBytes, NUMA: -1, Writer: wire.WriterHost, Backend: "host",
		Facts: map[string]string{"model": "m"},
	}
}

// takeArena waits for the push of an arena, answers it and waits until the answer was handled.
func (p *peerEnd) takeArena() *wire.Arena {
	p.Helper()
	for {
		if h, m := p.next(); h.Type == wire.TypeArena {
			a := m.(*wire.Arena)
			p.send(&wire.Mapped{Arena: a.Arena, Ok: true}, 0)
			p.alive()
			return a
		}
	}
}

func keysOf(first, n int) []wire.Key {
	keys := make([]wire.Key, n)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][:], uint64(first+i)*0x9e3779b97f4a7c15)
		binary.LittleEndian.PutUint64(keys[i][8:], uint64(first+i))
	}
	return keys
}

// reserve sends a reserve in parts and joins the parts of its answer.
func (e *engine) reserve(keys []wire.Key) wire.Reserved {
	e.Helper()
	e.operation++
	e.scheduler.id++
	id := e.scheduler.id
	parts := max(1, (len(keys)+wire.FrameKeysMax-1)/wire.FrameKeysMax)
	for i := range parts {
		m := &wire.Reserve{Operation: e.operation, Revision: 1, Part: uint16(i), Parts: uint16(parts), Namespace: e.namespace.Namespace, Instance: e.instance}
		m.Keys = piece(keys, i, wire.FrameKeysMax)
		e.scheduler.send(m, lastID(id, i, parts))
	}
	var whole wire.Reserved
	for part := uint16(0); ; part++ {
		var m wire.Reserved
		e.scheduler.answer(id, &m)
		if m.Part != part {
			e.Fatalf("part %d came as number %d", m.Part, part)
		}
		grants, runs := append(whole.Grants, m.Grants...), append(whole.Runs, m.Runs...)
		whole = m
		whole.Grants, whole.Runs = grants, runs
		if m.Part == m.Parts-1 {
			return whole
		}
	}
}

// query sends a query in parts and joins the parts of its answer.
func (e *engine) query(keys []wire.Key) wire.Result {
	e.Helper()
	e.operation++
	e.scheduler.id++
	id := e.scheduler.id
	parts := max(1, (len(keys)+wire.FrameKeysMax-1)/wire.FrameKeysMax)
	for i := range parts {
		m := &wire.Query{Operation: e.operation, Revision: 1, Part: uint16(i), Parts: uint16(parts), Namespace: e.namespace.Namespace, Instance: e.instance, Request: "r"}
		m.Keys = piece(keys, i, wire.FrameKeysMax)
		e.scheduler.send(m, lastID(id, i, parts))
	}
	return e.result(id)
}

// result joins the parts of a query's answer.
func (e *engine) result(id uint64) (whole wire.Result) {
	e.Helper()
	for part := uint16(0); ; part++ {
		var m wire.Result
		e.scheduler.answer(id, &m)
		if m.Part != part {
			e.Fatalf("part %d came as number %d", m.Part, part)
		}
		runs := append(whole.Runs, m.Runs...)
		whole = m
		whole.Runs = runs
		if m.Part == m.Parts-1 {
			return whole
		}
	}
}

func lastID(id uint64, part, parts int) uint64 {
	if part == parts-1 {
		return id
	}
	return 0
}

// publish reserves and commits keys.
func (e *engine) publish(keys []wire.Key) wire.Reserved {
	e.Helper()
	r := e.reserve(keys)
	if int(r.Pages) != len(keys) {
		e.Fatalf("%d of %d pages were granted: %+v", r.Pages, len(keys), r.Grants)
	}
	e.worker.send(&wire.Committed{Reservation: r.Reservation, Ranges: []wire.Range{{Count: r.Pages}}}, 0)
	e.worker.alive()
	return r
}
