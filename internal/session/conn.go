package session

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/cache"
	"orbitkv/internal/metrics"
	"orbitkv/internal/wire"
)

// conn is one connection. Its reader goroutine runs run and owns every field that is not said to be shared.
type conn struct {
	server   *Server
	net      *net.UnixConn
	frames   *wire.Reader
	out      *outbox       // shared
	in       inbox         // shared
	done     chan struct{} // closed when the reader has ended
	attached atomic.Bool   // shared: arenas are pushed
	number   uint64        // of connections taken; guarded by Server.mu, as greeted is
	greeted  bool          // its hello has come

	peer    peer
	process *process
	session cache.SessionID
	parts   assemblies
	buf     []byte // the frames of one answer
	scratch scratch
}

// scratch holds one message of each type that comes often, reused so that decoding allocates nothing.
type scratch struct {
	query     wire.Query
	reserve   wire.Reserve
	warm      wire.Warm
	restored  wire.Restored
	committed wire.Committed
	abandoned wire.Abandoned
}

func newConn(s *Server, nc *net.UnixConn) (*conn, error) {
	out, err := newOutbox(nc, &s.unsent)
	c := &conn{server: s, net: nc, frames: wire.NewReader(nc), out: out, done: make(chan struct{}), parts: assemblies{budget: &s.unfinished}}
	c.in.wake = out.signal
	return c, err
}

// run is the life of a connection.
func (c *conn) run() {
	defer c.server.forget(c)
	if err := c.open(); err != nil {
		c.end(err)
		return
	}
	c.server.metrics.Sessions.Inc()
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		c.write()
	}()
	why := c.read()
	c.end(why)
	c.in.close()
	c.parts.close()
	// A disconnect: nothing that may be in use is freed (I2).
	if readToTheEnd(why) {
		c.server.cache.CloseSession(c.session)
	} else {
		c.server.cache.BreakSession(c.session)
	}
	close(c.done)
	c.server.leave(c)
	<-writer
}

// open does everything before the first ordinary frame: the peer's identity, hello, welcome.
func (c *conn) open() error {
	who, err := identifyPeer(c.net)
	if err != nil {
		return err
	}
	hello, id, err := c.hello()
	if err != nil {
		return errors.Join(err, unix.Close(who.pidfd))
	}
	c.server.greet(c)
	c.peer = who
	if c.process, err = c.server.join(c, who); err != nil {
		return err
	}
	session, token, err := c.server.cache.OpenSession(c.process.id, hello.Role, hello.Name, &c.in)
	if err != nil {
		c.server.leave(c)
		return err
	}
	c.session = session
	return c.answer(id, &wire.Welcome{
		ABI: wire.ABI, Incarnation: c.server.config.Incarnation, Token: token, FrameBytesMax: wire.FrameBytesMax,
		OperationKeysMax: wire.OperationKeysMax, SessionOperationsMax: c.server.config.SessionOperations, PoolBytes: c.server.config.PoolBytes,
	})
}

// hello reads the first frame. Another ABI is refused by number before the rest is looked at.
func (c *conn) hello() (hello wire.Hello, id uint64, err error) {
	if err := c.net.SetReadDeadline(time.Now().Add(helloWait)); err != nil {
		return hello, 0, err
	}
	h, body, err := c.frames.Next()
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = wire.Errorf(wire.StatusMalformed, "no hello came within %v", helloWait)
		}
		return hello, 0, err
	}
	if h.Type != wire.TypeHello {
		return hello, 0, wire.Errorf(wire.StatusMalformed, "the first frame is %v, must be hello", h.Type)
	}
	if abi, ok := wire.HelloABI(body); ok && abi != wire.ABI {
		return hello, 0, wire.Errorf(wire.StatusWrongABI, "the client speaks ABI %d, this Cache Manager ABI %d: install the same release on both sides and restart both", abi, wire.ABI)
	}
	if err := hello.Decode(body); err != nil {
		return hello, 0, err
	}
	if h.ID == 0 {
		return hello, 0, wire.Errorf(wire.StatusMalformed, "hello has id zero, which no answer can carry")
	}
	return hello, h.ID, c.net.SetReadDeadline(time.Time{})
}

// read handles frames until the connection ends, and returns why.
func (c *conn) read() error {
	for {
		h, body, err := c.frames.Next()
		if err != nil {
			return err
		}
		c.server.metrics.Frames.Inc()
		if err := c.handle(h, body); err != nil {
			return err
		}
	}
}

// readToTheEnd says whether every frame that the client had sent was handled before the connection ended. A client that closes with
// unread notices in its queue ends it by a reset, which the kernel reports after the last byte.
func readToTheEnd(why error) bool {
	return errors.Is(why, io.EOF) || errors.Is(why, io.ErrUnexpectedEOF) || errors.Is(why, unix.ECONNRESET)
}

// end closes the connection; a fault of the client is told to it and counted first.
func (c *conn) end(err error) {
	var fault *wire.Error
	switch {
	case errors.As(err, &fault):
		c.server.metrics.Closed.WithLabelValues(fault.Status.String()).Inc()
		c.server.log.Warn("session closed", "pid", c.peer.pid, "session", uint64(c.session), "status", fault.Status, "error", fault.Text)
		c.refuse(fault)
		return
	case errors.Is(err, errOutboxFull):
		c.server.metrics.Closed.WithLabelValues(metrics.ReasonUnread).Inc()
		c.server.log.Warn("session closed: its client does not read", "pid", c.peer.pid, "session", uint64(c.session), "unsent_bytes", c.out.backlog())
	case errors.Is(err, errUnsentFull):
		c.server.metrics.Closed.WithLabelValues(metrics.ReasonCrowded).Inc()
		c.server.log.Warn("session closed: the answers that clients do not read fill their bound", "pid", c.peer.pid, "session", uint64(c.session), "bytes", c.server.unsent.most)
	case errors.Is(err, io.ErrUnexpectedEOF):
		c.server.metrics.Closed.WithLabelValues(metrics.ReasonCut).Inc()
		c.server.log.Warn("session closed: the connection ended inside a frame", "pid", c.peer.pid, "session", uint64(c.session))
	}
	c.close()
}

// refuse tells the client why and closes the connection. It may be called from any goroutine.
func (c *conn) refuse(fault *wire.Error) {
	frame, err := fault.Append(nil, 0)
	if err == nil {
		err = c.out.send(frame)
	}
	if err != nil {
		c.server.log.Debug("a client could not be told why its session closes", "error", err)
	}
	c.close()
}

// close may be called from any goroutine and more than once.
func (c *conn) close() {
	if err := c.net.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.server.log.Debug("closing a connection", "error", err)
	}
	c.out.close()
}

// stopReading lets the reader finish what has arrived and then see the end.
func (c *conn) stopReading() {
	if err := c.net.CloseRead(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.close()
	}
}

// answer sends one frame.
func (c *conn) answer(id uint64, m wire.Message) (err error) {
	if c.buf, err = m.Append(c.buf[:0], id); err != nil {
		return err
	}
	return c.out.send(c.buf)
}

// fail answers a call with its error. A malformed call ends the session.
func (c *conn) fail(id uint64, err error) error {
	var fault *wire.Error
	if !errors.As(err, &fault) || fault.Status == wire.StatusMalformed {
		return err
	}
	c.server.metrics.Refused.WithLabelValues(fault.Status.String()).Inc()
	return c.answer(id, fault)
}

// write is the writer goroutine: it flushes the outbox and pushes notices and arenas.
func (c *conn) write() {
	var notices []cache.Notice
	var frames []byte
	arenas := 0
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-c.out.wake:
		case <-retry.C:
		}
		notices = c.in.take(notices)
		frames = frames[:0]
		for _, n := range notices {
			frames = mustAppend(frames, noticeFrame(n))
		}
		if err := c.push(frames); err != nil {
			c.end(err) // the reader ends the session
			return
		}
		if c.attached.Load() {
			sent, all := c.pushArenas(arenas)
			if arenas += sent; !all {
				retry.Reset(arenaRetry)
			}
		}
	}
}

// push flushes the outbox and sends frames, waiting for room as long as the client leaves none: new notices are dropped meanwhile.
func (c *conn) push(frames []byte) error {
	for {
		if err := c.out.flush(); err != nil || len(frames) == 0 {
			return err
		}
		if err := c.out.send(frames); !errors.Is(err, errOutboxFull) {
			return err
		}
	}
}

// mustAppend encodes a push, whose fields are all of fixed size.
func mustAppend(frames []byte, m wire.Message) []byte {
	frames, err := m.Append(frames, 0)
	if err != nil {
		panic("session: a push breaks a bound: " + err.Error())
	}
	return frames
}

func noticeFrame(n cache.Notice) wire.Message {
	switch n.Kind {
	case cache.NoticeQuery:
		return &wire.Notice{Topic: wire.TopicQuery, ID: n.ID, Revision: n.Revision}
	case cache.NoticeSealed:
		return &wire.Notice{Topic: wire.TopicSealed, ID: n.ID}
	case cache.NoticeInstance:
		return &wire.Notice{Topic: wire.TopicInstance}
	case cache.NoticeRevoke:
		return &wire.Revoke{Lease: n.ID}
	case cache.NoticePing:
		return &wire.Ping{Nonce: n.ID}
	}
	panic("session: a notice of the cache has no frame")
}

// pushArenas sends the lent arenas from position n on and returns how many it sent; all is false when the socket took no more.
func (c *conn) pushArenas(n int) (sent int, all bool) {
	for _, a := range c.server.arenasFrom(n) {
		frame := mustAppend(nil, &wire.Arena{Arena: a.ID, Node: int16(a.Node), Bytes: a.Bytes})
		if !c.out.sendDescriptor(frame, a.Descriptor()) {
			return sent, false
		}
		sent++
	}
	return sent, true
}
