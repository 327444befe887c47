package session

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

// pair is two ends of one connection.
func pair(t *testing.T) (manager, client *net.UnixConn) {
	t.Helper()
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	listener, err := net.ListenUnix("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	if client, err = net.DialUnix("unix", nil, address); err != nil {
		t.Fatal(err)
	}
	if manager, err = listener.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); manager.Close(); client.Close() })
	return manager, client
}

func TestTheOutboxKeepsOrderAndEndsAtItsBound(t *testing.T) {
	manager, client := pair(t)
	o, err := newOutbox(manager, &budget{most: unsentBytesMax})
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 64*kib)
	sent := 0
	for err == nil {
		for i := range chunk {
			chunk[i] = byte((sent + i) * 7)
		}
		if err = o.send(chunk); err == nil {
			sent += len(chunk)
		}
	}
	if err != errOutboxFull || o.backlog() < outboxBytesMax || o.backlog() > outboxBytesMax+len(chunk) {
		t.Fatalf("%v with %d unsent bytes", err, o.backlog())
	}
	if o.sendDescriptor([]byte{1}, 0) {
		t.Error("a descriptor overtook unsent frames")
	}
	flushed := make(chan error, 1)
	go func() { flushed <- o.flush() }()
	got := make([]byte, sent)
	if _, err := io.ReadFull(client, got); err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if b != byte(i*7) {
			t.Fatalf("byte %d of %d is wrong", i, sent)
		}
	}
	if err := <-flushed; err != nil || o.backlog() != 0 || o.budget.used.Load() != 0 {
		t.Fatalf("%v, %d bytes unsent, %d charged", err, o.backlog(), o.budget.used.Load())
	}
}

func TestAFlushEndsWithTheConnection(t *testing.T) {
	manager, _ := pair(t)
	o, err := newOutbox(manager, &budget{most: unsentBytesMax})
	if err != nil {
		t.Fatal(err)
	}
	for o.backlog() == 0 {
		if err := o.send(make([]byte, 64*kib)); err != nil {
			t.Fatal(err)
		}
	}
	flushed := make(chan error, 1)
	go func() { flushed <- o.flush() }()
	if err := manager.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-flushed; err == nil {
		t.Error("a flush of a closed connection succeeded")
	}
}

func TestAClientThatCannotReceiveIsStillHeard(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	e := r.attach("a", 4*kib)
	got := e.reserve(keysOf(0, 2))
	if err := e.worker.conn.CloseRead(); err != nil {
		t.Fatal(err)
	}
	e.worker.send(&wire.Ping{Nonce: 1}, 9) // its answer cannot be delivered
	e.worker.send(&wire.Committed{Reservation: got.Reservation, Ranges: []wire.Range{{Count: 2}}}, 0)
	e.worker.conn.Close()
	r.until("the commit", func() bool { return r.cache.Stats().PageInsertionsTotal == 2 })
}

func TestAnUnreadingClientIsNeverWaitedFor(t *testing.T) {
	r := newRig(t, 64*mib)
	r.lend()
	e := r.attach("a", 4*kib)
	mute := r.open(wire.RoleTool)
	if err := mute.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// Pings are answered: without a reader the answers fill the socket, then the outbox, then the session ends.
	frames := []byte{}
	for id := uint64(1); len(frames) < 60*kib; id++ {
		frame, err := (&wire.Ping{}).Append(nil, id)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame...)
	}
	var err error
	for err == nil {
		_, err = mute.conn.Write(frames)
	}
	r.until("the end of the mute session", func() bool { return r.cache.Stats().Sessions == 2 })
	e.publish(keysOf(0, 4))
	if got := e.query(keysOf(0, 4)); got.Pages != 4 {
		t.Errorf("%d pages, want 4", got.Pages)
	}
}

func TestNoticesAreDroppedAtTheirBoundAndNeverBlock(t *testing.T) {
	woken := 0
	in := inbox{wake: func() { woken++ }}
	for i := range noticesMax {
		if !in.Push(cache.Notice{Kind: cache.NoticePing, ID: uint64(i)}) {
			t.Fatalf("notice %d was dropped", i)
		}
	}
	if in.Push(cache.Notice{Kind: cache.NoticePing}) || woken != 1 {
		t.Errorf("a notice over the bound was taken, or the writer was woken %d times", woken)
	}
	got := in.take(nil)
	if len(got) != noticesMax || got[noticesMax-1].ID != noticesMax-1 {
		t.Errorf("%d notices", len(got))
	}
	in.close()
	if in.Push(cache.Notice{Kind: cache.NoticePing}) {
		t.Error("a closed inbox took a notice")
	}
}
