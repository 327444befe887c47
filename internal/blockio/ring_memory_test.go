package blockio

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// mapMemory maps memory that is there only where it is touched.
func mapMemory(t testing.TB, bytes int) []byte {
	t.Helper()
	view, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(view); err != nil {
			t.Error(err)
		}
	})
	return view
}

// TestRingRegistersWhatIsTouched: operations are cut where pieces and mappings end, and only pieces that were touched are pinned.
func TestRingRegistersWhatIsTouched(t *testing.T) {
	const blocks = 4
	f := openDirect(t, blocks)
	untouched, memory := mapMemory(t, 4*block), mapMemory(t, pieceBytesMin+2*block)
	r := newTestRing(t, RingConfig{Depth: 3, Memory: [][]byte{untouched, nil, memory}})
	if s := r.Stats(); s.RegisteredBytes != 0 || s.NotRegistered != "" {
		t.Fatalf("%+v", s)
	}
	for _, c := range []struct {
		name       string
		buffer     []byte
		registered int64
	}{
		{"no memory of the ring", vfs.AlignedBuffer(blocks * block), 0},
		{"the last piece", memory[pieceBytesMin:], 2 * block},
		{"across two pieces", memory[pieceBytesMin-2*block:], pieceBytesMin + 2*block},
		{"the first piece", memory[:blocks*block], pieceBytesMin + 2*block},
		{"no memory of the ring again", vfs.AlignedBuffer(blocks * block), pieceBytesMin + 2*block},
	} {
		fillBlocks(c.buffer, 99*block)
		span := len(c.buffer)
		if err := <-submit(r, Transfer{File: f, Write: true, Offset: int64(blocks*block - span), Buffers: [][]byte{c.buffer}}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		clear(c.buffer)
		if err := <-submit(r, Transfer{File: f, Offset: int64(blocks*block - span), Buffers: [][]byte{c.buffer}}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		checkBlocks(t, c.buffer, 99*block)
		if s := r.Stats(); s.RegisteredBytes != c.registered || s.NotRegistered != "" {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
	r.Close()
	if n := r.Stats().RegisteredBytes; n != 0 {
		t.Errorf("%d bytes are registered with a closed ring", n)
	}
}

// TestPiecesOfMemory compares find with a walk over every place, for pieces that are no multiple of anything.
func TestPiecesOfMemory(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	q, err := newKernelQueue(1)
	checkRing(t, err)
	memory := mapMemory(t, 32*block)
	p := &pinned{pieceBytes: 3 * block}
	p.regions = []region{{view: memory[2*block : 9*block]}, {view: memory[9*block : 12*block]}, {view: memory[20*block : 28*block]}}
	for i := range p.regions {
		p.regions[i].start = addressOf(p.regions[i].view)
	}
	p.number()
	p.registered = make([]bool, p.count)
	if err := q.reserveBuffers(p.count); err != nil {
		t.Fatal(err)
	}
	//                 0   1   2  3  4  5  6  7  8  9 10 11  12                           20                   27  28
	pieces := []int32{-1, -1, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3, -1, -1, -1, -1, -1, -1, -1, -1, 4, 4, 4, 5, 5, 5, 6, 6, -1, -1, -1, -1}
	for at, want := range pieces {
		end := at + 1
		for end < len(pieces) && pieces[end] == want && want != plain {
			end++
		}
		if want == plain {
			end = len(pieces) // nothing cuts what is not registered
		}
		piece, n := p.find(memory[at*block:], q)
		if piece != want || n != (end-at)*block {
			t.Errorf("block %d: piece %d for %d blocks, not piece %d for %d", at, piece, n/block, want, end-at)
		}
	}
	if n := p.bytes.Load(); n != 18*block || p.refused.Load() != nil {
		t.Errorf("%d bytes are registered", n)
	}
	if err := errors.Join(p.release(q), q.close()); err != nil {
		t.Error(err)
	}
}

// TestMemoryThatCannotBeRegistered is used all the same.
func TestMemoryThatCannotBeRegistered(t *testing.T) {
	const blocks = 2
	pages := mapFile(t, blocks*block)
	many := make([][]byte, piecesMax+1)
	for i := range many {
		many[i] = vfs.AlignedBuffer(block)[:1]
	}
	for name, c := range map[string]struct {
		memory [][]byte
		text   string
	}{
		"none":              {nil, "no memory was named"},
		"pages of a file":   {[][]byte{pages}, "io_uring_register: "},
		"too many mappings": {many, "16385 mappings are more than the 16384 pieces"},
	} {
		r := newTestRing(t, RingConfig{Depth: 2, Memory: c.memory})
		if err := <-submit(r, Transfer{File: openDirect(t, blocks), Buffers: [][]byte{pages}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkBlocks(t, pages, 0)
		clear(pages)
		if s := r.Stats(); !strings.Contains(s.NotRegistered, c.text) || s.RegisteredBytes != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// mapFile maps a file of a disk, which the kernel pins for no longer than one operation.
func mapFile(t *testing.T, bytes int) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "mapped"))
	if err == nil {
		err = f.Truncate(int64(bytes))
	}
	if err != nil {
		t.Fatal(err)
	}
	view, err := unix.Mmap(int(f.Fd()), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(view); err != nil {
			t.Error(err)
		}
	})
	return view
}
