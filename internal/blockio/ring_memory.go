package blockio

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Bounds of registered memory.
const (
	pieceBytesMin = 64 << 20 // pinned by one call, in about 3 ms when it is populated: how long other transfers may have to wait for it
	pieceBytesMax = 1 << 30  // the kernel takes no larger buffer
	piecesMax     = 1 << 14  // nor more of them
	partBytesMax  = 1 << 30  // of one operation where memory is not registered

	plain = -1 // in place of a piece's number
)

// pinned is the memory that is registered with a ring piece by piece, each when a transfer first touches it: the owner of the memory populates
// it in its own time, and what was never lent is never pinned. The kernel keeps the pages that it found: memory must be neither unmapped nor
// given back by holes before the ring is closed. The ring's goroutine alone uses it, but for the two fields that anyone may read.
type pinned struct {
	regions    []region // by address
	pieceBytes int
	registered []bool
	count      int
	bytes      atomic.Int64           // registered
	refused    atomic.Pointer[string] // why no more is registered; nil while it is
}

// region is one mapping.
type region struct {
	view  []byte
	start uintptr
	first int // number of its first piece
}

// newPinned plans the pieces and asks the kernel for a table of them. What stands against registering goes to refused.
func newPinned(memory [][]byte, q *kernelQueue) *pinned {
	p := &pinned{pieceBytes: pieceBytesMin}
	var total uint64
	for _, view := range memory {
		if len(view) > 0 {
			p.regions = append(p.regions, region{view: view, start: addressOf(view)})
			total += uint64(len(view))
		}
	}
	slices.SortFunc(p.regions, func(a, b region) int { return cmp.Compare(a.start, b.start) })
	for p.number(); p.count > piecesMax && p.pieceBytes < pieceBytesMax; p.number() {
		p.pieceBytes *= 2
	}
	p.registered = make([]bool, p.count)
	switch limit := lockedLimit(total); {
	case p.count == 0:
		p.refuse("no memory was named to register")
	case p.count > piecesMax:
		p.refuse(fmt.Sprintf("%d bytes in %d mappings are more than the %d pieces that a ring can register", total, len(p.regions), piecesMax))
	case limit != "":
		p.refuse(limit)
	default:
		if err := q.reserveBuffers(p.count); err != nil {
			p.refuseFor(err)
		}
	}
	return p
}

// number gives the pieces of all regions their numbers.
func (p *pinned) number() {
	p.count = 0
	for i := range p.regions {
		p.regions[i].first = p.count
		p.count += (len(p.regions[i].view) + p.pieceBytes - 1) / p.pieceBytes
	}
}

// find is the number of the registered piece that a buffer begins in, or plain, and how many of its bytes one operation may take. It registers
// a piece that is touched for the first time.
func (p *pinned) find(buffer []byte, q *kernelQueue) (piece int32, bytes int) {
	start := addressOf(buffer)
	i, exact := slices.BinarySearchFunc(p.regions, start, func(r region, at uintptr) int { return cmp.Compare(r.start, at) })
	if !exact {
		i-- // the last region that begins before the buffer
	}
	if i < 0 || start-p.regions[i].start >= uintptr(len(p.regions[i].view)) {
		return plain, min(len(buffer), partBytesMax)
	}
	r := &p.regions[i]
	within := int(start - r.start)
	first := within / p.pieceBytes * p.pieceBytes
	end := min(first+p.pieceBytes, len(r.view))
	number := r.first + within/p.pieceBytes
	if !p.registered[number] && p.refused.Load() == nil {
		p.register(number, r.view[first:end], q)
	}
	if !p.registered[number] {
		return plain, min(len(buffer), partBytesMax)
	}
	return int32(number), min(len(buffer), end-within)
}

func (p *pinned) register(number int, view []byte, q *kernelQueue) {
	if err := q.registerBuffer(number, view); err != nil {
		p.refuseFor(err)
		return
	}
	p.registered[number] = true
	p.bytes.Add(int64(len(view)))
}

// release unpins everything.
func (p *pinned) release(q *kernelQueue) error {
	if p.bytes.Load() == 0 {
		return nil
	}
	p.bytes.Store(0)
	return q.releaseBuffers()
}

// refuse ends registering. A limit that one piece met would be met by the next, and each attempt costs time.
func (p *pinned) refuse(reason string) { p.refused.Store(&reason) }

func (p *pinned) refuseFor(err error) {
	reason := fmt.Sprintf("after %d registered bytes %v", p.bytes.Load(), err)
	switch {
	case errors.Is(err, unix.ENOMEM):
		reason += ": " + remedyLocked
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EFAULT), errors.Is(err, unix.EOPNOTSUPP):
		reason += ": this takes Linux 5.13 or newer, and memory of memfds or of the process itself"
	}
	p.refuse(reason)
}

const remedyLocked = "raise the limit of locked memory to more than the pool (LimitMEMLOCK=infinity of a service, --ulimit memlock=-1 of a container) or grant CAP_IPC_LOCK"

// lockedLimit says what forbids this process to pin so many bytes, or nothing. What it cannot find out, the kernel says at the first piece.
func lockedLimit(bytes uint64) string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur >= bytes || mayLock() {
		return ""
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes and the memory has %d: %s", limit.Cur, bytes, remedyLocked)
}

// mayLock says whether this process has the capability that no limit of locked memory holds for.
func mayLock() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
