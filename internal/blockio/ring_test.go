package blockio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

func TestRingContinuesShortReads(t *testing.T) {
	p, r := newPipe(t, true), newTestRing(t, RingConfig{Depth: 4})
	got, want := vfs.AlignedBuffer(3*block), vfs.AlignedBuffer(3*block)
	fillBlocks(want, 0)
	done := submit(r, Transfer{File: p, Buffers: [][]byte{nil, got, {}}})
	for at := 0; at < len(want); at += block {
		p.feed(t, want[at:][:block])
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("other bytes were read than were written")
	}
	if n := r.Stats().Continued; n != 2 {
		t.Errorf("three packets make two continuations, not %d", n)
	}
}

func TestRingContinuesShortWrites(t *testing.T) {
	p, r := newPipe(t, false), newTestRing(t, RingConfig{Depth: 4})
	if _, err := unix.FcntlInt(uintptr(p.descriptor), unix.F_SETPIPE_SZ, block); err != nil {
		t.Fatal(err)
	}
	want, got := vfs.AlignedBuffer(3*block), make([]byte, 3*block)
	fillBlocks(want, 0)
	done := submit(r, Transfer{File: p, Write: true, Buffers: [][]byte{want}})
	for at := 0; at < len(got); {
		n, err := unix.Read(p.other, got[at:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		at += max(n, 0)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || r.Stats().Continued == 0 {
		t.Errorf("equal bytes: %v; %+v", bytes.Equal(got, want), r.Stats())
	}
}

func TestRingSaysWhereAFileEnds(t *testing.T) {
	f, r := openDirect(t, 2), newTestRing(t, RingConfig{Depth: 4})
	buffer := vfs.AlignedBuffer(3 * block)
	for _, c := range []struct {
		size   int64
		offset int64
		text   string
	}{
		{2 * block, 0, "read 4096 bytes at 8192"},
		{2 * block, 2 * block, "read 12288 bytes at 8192"},
		{block + 512, 0, "at 4608"},
		{100, 0, "at 100"},
	} {
		if err := f.Truncate(c.size); err != nil {
			t.Fatal(err)
		}
		err := <-submit(r, Transfer{File: f, Offset: c.offset, Buffers: [][]byte{buffer}})
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("a read at %d beyond a file of %d bytes ended with %v, not with an unexpected end and %q", c.offset, c.size, err, c.text)
		}
	}
}

// TestRingEndsAfterAnErrorOnce: the operations of one transfer end in any order, and one of them fails.
func TestRingEndsAfterAnErrorOnce(t *testing.T) {
	const part = togetherBytesMax / 2 // so that they are no one operation
	f, r := openDirect(t, 4*part/block), newTestRing(t, RingConfig{Depth: 2})
	buffer := vfs.AlignedBuffer(4 * part)
	for odd := range 4 {
		var buffers [][]byte
		for i := range 4 {
			buffers = append(buffers, buffer[i*part:][:part])
		}
		buffers[odd] = buffer[odd*part+1:][:part-1] // no direct I/O goes there
		var ends int
		done := make(chan error, 8)
		r.Submit(&Transfer{File: f, Buffers: buffers, Done: func(err error) {
			ends++
			done <- err
		}})
		if err := <-done; !errors.Is(err, unix.EINVAL) {
			t.Errorf("a buffer that is not aligned ended with %v, not EINVAL", err)
		}
		if err := <-submit(r, Transfer{File: f, Buffers: [][]byte{buffer}}); err != nil || ends != 1 {
			t.Errorf("the next transfer ended with %v after %d ends of the one that failed", err, ends)
		}
	}
	checkBlocks(t, buffer, 0)
}

func TestRingRefusesWhatHasNoDescriptor(t *testing.T) {
	r := newTestRing(t, RingConfig{Depth: 1})
	err := <-submit(r, Transfer{File: withoutDescriptor{}, Buffers: [][]byte{vfs.AlignedBuffer(block)}})
	if err == nil || !strings.Contains(err.Error(), "no descriptor") {
		t.Errorf("the transfer ended with %v", err)
	}
}

// withoutDescriptor is a file as package vfs/faulty makes them, or a closed one.
type withoutDescriptor struct{ vfs.File }

func (withoutDescriptor) Descriptor() (int, bool) { return -1, false }

func TestRingOfNoDepth(t *testing.T) {
	for _, depth := range []int{-1, 0, RingDepthMax + 1} {
		if _, err := NewRing(RingConfig{Depth: depth}); err == nil || !strings.Contains(err.Error(), "1 to 4096") {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
	r := newTestRing(t, RingConfig{Depth: RingDepthMax})
	if err := <-submit(r, Transfer{File: openDirect(t, 1)}); err != nil {
		t.Errorf("a transfer of no bytes: %v", err)
	}
}

// TestSubmitDoesNotWaitForRoom: far more transfers are submitted than operations fit, none of which can end.
func TestSubmitDoesNotWaitForRoom(t *testing.T) {
	const depth, transfers = 2, 64
	p, r := newPipe(t, true), newTestRing(t, RingConfig{Depth: depth})
	buffers := make([][]byte, transfers)
	order := make(chan int, transfers)
	for i := range buffers {
		buffers[i] = vfs.AlignedBuffer(block)
		r.Submit(&Transfer{File: p, Buffers: [][]byte{buffers[i]}, Done: func(err error) {
			if err != nil {
				t.Error(err)
			}
			order <- i
		}})
	}
	if s := r.Stats(); s.Unfinished != transfers || s.Operations > depth {
		t.Errorf("%+v", s)
	}
	packet, seen := vfs.AlignedBuffer(block), map[byte]bool{}
	for n := range transfers {
		packet[0] = byte(n)
		p.feed(t, packet)
		i := <-order
		if i > n+depth-1 {
			t.Errorf("transfer %d ended as number %d: with %d operations at a time it was not its turn", i, n, depth)
		}
		if seen[buffers[i][0]] = true; buffers[i][0] != byte(n) {
			t.Errorf("transfer %d has the bytes of packet %d, not %d", i, buffers[i][0], n)
		}
	}
	if len(seen) != transfers {
		t.Errorf("%d packets of %d arrived", len(seen), transfers)
	}
}

// TestCloseWaits is I3: Close returns after the last Done, of what was submitted before and of what those Done submit.
func TestCloseWaits(t *testing.T) {
	const chain = 5
	p, r := newPipe(t, true), newTestRing(t, RingConfig{Depth: 2})
	buffer := vfs.AlignedBuffer(block)
	var ends int
	var next func(error)
	next = func(err error) {
		if err != nil {
			t.Error(err)
		}
		if ends++; ends < chain {
			r.Submit(&Transfer{File: p, Buffers: [][]byte{buffer}, Done: next})
		}
	}
	r.Submit(&Transfer{File: p, Buffers: [][]byte{buffer}, Done: next})
	atReturn := make(chan int)
	go func() {
		r.Close()
		atReturn <- ends
	}()
	for closing := false; !closing; runtime.Gosched() {
		r.mu.Lock()
		closing = r.closing
		r.mu.Unlock()
	}
	for range chain {
		p.feed(t, buffer)
	}
	if n := <-atReturn; n != chain {
		t.Errorf("Close returned after %d of %d transfers", n, chain)
	}
	defer func() {
		if recover() == nil {
			t.Error("a closed ring took a transfer")
		}
	}()
	r.Submit(&Transfer{File: p, Done: func(error) {}})
}

// TestDoneSubmitsWithoutAWake: what Done submits is seen before the ring sleeps, whether Done is called for the kernel's answer or for a transfer of
// nothing, which the kernel never sees.
func TestDoneSubmitsWithoutAWake(t *testing.T) {
	const chain = 100
	f, r := openDirect(t, 1), newTestRing(t, RingConfig{Depth: 4})
	buffers := [][]byte{vfs.AlignedBuffer(block)}
	done := make(chan struct{})
	var left int
	var next func(error)
	next = func(err error) {
		if err != nil {
			t.Error(err)
		}
		if left--; left < 0 {
			close(done)
			return
		}
		r.Submit(&Transfer{File: f, Buffers: buffers[left%2:], Done: next})
	}
	left = chain
	r.Submit(&Transfer{File: f, Done: next})
	<-done
	if n := r.Stats().Wakes; n > 1 {
		t.Errorf("one submission came from another goroutine, and %d woke the ring", n)
	}
}

// TestRingWakesForEverySubmission: from many goroutines, each waiting for its own, so that the ring sleeps and wakes all the time.
func TestRingWakesForEverySubmission(t *testing.T) {
	const workers, rounds, span = 8, 200, 16
	f, r := openDirect(t, workers*span), newTestRing(t, RingConfig{Depth: 3})
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(w)))
			own := vfs.AlignedBuffer(span * block) // what the worker's blocks of the file hold
			fillBlocks(own, int64(w*span*block))
			scratch := vfs.AlignedBuffer(span * block)
			for range rounds {
				first := random.IntN(span)
				count := 1 + random.IntN(span-first)
				cut := random.IntN(count+1) * block
				own, scratch := own[first*block:][:count*block], scratch[:count*block]
				transfer := Transfer{File: f, Offset: int64((w*span + first) * block), Buffers: [][]byte{scratch[:cut], scratch[cut:]}}
				if transfer.Write = random.IntN(2) == 0; transfer.Write {
					for i := range own {
						own[i] = byte(random.Uint32())
					}
					copy(scratch, own)
				}
				if err := <-submit(r, transfer); err != nil {
					t.Errorf("worker %d: %v", w, err)
				}
				if !bytes.Equal(own, scratch) {
					t.Errorf("worker %d: other bytes at block %d than were written", w, first)
					return
				}
			}
		})
	}
	all.Wait()
}
