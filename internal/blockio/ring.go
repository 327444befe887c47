package blockio

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// RingDepthMax bounds the operations of a ring.
const RingDepthMax = 4096

// RingConfig says what ring to make.
type RingConfig struct {
	Depth  int      // operations that the kernel has at a time, 1..RingDepthMax; a transfer is one, or where it is large one for each of its buffers or more
	Memory [][]byte // mappings that transfers lie in, registered as they are touched by one buffer alone; none is unmapped or given holes before Close has returned
}

// Ring runs transfers by io_uring, on files that have descriptors. One goroutine, locked to a thread, submits and completes: the kernel then needs
// neither locks nor interrupts between the two. It sleeps in the kernel until an operation ends or until Submit wakes it through an eventfd.
//
// Transfers that find no room in the ring wait in a list, in order. The list has no bound of its own: whoever submits bounds what is unfinished.
type Ring struct {
	ended    chan struct{} // closed when the goroutine has ended
	counters ringCounters
	pinned   *pinned

	mu      sync.Mutex
	waiting jobs // submitted, and not yet seen by the goroutine
	idle    bool // the goroutine sleeps, or is about to, and has room: Submit wakes it
	closing bool
	over    bool // the goroutine takes nothing any more, and the eventfd is closed
	eventfd int
}

type ringCounters struct {
	unfinished, operations             atomic.Int64
	continued, retried, stalled, wakes atomic.Uint64
}

// RingStats is the state of a ring.
type RingStats struct {
	Unfinished      int64  // transfers that were submitted and whose Done has not returned
	Operations      int64  // that the kernel has, at most RingConfig.Depth
	Continued       uint64 // operations that ended short and were continued
	Retried         uint64 // operations that the kernel gave back to be tried again (EAGAIN, EINTR)
	Stalled         uint64 // times that the kernel could take no operation at all
	Wakes           uint64 // times that a submission woke the goroutine
	RegisteredBytes int64  // of RingConfig.Memory
	NotRegistered   string // why no more of it is registered, and the remedy; empty while it is registered as it is touched
}

// NewRing makes a ring. An error names the call that the kernel refused and wraps its errno; nothing is left then.
func NewRing(cfg RingConfig) (*Ring, error) {
	if cfg.Depth < 1 || cfg.Depth > RingDepthMax {
		return nil, fmt.Errorf("a ring of %d operations cannot be made: 1 to %d are possible", cfg.Depth, RingDepthMax)
	}
	r := &Ring{ended: make(chan struct{})}
	started := make(chan error)
	go r.start(cfg, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return r, nil
}

// Name is "uring".
func (r *Ring) Name() string { return WantRing }

// Submit hands a transfer to the goroutine. It makes at most one system call, which does not wait.
func (r *Ring) Submit(t *Transfer) {
	j := &job{t: t, offset: t.Offset}
	if descriptor, ok := t.File.Descriptor(); ok {
		j.descriptor = int32(descriptor)
	} else {
		j.err = errors.New("io_uring: the file is closed or has no descriptor")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		panic("blockio: a transfer was submitted to a closed ring")
	}
	r.counters.unfinished.Add(1)
	r.waiting.push(j)
	r.wake()
}

// Close waits for every transfer that was submitted, and for those that their Done submits (I3). Registered memory is unpinned when it returns.
func (r *Ring) Close() {
	r.mu.Lock()
	r.closing = true
	r.wake()
	r.mu.Unlock()
	<-r.ended
}

// Stats returns the state of the ring.
func (r *Ring) Stats() RingStats {
	c := &r.counters
	s := RingStats{
		Unfinished: c.unfinished.Load(), Operations: c.operations.Load(), Continued: c.continued.Load(), Retried: c.retried.Load(),
		Stalled: c.stalled.Load(), Wakes: c.wakes.Load(), RegisteredBytes: r.pinned.bytes.Load(),
	}
	if refused := r.pinned.refused.Load(); refused != nil {
		s.NotRegistered = *refused
	}
	return s
}

// wake ends the sleep of the goroutine, once for each sleep. The mutex is held, so that the eventfd is still open.
func (r *Ring) wake() {
	if r.idle {
		r.idle = false
		r.signal()
	}
}

// signal makes the read of the eventfd end that the ring has under way.
func (r *Ring) signal() {
	one := [8]byte{1} // a number in the machine's byte order; any but zero will do
	for {
		if _, err := unix.Write(r.eventfd, one[:]); !errors.Is(err, unix.EINTR) {
			return // a full counter is refused, and the read ends then, too
		}
	}
}

// job is a transfer on its way through the ring.
type job struct {
	t          *Transfer
	descriptor int32
	next       *job

	buffer  int   // that the next operation begins in
	at      int   // and where in it
	offset  int64 // of the next operation in the file
	running int   // operations that the kernel has
	issued  bool  // no further operation will be made of it
	err     error // of the first operation that failed
}

// rest is what is left of the buffer that the next operation begins in; empty when all was handed out.
func (j *job) rest() []byte {
	for ; j.buffer < len(j.t.Buffers); j.buffer, j.at = j.buffer+1, 0 {
		if rest := j.t.Buffers[j.buffer][j.at:]; len(rest) > 0 {
			return rest
		}
	}
	return nil
}

// together is what is left behind the rest of the current buffer, where all of it may go in one operation, and its bytes with that rest's.
func (j *job) together(rest []byte) (behind [][]byte, bytes int) {
	behind, bytes = j.t.Buffers[j.buffer+1:], len(rest)
	for _, b := range behind {
		bytes += len(b)
	}
	if bytes == len(rest) || bytes > togetherBytesMax {
		return nil, len(rest)
	}
	return behind, bytes
}

// take moves on behind so many bytes, which an operation was made of.
func (j *job) take(bytes int) {
	j.offset += int64(bytes)
	for bytes > 0 {
		n := min(bytes, len(j.t.Buffers[j.buffer])-j.at)
		if j.at, bytes = j.at+n, bytes-n; bytes > 0 {
			j.buffer, j.at = j.buffer+1, 0
		}
	}
}

// jobs is a list, oldest first.
type jobs struct{ first, last *job }

func (l *jobs) push(j *job) { l.append(&jobs{j, j}) }

// append moves the jobs of another list behind those of this one.
func (l *jobs) append(other *jobs) {
	switch {
	case other.first == nil:
	case l.first == nil:
		*l = *other
	default:
		l.last.next = other.first
		l.last = other.last
	}
	*other = jobs{}
}

func (l *jobs) pop() {
	first := l.first
	l.first, first.next = first.next, nil
	if l.first == nil {
		l.last = nil
	}
}
