package blockio

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface, from linux/io_uring.h, as far as it is used here.
const (
	setupSubmitAll    = 1 << 7  // an entry that is refused does not hold back those behind it: Linux 5.18
	setupSingleIssuer = 1 << 12 // one thread alone submits: 6.0
	setupDeferTaskrun = 1 << 13 // completions are posted when that thread asks for them, and never interrupt it: 6.1

	featureSingleMap = 1 << 0 // both rings lie in one mapping: 5.4

	enterGetEvents = 1 << 0

	offsetRings   = 0
	offsetEntries = 0x10000000

	operationReadVector  = 1
	operationWriteVector = 2
	operationReadFixed   = 4
	operationWriteFixed  = 5
	operationRead        = 22 // 5.6
	operationWrite       = 23

	entryAsync = 1 << 4 // may block, in a thread of the kernel

	registerBuffers       = 0
	unregisterBuffers     = 1
	registerBuffersUpdate = 16 // 5.13
)

type queueParameters struct {
	submissions uint32
	completions uint32
	flags       uint32
	_           [2]uint32
	features    uint32
	_           [4]uint32
	sq          ringOffsets
	cq          ringOffsets
}

// ringOffsets says where the parts of a ring lie in the mapping. The sixth and seventh place mean another thing in each ring.
type ringOffsets struct {
	head, tail, mask, entries, _ uint32
	completionEntries            uint32
	submissionArray              uint32
	_                            uint32
	_                            uint64
}

type submissionEntry struct {
	operation  uint8
	flags      uint8
	_          uint16
	descriptor int32
	offset     uint64
	address    uint64
	bytes      uint32
	_          uint32
	token      uint64
	buffer     uint16 // number of the registered buffer, for the fixed operations
	_          [22]byte
}

type completionEntry struct {
	token  uint64
	result int32 // bytes, or an errno below zero
	_      uint32
}

type bufferUpdate struct {
	first  uint32
	_      uint32
	vector uint64
	tags   uint64
	count  uint32
	_      uint32
}

// kernelQueue is one io_uring: the two rings that this process shares with the kernel. Only the thread that made it may use it.
type kernelQueue struct {
	descriptor int
	rings      []byte // mapping of both rings
	table      []byte // mapping of the submission entries

	sqHead, sqTail, cqHead, cqTail *uint32
	sq                             []submissionEntry
	cq                             []completionEntry

	tail uint32                                    // of the submission ring; the kernel sees it at the next enter
	call func(submit, wait uint32) (uint32, error) // io_uring_enter
}

// newKernelQueue makes a ring with room for so many submissions. The calling goroutine must be locked to its thread.
func newKernelQueue(entries int) (*kernelQueue, error) {
	var parameters queueParameters
	var descriptor uintptr
	var errno unix.Errno
	for _, flags := range []uint32{setupSubmitAll | setupSingleIssuer | setupDeferTaskrun, 0} {
		parameters = queueParameters{flags: flags}
		descriptor, _, errno = unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&parameters)), 0)
		if errno != unix.EINVAL { // which an older kernel answers to flags that it does not know
			break
		}
	}
	if errno != 0 {
		return nil, fmt.Errorf("io_uring_setup: %w", errno)
	}
	q := &kernelQueue{descriptor: int(descriptor)}
	q.call = q.kernelEnter
	if parameters.features&featureSingleMap == 0 {
		return nil, errors.Join(fmt.Errorf("io_uring_setup: the kernel's io_uring is too old: %w", unix.EINVAL), q.close())
	}
	if err := q.share(&parameters); err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

// share maps the rings and finds their parts.
func (q *kernelQueue) share(p *queueParameters) error {
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	bytes := max(int(p.sq.submissionArray)+int(p.submissions)*int(unsafe.Sizeof(uint32(0))),
		int(p.cq.completionEntries)+int(p.completions)*int(unsafe.Sizeof(completionEntry{})))
	var err error
	if q.rings, err = unix.Mmap(q.descriptor, offsetRings, bytes, protection, flags); err != nil {
		return fmt.Errorf("mapping the rings: %w", err)
	}
	if q.table, err = unix.Mmap(q.descriptor, offsetEntries, int(p.submissions)*int(unsafe.Sizeof(submissionEntry{})), protection, flags); err != nil {
		return fmt.Errorf("mapping the submission entries: %w", err)
	}
	base := unsafe.Pointer(unsafe.SliceData(q.rings))
	word := func(offset uint32) *uint32 { return (*uint32)(unsafe.Add(base, offset)) }
	q.sqHead, q.sqTail, q.cqHead, q.cqTail = word(p.sq.head), word(p.sq.tail), word(p.cq.head), word(p.cq.tail)
	q.sq = unsafe.Slice((*submissionEntry)(unsafe.Pointer(unsafe.SliceData(q.table))), p.submissions)
	q.cq = unsafe.Slice((*completionEntry)(unsafe.Add(base, p.cq.completionEntries)), p.completions)
	for i, order := 0, unsafe.Slice(word(p.sq.submissionArray), p.submissions); i < len(order); i++ {
		order[i] = uint32(i) // entries are submitted in the order in which they lie
	}
	q.tail = atomic.LoadUint32(q.sqTail)
	return nil
}

// push adds an entry to the submission ring. Whoever calls bounds what is under way by the ring's size, so there is room.
func (q *kernelQueue) push(e submissionEntry) {
	if q.unsubmitted() == uint32(len(q.sq)) {
		panic("blockio: more entries were pushed into a ring than it holds")
	}
	q.sq[q.tail&uint32(len(q.sq)-1)] = e
	q.tail++
	atomic.StoreUint32(q.sqTail, q.tail)
}

// unsubmitted is how many pushed entries the kernel has not taken.
func (q *kernelQueue) unsubmitted() uint32 { return q.tail - atomic.LoadUint32(q.sqHead) }

// pop takes the oldest completion.
func (q *kernelQueue) pop() (token uint64, result int32, ok bool) {
	head := *q.cqHead // only this side writes it
	if head == atomic.LoadUint32(q.cqTail) {
		return 0, 0, false
	}
	e := q.cq[head&uint32(len(q.cq)-1)]
	atomic.StoreUint32(q.cqHead, head+1)
	return e.token, e.result, true
}

// kernelEnter submits entries and waits until that many completions are there.
func (q *kernelQueue) kernelEnter(submit, wait uint32) (uint32, error) {
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(q.descriptor), uintptr(submit), uintptr(wait), enterGetEvents, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return uint32(n), nil
}

// reserveBuffers makes an empty table of registered buffers.
func (q *kernelQueue) reserveBuffers(count int) error {
	return q.register(registerBuffers, unsafe.Pointer(unsafe.SliceData(make([]unix.Iovec, count))), count)
}

// registerBuffer pins a piece of memory, and faults it in where it is not there yet, and gives it a number of the table.
func (q *kernelQueue) registerBuffer(number int, piece []byte) error {
	vector := unix.Iovec{Base: unsafe.SliceData(piece), Len: uint64(len(piece))}
	update := bufferUpdate{first: uint32(number), vector: uint64(uintptr(unsafe.Pointer(&vector))), count: 1}
	var pin runtime.Pinner // the kernel reads what update points to by its address alone
	pin.Pin(&vector)
	defer pin.Unpin()
	return q.register(registerBuffersUpdate, unsafe.Pointer(&update), int(unsafe.Sizeof(update)))
}

// releaseBuffers unpins what is registered, now: closing the ring would do it some time later.
func (q *kernelQueue) releaseBuffers() error { return q.register(unregisterBuffers, nil, 0) }

func (q *kernelQueue) register(what uintptr, argument unsafe.Pointer, count int) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(q.descriptor), what, uintptr(argument), uintptr(count), 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("io_uring_register: %w", errno)
		}
	}
}

// close gives the ring back. No operation may be under way.
func (q *kernelQueue) close() error {
	var err error
	for _, mapping := range [][]byte{q.rings, q.table} {
		if mapping != nil {
			err = errors.Join(err, unix.Munmap(mapping))
		}
	}
	return errors.Join(err, unix.Close(q.descriptor))
}

// addressOf is where a buffer lies. A buffer that a Transfer holds is on the heap or mapped, so it does not move, and lives while a slot holds it.
func addressOf(buffer []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(buffer))) }

// vectorOf lists buffers for the kernel.
func vectorOf(first []byte, others [][]byte) []unix.Iovec {
	vector := make([]unix.Iovec, 0, 1+len(others))
	for _, b := range append([][]byte{first}, others...) {
		if len(b) > 0 {
			vector = append(vector, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
		}
	}
	return vector
}

// addressOfVector is where a list of buffers lies, which a slot holds.
func addressOfVector(vector []unix.Iovec) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(vector)))
}
