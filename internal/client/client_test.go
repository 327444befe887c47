package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/wire"
)

// patience bounds a wait in a test; it is never reached when the code is right.
const patience = 20 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// manager is the other end of one connection, driven by the test frame by frame.
type manager struct {
	t      *testing.T
	conn   *net.UnixConn
	frames *wire.Reader
}

// open connects a client to a manager that the test drives, after the hello.
func open(t *testing.T, o Options) (*Client, *manager) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })

	accepted := make(chan *manager, 1)
	go func() {
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Error(err)
			close(accepted)
			return
		}
		m := &manager{t: t, conn: conn, frames: wire.NewReader(conn)}
		id, hello := next[*wire.Hello](m)
		if hello.ABI != wire.ABI || hello.Role != o.Role || hello.Name != o.Name {
			t.Errorf("hello %+v", hello)
		}
		m.send(&wire.Welcome{ABI: wire.ABI, PoolBytes: 4096}, id)
		accepted <- m
	}()
	c, err := Dial(testContext(t), path, o)
	if err != nil {
		t.Fatal(err)
	}
	m := <-accepted
	t.Cleanup(func() {
		_ = c.Close()
		_ = m.conn.Close()
	})
	return c, m
}

func next[T wire.Message](m *manager) (id uint64, message T) {
	h, body, err := m.frames.Next()
	if err != nil {
		m.t.Errorf("manager: %v", err)
		return 0, message
	}
	got := wire.New(h.Type)
	if err := got.Decode(bytes.Clone(body)); err != nil {
		m.t.Errorf("manager: %v", err)
	}
	message, ok := got.(T)
	if !ok {
		m.t.Errorf("manager: got a %s frame, want %s", h.Type, message.Type())
	}
	return h.ID, message
}

func (m *manager) send(message wire.Message, id uint64) {
	frame, err := message.Append(nil, id)
	if err == nil {
		_, err = m.conn.Write(frame)
	}
	if err != nil {
		m.t.Errorf("manager: %v", err)
	}
}

// key makes the content of a key a function of its number.
func key(n int) (k wire.Key) {
	for i := range k {
		k[i] = byte(n >> (8 * (i % 4)))
	}
	return k
}

func keys(n int) []wire.Key {
	all := make([]wire.Key, n)
	for i := range all {
		all[i] = key(i)
	}
	return all
}

func TestQueryGoesInPartsAndItsAnswerIsJoined(t *testing.T) {
	c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
	want := keys(2*wire.FrameKeysMax + 5)
	go func() {
		var got []wire.Key
		for part := uint16(0); part < 3; part++ {
			id, q := next[*wire.Query](m)
			if q.Part != part || q.Parts != 3 || q.Operation != 1 || q.Revision != 1 || (id != 0) != (part == 2) {
				t.Errorf("part %d: id %d, %d of %d, operation %d.%d", part, id, q.Part, q.Parts, q.Operation, q.Revision)
			}
			got = append(got, q.Keys...)
			if part == 2 {
				m.send(&wire.Result{Operation: 1, Outcome: wire.OutcomeReady, Parts: 2, Pages: 3, Lease: 9, Runs: []wire.Run{{Count: 2, First: wire.At(1, 0)}}}, id)
				m.send(&wire.Result{Operation: 1, Outcome: wire.OutcomeReady, Part: 1, Parts: 2, Pages: 3, Lease: 9, Runs: []wire.Run{{Count: 1, First: wire.At(2, 4096)}}}, id)
			}
		}
		if !bytes.Equal(wire.KeyBytesOf(got), wire.KeyBytesOf(want)) {
			t.Error("the keys of the parts are not those of the query")
		}
	}()
	result, err := c.Query(testContext(t), wire.Query{Keys: want})
	if err != nil {
		t.Fatal(err)
	}
	locations := Locations(result.Runs, 0, 4096)
	if result.Lease != 9 || len(locations) != 3 || locations[1] != wire.At(1, 4096) || locations[2] != wire.At(2, 4096) {
		t.Errorf("result %+v, locations %v", result, locations)
	}
}

func TestReservedPartsAreJoined(t *testing.T) {
	c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
	go func() {
		id, r := next[*wire.Reserve](m)
		grant := wire.Reserved{Operation: r.Operation, Revision: r.Revision, Parts: 2, Pages: 2, Reservation: 4}
		first, second := grant, grant
		first.Grants, first.Runs = []wire.GrantRun{{Grant: wire.GrantGranted, Count: 1}}, []wire.Run{{Count: 1}}
		second.Part, second.Grants, second.Runs = 1, []wire.GrantRun{{Grant: wire.GrantPresent, Count: 1}}, []wire.Run{{Count: 1, First: 8192}}
		m.send(&first, id)
		m.send(&second, id)
	}()
	reserved, err := c.Reserve(testContext(t), wire.Reserve{Operation: 7, Keys: keys(2)})
	if err != nil {
		t.Fatal(err)
	}
	if reserved.Operation != 7 || reserved.Reservation != 4 || len(reserved.Grants) != 2 || len(reserved.Runs) != 2 {
		t.Errorf("reserved %+v", reserved)
	}
}

func TestPartsOutOfOrderEndTheChannel(t *testing.T) {
	for name, parts := range map[string][]uint16{"no first": {1}, "a gap": {0, 2}, "twice": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
			go func() {
				id, _ := next[*wire.Query](m)
				for _, part := range parts {
					m.send(&wire.Result{Outcome: wire.OutcomeReady, Part: part, Parts: 3}, id)
				}
			}()
			_, err := c.Query(testContext(t), wire.Query{Keys: keys(1)})
			var fault *wire.Error
			if !errors.As(err, &fault) || fault.Status != wire.StatusMalformed {
				t.Errorf("error %v", err)
			}
			<-c.Done()
		})
	}
}

func TestAnswersMayComeInAnyOrder(t *testing.T) {
	const calls = 16
	c, m := open(t, Options{Role: wire.RoleTool, Name: "test"})
	go func() {
		ids := map[uint64]uint64{}
		for range calls {
			id, poll := next[*wire.Poll](m)
			ids[poll.Operation] = id
		}
		for operation := uint64(calls); operation > 0; operation-- {
			m.send(&wire.Result{Operation: operation, Outcome: wire.OutcomeWaiting, Parts: 1}, ids[operation])
		}
	}()
	var wg sync.WaitGroup
	for operation := uint64(1); operation <= calls; operation++ {
		wg.Go(func() {
			result, err := c.Poll(testContext(t), operation, 1)
			if err != nil || result.Operation != operation {
				t.Errorf("operation %d: %+v, %v", operation, result, err)
			}
		})
	}
	wg.Wait()
}

func TestOperationsIncreaseInTheOrderOnTheWire(t *testing.T) {
	const calls = 8
	c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
	go func() {
		last := uint64(0)
		for range 2 * calls {
			id, q := next[*wire.Query](m)
			if q.Part == 0 && q.Operation <= last || q.Part == 1 && q.Operation != last {
				t.Errorf("part %d of operation %d came after operation %d", q.Part, q.Operation, last)
			}
			last = q.Operation
			if q.Part == 1 {
				m.send(&wire.Result{Operation: q.Operation, Outcome: wire.OutcomeReady, Parts: 1}, id)
			}
		}
	}()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, err := c.Query(testContext(t), wire.Query{Keys: keys(wire.FrameKeysMax + 1)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestPushesAreAnswered(t *testing.T) {
	notices := make(chan wire.Notice, 1)
	c, m := open(t, Options{
		Role: wire.RoleScheduler, Name: "test",
		OnNotice: func(n wire.Notice) { notices <- n }, OnRevoke: func(lease uint64) bool { return lease == 5 },
	})
	m.send(&wire.Ping{Nonce: 77}, 0)
	if _, pong := next[*wire.Pong](m); pong.Nonce != 77 {
		t.Errorf("pong %+v", pong)
	}
	for lease, yielded := range map[uint64]bool{5: true, 6: false} {
		m.send(&wire.Revoke{Lease: lease}, 0)
		if _, answer := next[*wire.Revoked](m); answer.Lease != lease || answer.Yielded != yielded {
			t.Errorf("revoke of lease %d: %+v", lease, answer)
		}
	}
	m.send(&wire.Notice{Topic: wire.TopicQuery, ID: 3, Revision: 2}, 0)
	if n := <-notices; n.ID != 3 || n.Revision != 2 {
		t.Errorf("notice %+v", n)
	}
	go func() {
		_, ping := next[*wire.Ping](m)
		m.send(&wire.Pong{Nonce: ping.Nonce}, 0)
	}()
	if err := c.Ping(testContext(t)); err != nil {
		t.Error(err)
	}
}

// arenaFile makes an anonymous file that holds pattern in its first byte.
func arenaFile(t *testing.T, bytes int, pattern byte) int {
	t.Helper()
	fd, err := unix.MemfdCreate("client-test", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(bytes))
	}
	if err == nil {
		_, err = unix.Pwrite(fd, []byte{pattern}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func (m *manager) sendArena(id uint16, bytes uint64, fd int) {
	frame, err := (&wire.Arena{Arena: id, Node: -1, Bytes: bytes}).Append(nil, 0)
	if err == nil {
		_, _, err = m.conn.WriteMsgUnix(frame, unix.UnixRights(fd), nil)
	}
	if err != nil {
		m.t.Errorf("manager: %v", err)
	}
}

func TestArenasAreMappedInTheOrderOfTheirDescriptors(t *testing.T) {
	const size = 8192
	refused := errors.New("no room on the device")
	c, m := open(t, Options{Role: wire.RoleWorker, Name: "test", OnArena: func(a *Arena) error {
		if a.ID == 3 {
			return refused
		}
		return nil
	}})
	files := map[uint16]int{}
	for id := uint16(1); id <= 3; id++ {
		files[id] = arenaFile(t, size, byte(id))
		m.sendArena(id, size, files[id])
	}
	for id := uint16(1); id <= 3; id++ {
		_, mapped := next[*wire.Mapped](m)
		if mapped.Arena != id || mapped.Ok != (id != 3) || !mapped.Ok && !strings.Contains(mapped.Text, refused.Error()) {
			t.Errorf("arena %d: %+v", id, mapped)
		}
	}
	if err := c.WaitMapped(testContext(t), 2*size); err != nil {
		t.Fatal(err)
	}
	for id := uint16(1); id <= 2; id++ {
		view, err := c.Bytes(wire.At(id, 0), size)
		if err != nil || view[0] != byte(id) {
			t.Fatalf("arena %d: byte %v, %v", id, view, err)
		}
		view[size-1] = 0xAB
		back := make([]byte, 1)
		if _, err := unix.Pread(files[id], back, size-1); err != nil || back[0] != 0xAB {
			t.Errorf("arena %d: a write did not arrive: %v, %v", id, back, err)
		}
	}
	for _, at := range []wire.Location{wire.At(3, 0), wire.At(1, size), wire.At(1, 1), wire.At(1, 2*size)} {
		if _, err := c.Bytes(at, size); err == nil {
			t.Errorf("%d bytes at %x are not refused", size, at)
		}
	}
}

func TestAnArenaWithoutADescriptorEndsTheChannel(t *testing.T) {
	c, m := open(t, Options{Role: wire.RoleWorker, Name: "test"})
	m.send(&wire.Arena{Arena: 1, Node: -1, Bytes: 4096}, 0)
	<-c.Done()
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "without a descriptor") {
		t.Errorf("error %v", err)
	}
}

func TestRefusalsAndEnds(t *testing.T) {
	c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
	go func() {
		id, _ := next[*wire.Register](m)
		m.send(&wire.Error{Status: wire.StatusNotReady, Text: "1 of 2 ranks attached"}, id)
		id, _ = next[*wire.Attach](m)
		m.send(&wire.Registered{}, id)
		_, _ = next[*wire.Register](m)
		m.send(&wire.Error{Status: wire.StatusStopping, Text: "the Manager stops"}, 0)
	}()
	var refusal *wire.Error
	if _, err := c.Register(testContext(t), "a", wire.AllRanks); !errors.As(err, &refusal) || refusal.Status != wire.StatusNotReady {
		t.Errorf("a refused call: %v", err)
	}
	if _, err := c.Attach(testContext(t), wire.Attach{Writer: wire.WriterHost}); err == nil {
		t.Error("an answer of another type was taken")
	}
	if _, err := c.Register(testContext(t), "a", wire.AllRanks); !errors.As(err, &refusal) || refusal.Status != wire.StatusStopping {
		t.Errorf("a call that the end of the session cut off: %v", err)
	}
	if err := c.Release(1, wire.AllRanks); !errors.As(err, &refusal) || refusal.Status != wire.StatusStopping {
		t.Errorf("a frame after the end: %v", err)
	}
	if err := c.WaitMapped(testContext(t), 1); !errors.As(err, &refusal) {
		t.Errorf("a wait after the end: %v", err)
	}
}

func TestALateAnswerIsDropped(t *testing.T) {
	c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Poll(gone, 1, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("a call without time: %v", err)
	}
	c.mu.Lock()
	kept := len(c.calls)
	c.mu.Unlock()
	if kept != 0 {
		t.Errorf("%d calls are kept that nobody waits for", kept)
	}
	id, _ := next[*wire.Poll](m)
	m.send(&wire.Result{Operation: 1, Outcome: wire.OutcomeWaiting, Parts: 1}, id)
	go func() {
		id, _ := next[*wire.Poll](m)
		m.send(&wire.Result{Operation: 2, Outcome: wire.OutcomeWaiting, Parts: 1}, id)
	}()
	if result, err := c.Poll(testContext(t), 2, 1); err != nil || result.Operation != 2 {
		t.Errorf("the next call: %+v, %v", result, err)
	}
}

func TestCloseFailsTheCallsThatWait(t *testing.T) {
	c, m := open(t, Options{Role: wire.RoleScheduler, Name: "test"})
	failed := make(chan error, 1)
	go func() {
		_, err := c.Poll(testContext(t), 1, 1)
		failed <- err
	}()
	_, _ = next[*wire.Poll](m)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
	if _, err := Dial(testContext(t), filepath.Join(t.TempDir(), "none"), Options{Role: wire.RoleTool}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no Manager: %v", err)
	}
}
