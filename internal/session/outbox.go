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

var errOutboxFull = errors.New("the client does not read its answers")

// outbox sends frames in order without ever waiting for the client. What the socket does not take is kept, up to a bound, and flushed by the
// connection's writer goroutine.
type outbox struct {
	raw  syscall.RawConn
	wake chan struct{} // holds one token: there is something for the writer

	mu      sync.Mutex
	unsent  []byte
	broken  error // the first fault: nothing is sent any more
	refused bool  // a frame found the outbox full
}

func newOutbox(conn *net.UnixConn) (*outbox, error) {
	raw, err := conn.SyscallConn()
	return &outbox{raw: raw, wake: make(chan struct{}, 1)}, err
}

// send puts whole frames out. The error says that the outbox is full or the connection broken.
func (o *outbox) send(frames []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != nil {
		return o.broken
	}
	if len(o.unsent) >= outboxBytesMax {
		o.refused = true
		return errOutboxFull
	}
	if len(o.unsent) == 0 {
		sent, err := o.write(frames, nil)
		if err != nil {
			return err
		}
		frames = frames[sent:]
	}
	if len(frames) > 0 {
		o.unsent = append(o.unsent, frames...)
		o.signal()
	}
	return nil
}

// sendDescriptor puts a frame with a descriptor out, or reports false when frames before it are still unsent or the socket is full.
func (o *outbox) sendDescriptor(frame []byte, fd int) (done bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != nil || len(o.unsent) > 0 {
		return false, o.broken
	}
	sent, err := o.write(frame, unix.UnixRights(fd))
	if err != nil || sent == 0 {
		return false, err
	}
	if sent < len(frame) { // the descriptor went with the first byte
		o.unsent = append(o.unsent, frame[sent:]...)
		o.signal()
	}
	return true, nil
}

// write tries once and returns the bytes that the socket took, zero when it is full; with mu held. Control does not wait for
// whoever waits for the socket to become writable.
func (o *outbox) write(p, oob []byte) (sent int, err error) {
	err = o.raw.Control(func(fd uintptr) { sent, err = sendOnce(int(fd), p, oob) })
	if err != nil {
		o.broken = err
	}
	return sent, err
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

// flush waits until everything that was unsent is sent, or the connection is closed.
func (o *outbox) flush() error {
	return errors.Join(o.raw.Write(o.flushed), o.fault())
}

// flushed sends what the socket takes and says whether nothing is left to wait for.
func (o *outbox) flushed(fd uintptr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.unsent) > 0 && o.broken == nil {
		sent, err := sendOnce(int(fd), o.unsent, nil)
		if err != nil {
			o.broken = err
		}
		if sent == 0 && err == nil {
			return false
		}
		o.unsent = o.unsent[sent:]
	}
	o.unsent = nil
	return true
}

func (o *outbox) fault() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.broken
}

// backlog returns the unsent bytes.
func (o *outbox) backlog() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unsent)
}
