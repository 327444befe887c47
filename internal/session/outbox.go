package session

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// outboxBytesMax bounds the unsent bytes of one connection before another answer is refused and the session closed. The longest single
// answer, a result of OperationKeysMax pages without neighbours, may pass it once.
const outboxBytesMax = 8 << 20

var (
	errOutboxFull = errors.New("the client does not read its answers")
	errUnsentFull = errors.New("the unsent answers of all clients reach their bound")
)

// outbox sends frames in order without ever waiting for the client. What the socket does not take is kept, up to a bound, and flushed by the
// connection's writer goroutine. Once the client can receive no more, frames are thrown away without an error: what it sent before is
// still to be read and handled, and the reader finds the end.
type outbox struct {
	raw  syscall.RawConn
	wake chan struct{} // holds one token: there is something for the writer

	budget *budget // of the unsent bytes of all connections

	mu      sync.Mutex
	unsent  []byte
	charged int  // bytes of the memory that unsent lies in, what was sent of it included
	full    bool // the budget had no room for the rest of a frame
	broken  bool // the client can receive no more
}

func newOutbox(conn *net.UnixConn, unsent *budget) (*outbox, error) {
	raw, err := conn.SyscallConn()
	return &outbox{raw: raw, wake: make(chan struct{}, 1), budget: unsent}, err
}

// send puts whole frames out. errOutboxFull: nothing was sent, and later there may be room. errUnsentFull: the connection must end, a part of
// the frames may have been sent and nothing follows it.
func (o *outbox) send(frames []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.full {
		return errUnsentFull
	}
	if len(o.unsent) >= outboxBytesMax {
		return errOutboxFull
	}
	if len(o.unsent) == 0 {
		frames = frames[o.write(frames, nil):]
	}
	return o.keep(frames)
}

// keep takes what the socket did not, with mu held.
func (o *outbox) keep(rest []byte) error {
	if len(rest) == 0 || o.broken {
		return nil
	}
	if need := len(o.unsent) + len(rest); need > cap(o.unsent) {
		room := need + need/4
		if !o.budget.take(room - o.charged) {
			o.discard()
			return errUnsentFull
		}
		o.charged = room
		grown := make([]byte, len(o.unsent), room)
		copy(grown, o.unsent)
		o.unsent = grown
	}
	o.unsent = append(o.unsent, rest...)
	o.signal()
	return nil
}

// empty gives the memory of the unsent bytes back, with mu held.
func (o *outbox) empty() {
	o.budget.give(o.charged)
	o.unsent, o.charged = nil, 0
}

// discard throws away what is unsent and what would follow, with mu held.
func (o *outbox) discard() {
	o.broken = true
	o.empty()
}

// close gives the memory back when the connection has ended. It may be called more than once.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discard()
}

// sendDescriptor puts a frame with a descriptor out, or reports false when frames before it are still unsent or the socket is full.
// When the rest of a frame that was sent in part finds no room, the next send ends the connection.
func (o *outbox) sendDescriptor(frame []byte, fd int) (done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.unsent) > 0 {
		return false
	}
	sent := o.write(frame, unix.UnixRights(fd))
	if sent > 0 && sent < len(frame) && !o.broken { // the descriptor went with the first byte
		o.full = o.keep(frame[sent:]) != nil
	}
	return sent > 0 || o.broken
}

// write tries once and returns the bytes that the socket took, zero when it is full; with mu held. Control does not wait for
// whoever waits for the socket to become writable.
func (o *outbox) write(p, oob []byte) (sent int) {
	if o.broken {
		return 0
	}
	var fault error
	err := o.raw.Control(func(fd uintptr) { sent, fault = sendOnce(int(fd), p, oob) })
	o.broken = err != nil || fault != nil
	return sent
}

func sendOnce(fd int, p, oob []byte) (int, error) {
	for {
		n, err := unix.SendmsgN(fd, p, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ETOOMANYREFS):
			return 0, nil // full of bytes, or of descriptors that nobody took yet
		case !errors.Is(err, unix.EINTR):
			return 0, err
		}
	}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// flush waits until everything that was unsent is sent or thrown away. An error says that the connection was closed here.
func (o *outbox) flush() error { return o.raw.Write(o.flushed) }

// flushed sends what the socket takes and says whether nothing is left to wait for.
func (o *outbox) flushed(fd uintptr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.unsent) > 0 && !o.broken {
		sent, err := sendOnce(int(fd), o.unsent, nil)
		o.broken = err != nil
		if sent == 0 && err == nil {
			return false
		}
		o.unsent = o.unsent[sent:]
	}
	o.empty()
	return true
}

// backlog returns the unsent bytes.
func (o *outbox) backlog() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unsent)
}
