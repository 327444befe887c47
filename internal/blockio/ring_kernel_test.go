package blockio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// readAll submits one read of each block of a file and checks them all.
func readAll(t *testing.T, r *Ring, f vfs.File, blocks int) {
	t.Helper()
	var dones []<-chan error
	content := vfs.AlignedBuffer(blocks * block)
	for i := range blocks {
		dones = append(dones, submit(r, Transfer{File: f, Offset: int64(i * block), Buffers: [][]byte{content[i*block:][:block]}}))
	}
	for i, done := range dones {
		if err := <-done; err != nil {
			t.Errorf("block %d: %v", i, err)
		}
	}
	checkBlocks(t, content, 0)
}

// TestRingSurvivesAKernelThatTakesNothing: calls fail as they do when memory is short, or take less than they were given.
func TestRingSurvivesAKernelThatTakesNothing(t *testing.T) {
	const blocks = 16
	for _, errno := range []unix.Errno{0, unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOMEM} {
		f := openDirect(t, blocks)
		var refused int
		random := rand.New(rand.NewPCG(7, uint64(errno)))
		r := newTamperedRing(t, RingConfig{Depth: 5}, func(q *kernelQueue) {
			kernel := q.call
			q.call = func(submit, wait uint32) (uint32, error) {
				switch {
				case errno == 0 && submit > 1:
					refused++
					return kernel(1, 0)
				case errno != 0 && random.IntN(3) > 0:
					refused++
					return 0, errno
				}
				return kernel(submit, wait)
			}
		})
		readAll(t, r, f, blocks)
		r.Close()
		stalled := int(r.Stats().Stalled)
		if refused == 0 || (stalled == refused) != (errno != 0 && errno != unix.EINTR) {
			t.Errorf("%v: %d calls were refused and %d counted as stalls", errno, refused, stalled)
		}
	}
}

// answers rewrites completions of operations before the ring sees them.
func answers(rewrite func(token uint64, result int32) int32) func(q *kernelQueue) {
	return func(q *kernelQueue) {
		kernel, seen := q.call, *q.cqHead
		q.call = func(submit, wait uint32) (uint32, error) {
			n, err := kernel(submit, wait)
			for ; seen != *q.cqTail; seen++ {
				if e := &q.cq[seen&uint32(len(q.cq)-1)]; e.token != wakeToken {
					e.result = rewrite(e.token, e.result)
				}
			}
			return n, err
		}
	}
}

func TestRingRepeatsWhatTheKernelGaveBack(t *testing.T) {
	const blocks = 12
	for _, errno := range []unix.Errno{unix.EINTR, unix.EAGAIN} {
		f, times := openDirect(t, blocks), map[uint64]int{}
		r := newTamperedRing(t, RingConfig{Depth: 4}, answers(func(token uint64, result int32) int32 {
			if times[token]++; times[token]%(retriesMax+1) != 0 {
				return -int32(errno)
			}
			return result
		}))
		readAll(t, r, f, blocks)
		if n := r.Stats().Retried; n != blocks*retriesMax {
			t.Errorf("%v: %d operations were repeated, not %d", errno, n, blocks*retriesMax)
		}
	}
}

func TestRingRepeatsWithinABound(t *testing.T) {
	f := openDirect(t, 1)
	r := newTamperedRing(t, RingConfig{Depth: 1}, answers(func(uint64, int32) int32 { return -int32(unix.EAGAIN) }))
	err := <-submit(r, Transfer{File: f, Buffers: [][]byte{vfs.AlignedBuffer(block)}})
	if n := r.Stats().Retried; !errors.Is(err, unix.EAGAIN) || n != retriesMax {
		t.Errorf("the read ended with %v after %d repetitions", err, n)
	}
}

// TestRingContinuesWhereTheKernelStopped: any operation may end short, in the middle of a transfer of several buffers.
func TestRingContinuesWhereTheKernelStopped(t *testing.T) {
	const blocks = 8
	f := openDirect(t, blocks)
	r := newTamperedRing(t, RingConfig{Depth: 2}, answers(func(_ uint64, result int32) int32 { return min(result, block) }))
	content := vfs.AlignedBuffer(blocks * block)
	fillBlocks(content, 77*block)
	buffers := [][]byte{content[:3*block], content[3*block : 4*block], content[4*block:]}
	if err := <-submit(r, Transfer{File: f, Write: true, Buffers: buffers}); err != nil {
		t.Fatal(err)
	}
	wrote := bytes.Clone(content)
	clear(content)
	if err := <-submit(r, Transfer{File: f, Buffers: buffers}); err != nil {
		t.Fatal(err)
	}
	if n := r.Stats().Continued; n != 2*(blocks-1) || !bytes.Equal(wrote, content) {
		t.Errorf("%d continuations of %d; equal bytes: %v", n, 2*(blocks-1), bytes.Equal(wrote, content))
	}
}

// TestRingMovesSmallBuffersTogether: the buffers of a transfer are one operation up to togetherBytesMax, and one each beyond it. Registered memory is
// used for what is one buffer.
func TestRingMovesSmallBuffersTogether(t *testing.T) {
	const most = togetherBytesMax
	for name, c := range map[string]struct {
		buffers    []int
		operations []uint8 // of a write
	}{
		"a page and its header block": {[]int{most - block, block}, []uint8{operationWriteVector}},
		"a large page and its block":  {[]int{most, block}, []uint8{operationWriteFixed, operationWriteFixed}},
		"one buffer":                  {[]int{4 * block}, []uint8{operationWriteFixed}},
		"one among none":              {[]int{0, 4 * block, 0}, []uint8{operationWriteFixed}},
		"some, and none between":      {[]int{block, 0, 3 * block, block, 0}, []uint8{operationWriteVector}},
		"a large part and small ones": {[]int{most, most / 2, block}, []uint8{operationWriteFixed, operationWriteVector}},
	} {
		t.Run(name, func(t *testing.T) {
			f, memory := openDirect(t, 2*most/block), mapMemory(t, 2*most)
			fillBlocks(memory, 55*block)
			var operations []uint8
			r := newTamperedRing(t, RingConfig{Depth: 8, Memory: [][]byte{memory}}, func(q *kernelQueue) {
				kernel := q.call
				q.call = func(submit, wait uint32) (uint32, error) {
					for at := q.tail - submit; at != q.tail; at++ {
						if e := q.sq[at&uint32(len(q.sq)-1)]; e.token != wakeToken {
							operations = append(operations, e.operation)
						}
					}
					return kernel(submit, wait)
				}
			})
			var buffers [][]byte
			total := 0
			for _, n := range c.buffers {
				buffers = append(buffers, memory[total:][:n])
				total += n
			}
			if err := <-submit(r, Transfer{File: f, Write: true, Offset: block, Buffers: buffers}); err != nil {
				t.Fatal(err)
			}
			clear(memory)
			if err := <-submit(r, Transfer{File: f, Offset: block, Buffers: buffers}); err != nil {
				t.Fatal(err)
			}
			r.Close()
			checkBlocks(t, memory[:total], 55*block)
			half := len(operations) / 2
			for i := range half {
				if operations[half+i] != operations[i]-1 {
					t.Errorf("operation %d of the read is %d, that of the write %d", i, operations[half+i], operations[i])
				}
			}
			if !slices.Equal(operations[:half], c.operations) {
				t.Errorf("operations %v, want %v", operations[:half], c.operations)
			}
		})
	}
}

// TestRingEndsInAnError: what the kernel answers reaches Done with the operation and the place.
func TestRingEndsInAnError(t *testing.T) {
	f := openDirect(t, 2)
	for _, c := range []struct {
		write  bool
		result int32
		text   string
	}{
		{false, -int32(unix.EIO), "read 8192 bytes at 0: input/output error"},
		{true, -int32(unix.ENOSPC), "write 8192 bytes at 0: no space left on device"},
		{true, 0, "write 8192 bytes at 0: short write"},
		{true, -int32(unix.EINVAL), "write 8192 bytes at 0: invalid argument"},
	} {
		r := newTamperedRing(t, RingConfig{Depth: 2}, answers(func(uint64, int32) int32 { return c.result }))
		err := <-submit(r, Transfer{File: f, Write: c.write, Buffers: [][]byte{vfs.AlignedBuffer(2 * block)}})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("the transfer ended with %v, not with %q", err, c.text)
		}
	}
}

// TestRingSaysThatAFileEndsInsideABlock: some file systems answer EINVAL where others say that nothing is left.
func TestRingSaysThatAFileEndsInsideABlock(t *testing.T) {
	f := openDirect(t, 2)
	if err := f.Truncate(block + 512); err != nil {
		t.Fatal(err)
	}
	r := newTamperedRing(t, RingConfig{Depth: 2}, answers(func(_ uint64, result int32) int32 {
		if result == 0 {
			return -int32(unix.EINVAL)
		}
		return result
	}))
	err := <-submit(r, Transfer{File: f, Buffers: [][]byte{vfs.AlignedBuffer(2 * block)}})
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "read 3584 bytes at 4608") {
		t.Errorf("the read ended with %v", err)
	}
}

func TestRingPanicsWhenItIsTakenAway(t *testing.T) {
	l := &loop{ring: &Ring{}, queue: &kernelQueue{sqHead: new(uint32), call: func(uint32, uint32) (uint32, error) { return 0, unix.EBADF }}}
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "io_uring_enter failed: bad file descriptor") {
			t.Errorf("the panic says %q", text)
		}
	}()
	l.enter(1)
}
