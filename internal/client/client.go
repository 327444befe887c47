package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"orbitkv/internal/wire"
)

// sendTimeout bounds the write of one operation. The Manager always reads, so a full socket means that it is stopped.
const sendTimeout = 5 * time.Second

// ErrClosed is the reason of calls on a Client that Close was called on.
var ErrClosed = errors.New("client: closed")

// Options says who the client is and what it does with pushes. Handlers run on the reading goroutine: they must be quick and must
// not call back into the Client.
type Options struct {
	Role     wire.Role
	Name     string
	OnArena  func(*Arena) error      // registers a mapped arena before the Manager hears of it; an error is reported as not mapped
	OnNotice func(wire.Notice)       // hears of completions
	OnRevoke func(lease uint64) bool // says whether the lease is given back; nil keeps every lease
}

// Client is one connection to a Manager. Create it with Dial.
type Client struct {
	conn    *net.UnixConn
	options Options
	welcome wire.Welcome
	done    chan struct{} // closed when the reading goroutine has ended

	sendMu    sync.Mutex
	buf       []byte // guarded by sendMu: the frames of one operation
	operation uint64 // guarded by sendMu: the last operation id, so that ids increase in the order of arrival

	mu     sync.Mutex
	calls  map[uint64]*call // waiting for an answer, by id
	pings  map[uint64]*call // waiting for a pong, by nonce
	lastID uint64
	err    error // why the channel ended
	arenas map[uint16]*Arena
	mapped chan struct{} // closed and replaced whenever an arena was added
}

// Dial connects to the Manager's socket and opens a session. The error names the path; a refusal is a *wire.Error.
func Dial(ctx context.Context, path string, o Options) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("client: no Manager at %s: %w", path, err)
	}
	c := &Client{
		conn: conn.(*net.UnixConn), options: o, done: make(chan struct{}), calls: map[uint64]*call{}, pings: map[uint64]*call{},
		arenas: map[uint16]*Arena{}, mapped: make(chan struct{}),
	}
	go c.read()
	answer, err := c.call(ctx, &wire.Hello{ABI: wire.ABI, Role: o.Role, Name: o.Name})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: hello at %s: %w", path, err), c.Close())
	}
	welcome, ok := answer.(*wire.Welcome)
	if !ok {
		return nil, errors.Join(unexpected(answer), c.Close())
	}
	c.welcome = *welcome
	return c, nil
}

// Welcome returns what the Manager said when the session was opened.
func (c *Client) Welcome() wire.Welcome { return c.welcome }

// Done is closed when the channel has ended; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the channel ended, nil while it lives. It is a *wire.Error when the Manager closed the session with a reason.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the channel, fails the calls that wait and unmaps the arenas. Nobody may touch an arena's bytes any more.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.done
	return c.unmapAll()
}

// fail ends the channel for the first reason given; later ones change nothing.
func (c *Client) fail(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = reason
	for _, waiting := range []map[uint64]*call{c.calls, c.pings} {
		for id, w := range waiting {
			w.end(nil, reason)
			delete(waiting, id)
		}
	}
	_ = c.conn.Close() // a socket that is gone already is closed
}

// Send writes one-way frames in order. An error ends the channel, since the Manager may have seen a part of them.
func (c *Client) Send(messages ...wire.Message) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.buf = c.buf[:0]
	for _, m := range messages {
		if err := c.append(m, 0); err != nil {
			return err
		}
	}
	return c.flush()
}

// append encodes a frame behind those of the same operation. sendMu is held.
func (c *Client) append(m wire.Message, id uint64) (err error) {
	c.buf, err = m.Append(c.buf, id)
	return err
}

// flush writes what append collected. sendMu is held.
func (c *Client) flush() error {
	if err := c.Err(); err != nil {
		return err
	}
	err := c.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err == nil {
		_, err = c.conn.Write(c.buf)
	}
	if err != nil {
		c.fail(fmt.Errorf("client: send: %w", err))
		return c.Err()
	}
	return nil
}

// call sends one frame and waits for its answer.
func (c *Client) call(ctx context.Context, m wire.Message) (wire.Message, error) {
	w, err := c.start(m)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, w)
}

func (c *Client) start(m wire.Message) (*call, error) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	w := c.expect()
	c.buf = c.buf[:0]
	if err := c.append(m, w.id); err != nil {
		c.forget(w)
		return nil, err
	}
	return w, c.flush()
}

// expect opens a call under a new id.
func (c *Client) expect() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	w := newCall(c.lastID)
	c.calls[w.id] = w
	return w
}

// forget drops a call; an answer that comes later is read and dropped.
func (c *Client) forget(w *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, w.id)
	delete(c.pings, w.id)
}

func (c *Client) wait(ctx context.Context, w *call) (wire.Message, error) {
	select {
	case <-w.ended:
		return w.answer, w.err
	case <-ctx.Done():
		c.forget(w)
		return nil, fmt.Errorf("client: no answer: %w", ctx.Err())
	}
}

func unexpected(m wire.Message) error {
	return wire.Errorf(wire.StatusMalformed, "a %s frame does not answer this call", m.Type())
}
