package blockio

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

const (
	// togetherBytesMax is the size up to which the buffers of a transfer are one operation: the disk then does one thing where it would do two, as a page
	// and its header block are. They cannot be registered memory; what is larger the kernel cuts into as many requests anyway.
	togetherBytesMax = 1 << 20

	retriesMax = 8                // of one operation in a row that the kernel gave back without having begun
	stallPause = time.Millisecond // before the kernel is asked again when it could take nothing
	wakeToken  = ^uint64(0)       // names the read of the eventfd; other operations are named by their slot
)

// loop is the ring's goroutine: all that it alone touches.
type loop struct {
	ring    *Ring
	queue   *kernelQueue
	backlog jobs // seen, and not wholly handed to the kernel
	slots   []slot
	free    []int32 // numbers of the slots that hold no operation
	count   [8]byte // the kernel reads the eventfd into it
}

// slot is one operation that the kernel has.
type slot struct {
	job     *job
	left    []byte       // of its first buffer
	behind  [][]byte     // its other buffers
	vector  []unix.Iovec // of all of them, which the kernel reads; nil for one alone
	offset  int64        // of left in the file
	piece   int32        // of registered memory, or plain
	retries int
}

// start is the goroutine. The kernel ties a ring to the thread that made it.
func (r *Ring) start(cfg RingConfig, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.ended)
	l, err := r.begin(cfg)
	started <- err
	if err == nil {
		l.run()
	}
}

// run ends when the ring is closed and everything that was submitted has ended.
func (l *loop) run() {
	for {
		l.take()
		l.fill()
		wait, more := l.rest()
		if !more {
			break
		}
		l.enter(wait)
		l.take() // before Done is called: what it submits then wakes nobody
		l.reap()
	}
	l.end()
}

// begin makes the ring and proves that operations and the wake pass through it.
func (r *Ring) begin(cfg RingConfig) (l *loop, err error) {
	if r.eventfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("eventfd2: %w", err)
	}
	l = &loop{ring: r, slots: make([]slot, cfg.Depth), free: make([]int32, cfg.Depth)}
	for i := range l.free {
		l.free[i] = int32(cfg.Depth - 1 - i)
	}
	if l.queue, err = newKernelQueue(cfg.Depth + 1); err != nil { // one more for the eventfd
		return nil, errors.Join(err, unix.Close(r.eventfd))
	}
	if err = l.proveWake(); err != nil {
		return nil, errors.Join(err, l.queue.close(), unix.Close(r.eventfd))
	}
	r.pinned = newPinned(cfg.Memory, l.queue)
	return l, nil
}

// proveWake sends one wake through the ring and leaves the next one ready.
func (l *loop) proveWake() error {
	l.listen()
	l.ring.signal()
	for {
		if _, err := l.queue.call(l.queue.unsubmitted(), 1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("io_uring_enter: %w", err)
		}
		if _, result, ok := l.queue.pop(); ok && result < 0 {
			return fmt.Errorf("reading by io_uring: %w", unix.Errno(-result))
		} else if ok {
			l.listen()
			return nil
		}
	}
}

// listen pushes the read of the eventfd, which ends at the next signal.
func (l *loop) listen() {
	l.queue.push(submissionEntry{
		operation: operationRead, descriptor: int32(l.ring.eventfd), address: uint64(addressOf(l.count[:])), bytes: uint32(len(l.count)), token: wakeToken,
	})
}

// take moves what was submitted into the backlog. From here to rest the goroutine needs no wake.
func (l *loop) take() {
	l.ring.mu.Lock()
	defer l.ring.mu.Unlock()
	l.ring.idle = false
	l.backlog.append(&l.ring.waiting)
}

// fill makes operations of the backlog while there are slots.
func (l *loop) fill() {
	for j := l.backlog.first; j != nil && len(l.free) > 0; j = l.backlog.first {
		rest := j.rest()
		if len(rest) == 0 || j.err != nil {
			l.backlog.pop()
			j.issued = true
			l.settle(j)
			continue
		}
		s := slot{job: j, left: rest, offset: j.offset, piece: plain}
		n := 0
		if s.behind, n = j.together(rest); len(s.behind) == 0 {
			s.piece, n = l.ring.pinned.find(rest, l.queue)
			s.left = rest[:n]
		}
		number := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		l.slots[number] = s
		j.take(n)
		j.running++
		l.ring.counters.operations.Add(1)
		l.issue(number)
	}
}

// issue pushes the operation of a slot.
func (l *loop) issue(number int32) {
	s := &l.slots[number]
	e := submissionEntry{
		operation: operationRead, descriptor: s.job.descriptor, offset: uint64(s.offset), address: uint64(addressOf(s.left)), bytes: uint32(len(s.left)), token: uint64(number),
	}
	if s.job.t.Write {
		e.operation = operationWrite
	}
	switch { // reads and writes are a step apart in all kinds
	case s.piece != plain:
		e.operation -= operationRead - operationReadFixed
		e.buffer = uint16(s.piece)
	case len(s.behind) > 0:
		e.operation -= operationRead - operationReadVector
		s.vector = vectorOf(s.left, s.behind)
		e.address, e.bytes = uint64(addressOfVector(s.vector)), uint32(len(s.vector))
	}
	if s.retries > 0 {
		e.flags = entryAsync // what could not be done without waiting
	}
	l.queue.push(e)
}

// rest says how many completions to wait for, and whether there is anything left to do. Without room for another operation a submission changes
// nothing, so that it need not wake anybody.
func (l *loop) rest() (wait uint32, more bool) {
	if len(l.free) == 0 {
		return 1, true
	}
	r := l.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.waiting.first != nil: // it came since take
		return 0, true
	case r.closing && len(l.free) == len(l.slots):
		r.over = true
		return 0, false
	}
	r.idle = true
	return 1, true
}

// enter hands the kernel what was pushed, and waits. The kernel may take a part: the next call hands it the rest.
func (l *loop) enter(wait uint32) {
	for submit := l.queue.unsubmitted(); ; submit, wait = 0, 0 {
		switch _, err := l.queue.call(submit, wait); {
		case err == nil, errors.Is(err, unix.EINTR):
			return
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOMEM):
			// Memory is short. Asked for nothing, the kernel still posts completions, and those give it back.
			l.ring.counters.stalled.Add(1)
			time.Sleep(stallPause)
		default:
			// Operations may still be under way, so that their memory must never be used again, and nobody will ever say that they ended.
			panic(fmt.Sprintf("blockio: io_uring_enter failed: %v: something closed the ring's descriptor, or forbade the call after the start", err))
		}
	}
}

// reap takes all completions.
func (l *loop) reap() {
	for {
		token, result, ok := l.queue.pop()
		switch {
		case !ok:
			return
		case token == wakeToken:
			l.ring.counters.wakes.Add(1)
			l.listen()
		default:
			l.complete(int32(token), result)
		}
	}
}

// complete goes on with an operation that the kernel gave back, or ends it.
func (l *loop) complete(number, result int32) {
	s, c := &l.slots[number], &l.ring.counters
	if result > 0 {
		s.retries = 0
		if s.advance(int(result)); len(s.left) > 0 {
			c.continued.Add(1)
			l.issue(number)
			return
		}
	} else if s.retries < retriesMax && (result == -int32(unix.EAGAIN) || result == -int32(unix.EINTR)) {
		s.retries++
		c.retried.Add(1)
		l.issue(number)
		return
	} else if s.job.err == nil {
		s.job.err = s.failure(result)
	}
	j := s.job
	*s = slot{}
	l.free = append(l.free, number)
	c.operations.Add(-1)
	j.running--
	l.settle(j)
}

// failure says why an operation could not be done or continued.
func (s *slot) failure(result int32) error {
	operation, short := "read", io.ErrUnexpectedEOF
	if s.job.t.Write {
		operation, short = "write", io.ErrShortWrite
	}
	var err error = unix.Errno(-result)
	if result == 0 || s.offset%vfs.Align != 0 && result == -int32(unix.EINVAL) {
		err = short // in the second case it went on inside a block: the file ends there
	}
	bytes := len(s.left)
	for _, b := range s.behind {
		bytes += len(b)
	}
	return fmt.Errorf("io_uring: %s %d bytes at %d: %w", operation, bytes, s.offset, err)
}

// advance moves on behind so many bytes, which the kernel has done.
func (s *slot) advance(bytes int) {
	s.offset += int64(bytes)
	for bytes >= len(s.left) && len(s.behind) > 0 {
		bytes -= len(s.left)
		s.left, s.behind = s.behind[0], s.behind[1:]
	}
	s.left = s.left[bytes:]
}

// settle ends a transfer of which nothing is left.
func (l *loop) settle(j *job) {
	if j.issued && j.running == 0 {
		j.t.Done(j.err)
		l.ring.counters.unfinished.Add(-1)
	}
}

// end gives everything back. The kernel still reads the eventfd: it must let go of count first.
func (l *loop) end() {
	l.ring.signal()
	for token := uint64(0); token != wakeToken; {
		l.enter(1)
		token, _, _ = l.queue.pop()
	}
	err := errors.Join(l.ring.pinned.release(l.queue), l.queue.close(), unix.Close(l.ring.eventfd))
	if err != nil {
		panic(fmt.Sprintf("blockio: a ring cannot be given back: %v", err))
	}
}
