package client

import (
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"orbitkv/internal/wire"
)

// descriptorsMax bounds the descriptors that may wait for their arena frames; the Manager sends one with each.
const descriptorsMax = 64

// source reads the socket and keeps the descriptors that came along, in their order.
type source struct {
	conn        *net.UnixConn
	control     []byte
	descriptors []int
}

func newSource(conn *net.UnixConn) *source {
	return &source{conn: conn, control: make([]byte, unix.CmsgSpace(4*descriptorsMax))}
}

// Read implements io.Reader. Descriptors arrive with close-on-exec set: the standard library asks for it.
func (s *source) Read(p []byte) (int, error) {
	n, controlBytes, flags, _, err := s.conn.ReadMsgUnix(p, s.control)
	if controlBytes > 0 {
		if faulty := s.keep(s.control[:controlBytes]); faulty != nil {
			return n, faulty
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return n, fmt.Errorf("client: descriptors were cut off: more than %d at once, or the process has no free ones", descriptorsMax)
	}
	return n, err
}

func (s *source) keep(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return fmt.Errorf("client: control message: %w", err)
	}
	for i := range messages {
		descriptors, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fmt.Errorf("client: descriptors: %w", err)
		}
		s.descriptors = append(s.descriptors, descriptors...)
	}
	if len(s.descriptors) > descriptorsMax {
		return fmt.Errorf("client: %d descriptors came without arena frames", len(s.descriptors))
	}
	return nil
}

// take returns the descriptor that belongs to the next arena frame.
func (s *source) take() (descriptor int, ok bool) {
	if len(s.descriptors) == 0 {
		return 0, false
	}
	descriptor = s.descriptors[0]
	s.descriptors = s.descriptors[1:]
	return descriptor, true
}

func (s *source) close() {
	for _, d := range s.descriptors {
		_ = unix.Close(d) // nobody has seen it
	}
}

// read takes frames until the channel ends.
func (c *Client) read() {
	defer close(c.done)
	from := newSource(c.conn)
	defer from.close()
	frames := wire.NewReader(from)
	for {
		h, body, err := frames.Next()
		if err == nil {
			err = c.handle(h, body, from)
		}
		if err == io.EOF {
			err = fmt.Errorf("client: the Manager closed the channel: %w", err)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// handle gives a frame to the call that it answers or to the handler of its push. An error ends the channel.
func (c *Client) handle(h wire.Header, body []byte, from *source) error {
	m := wire.New(h.Type)
	if err := m.Decode(body); err != nil {
		return err
	}
	switch m := m.(type) {
	case *wire.Arena:
		return c.addArena(m, from)
	case *wire.Ping:
		return c.Send(&wire.Pong{Nonce: m.Nonce})
	case *wire.Pong:
		return c.answer(c.pings, m.Nonce, m)
	case *wire.Notice:
		if c.options.OnNotice != nil {
			c.options.OnNotice(*m)
		}
		return nil
	case *wire.Revoke:
		yielded := c.options.OnRevoke != nil && c.options.OnRevoke(m.Lease)
		return c.Send(&wire.Revoked{Lease: m.Lease, Yielded: yielded})
	case *wire.Error:
		if h.ID == 0 {
			return m
		}
	}
	return c.answer(c.calls, h.ID, m)
}

// answer adds a frame to the call that waits for it. An answer that nobody waits for any more is dropped: its caller gave up.
func (c *Client) answer(waiting map[uint64]*call, id uint64, m wire.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := waiting[id]
	if !ok {
		return nil
	}
	whole, err := w.take(m)
	if whole {
		delete(waiting, id)
	}
	return err
}
