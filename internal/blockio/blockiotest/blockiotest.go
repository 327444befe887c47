// Package blockiotest is what every engine of blockio must do, as tests that an engine's own package runs.
//
// Bytes are judged by an oracle: what lies at an offset is a function of the offset and of how often it was written, and memory around a buffer is guarded.
// Times are never judged: an engine that waits where it must not hangs the test. The package must not be imported by anything but tests.
package blockiotest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/blockio"
	"orbitkv/internal/vfs"
)

const (
	fileBytes   = 24 << 20
	memoryBytes = 32 << 20
	guard       = 0xa5 // of every byte that no transfer may touch
)

// Suite says what to test.
type Suite struct {
	// Engine starts an engine for transfers into and out of memory; the suite closes it.
	Engine func(t *testing.T, memory [][]byte) blockio.Engine
	// File makes an empty file for direct I/O.
	File func(t *testing.T) vfs.File
}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Run("bytes", s.bytes)
	t.Run("more buffers than one call takes", s.manyBuffers)
	t.Run("errors are reported once", s.failures)
	t.Run("submitting never waits", s.submitNeverWaits)
	t.Run("done may submit", s.doneSubmits)
	t.Run("close waits", s.closeWaits)
}

// rig is an engine, a file, and memory that is guarded where nothing is.
type rig struct {
	t      *testing.T
	engine blockio.Engine
	file   vfs.File
	memory []byte
	taken  int // bytes of memory from the start
}

func (s Suite) start(t *testing.T) *rig {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, memoryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	half := memoryBytes / 2
	r := &rig{t: t, engine: s.Engine(t, [][]byte{memory[:half], memory[half:]}), file: s.File(t), memory: memory}
	r.clear()
	return r
}

// take returns buffers of so many bytes together, each behind a block that stays guarded.
func (r *rig) take(bytes, count int, draw *rand.Rand) (buffers [][]byte) {
	for i := range count {
		n := bytes
		if i < count-1 {
			n = min(bytes, draw.IntN(bytes/vfs.Align+1)*vfs.Align)
		}
		if bytes -= n; n == 0 {
			continue
		}
		r.taken += vfs.Align
		buffers = append(buffers, r.memory[r.taken:][:n:n])
		r.taken += n
	}
	return buffers
}

// checkGuards fails the test when a byte was touched that lies in no buffer of these transfers.
func (r *rig) checkGuards(of []*blockio.Transfer) {
	r.t.Helper()
	want := bytes.Repeat([]byte{guard}, vfs.Align)
	at := 0
	for _, t := range of {
		for _, b := range t.Buffers {
			if !bytes.Equal(r.memory[at:][:vfs.Align], want) {
				r.t.Fatalf("memory in front of a buffer of %d bytes was written", len(b))
			}
			at += vfs.Align + len(b)
		}
	}
	if rest := r.memory[at:]; bytes.Count(rest, want[:1]) != len(rest) {
		r.t.Fatal("memory behind the last buffer was written")
	}
}

// oracle is what lies at an offset of the file after its nth writing, a multiple of 8 bytes.
func oracle(p []byte, offset int64, writing uint64) {
	for i := 0; i < len(p); i += 8 {
		mixed := (uint64(offset) + uint64(i)) * 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(p[i:], (mixed^mixed>>29)+writing*0xbf58476d1ce4e5b9)
	}
}

// fillBuffers puts into a transfer's buffers what the file shall hold.
func fillBuffers(t *blockio.Transfer, writing uint64) {
	at := t.Offset
	for _, b := range t.Buffers {
		oracle(b, at, writing)
		at += int64(len(b))
	}
}

// checkBuffers fails the test when a transfer's buffers hold other bytes than the file shall.
func (r *rig) checkBuffers(t *blockio.Transfer, writing uint64) {
	r.t.Helper()
	at := t.Offset
	for i, b := range t.Buffers {
		want := make([]byte, len(b))
		oracle(want, at, writing)
		if !bytes.Equal(b, want) {
			r.t.Fatalf("buffer %d of %d, %d bytes for offset %d, holds other bytes than the file shall", i, len(t.Buffers), len(b), at)
		}
		at += int64(len(b))
	}
}

// plan cuts the file into transfers of 4 KiB to 9 MiB with one to eight buffers, whose order in memory is none of the file's.
func (r *rig) plan(draw *rand.Rand) (transfers []*blockio.Transfer) {
	sizes := []int{vfs.Align, vfs.Align, 2 * vfs.Align, 64 << 10, 256 << 10, 1<<20 + vfs.Align, 9 << 20}
	r.clear()
	for left := fileBytes; left > 0; {
		n := min(left, sizes[draw.IntN(len(sizes))])
		transfers = append(transfers, &blockio.Transfer{File: r.file, Offset: int64(n), Buffers: r.take(n, 1+draw.IntN(8), draw)})
		left -= n
	}
	offset := int64(0)
	for _, i := range draw.Perm(len(transfers)) {
		t := transfers[i]
		t.Offset, offset = offset, offset+t.Offset
	}
	return transfers
}

// clear takes all buffers back and guards the whole memory.
func (r *rig) clear() {
	r.taken = 0
	r.memory[0] = guard
	for done := 1; done < len(r.memory); done *= 2 {
		copy(r.memory[done:], r.memory[:done])
	}
}

// together submits transfers in random order and waits for all of them. It returns their errors and fails the test when one ends twice.
func (r *rig) together(transfers []*blockio.Transfer, draw *rand.Rand) []error {
	r.t.Helper()
	ends, failures := make([]atomic.Int32, len(transfers)), make([]error, len(transfers))
	var all sync.WaitGroup
	all.Add(len(transfers))
	for _, i := range draw.Perm(len(transfers)) {
		transfers[i].Done = func(err error) {
			if ends[i].Add(1) == 1 {
				failures[i] = err
				all.Done()
			}
		}
		r.engine.Submit(transfers[i])
	}
	all.Wait()
	r.t.Cleanup(func() { // The engine is closed by then: nothing ends any more.
		for i := range ends {
			if n := ends[i].Load(); n != 1 {
				r.t.Errorf("transfer %d of %d ended %d times", i, len(ends), n)
			}
		}
	})
	return failures
}

func (r *rig) succeed(transfers []*blockio.Transfer, draw *rand.Rand) {
	r.t.Helper()
	if err := errors.Join(r.together(transfers, draw)...); err != nil {
		r.t.Fatal(err)
	}
}

func (s Suite) bytes(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 3))
			r := s.start(t)
			defer r.engine.Close()
			first := r.plan(draw)
			for _, w := range first {
				w.Write = true
				fillBuffers(w, 1)
			}
			r.succeed(first, draw)
			for _, w := range first {
				r.checkBuffers(w, 1)
				r.checkFile(w, 1)
			}
			r.checkGuards(first)

			// Reads of other pieces, half of which are written anew in the same moment.
			second := r.plan(draw)
			for i, m := range second {
				if m.Write = i%2 == 0; m.Write {
					fillBuffers(m, 2)
				}
			}
			r.succeed(second, draw)
			for i, m := range second {
				writing := uint64(2 - i%2)
				r.checkBuffers(m, writing)
				r.checkFile(m, writing)
			}
			r.checkGuards(second)
		})
	}
}

// checkFile reads a transfer's range by the file's own methods, without the engine.
func (r *rig) checkFile(t *blockio.Transfer, writing uint64) {
	r.t.Helper()
	bytes := 0
	for _, b := range t.Buffers {
		bytes += len(b)
	}
	read := &blockio.Transfer{Offset: t.Offset, Buffers: [][]byte{vfs.AlignedBuffer(bytes)}}
	if err := r.file.ReadAt(read.Buffers, read.Offset); err != nil {
		r.t.Fatal(err)
	}
	r.checkBuffers(read, writing)
}

func (s Suite) manyBuffers(t *testing.T) {
	const count = 1500 // more than the 1,024 of one readv
	draw := rand.New(rand.NewPCG(1, 4))
	r := s.start(t)
	defer r.engine.Close()
	transfers := make([]*blockio.Transfer, 2)
	for i := range transfers {
		transfers[i] = &blockio.Transfer{File: r.file, Write: true, Offset: int64(i * count * vfs.Align)}
		for range count {
			transfers[i].Buffers = append(transfers[i].Buffers, r.take(vfs.Align, 1, draw)...)
		}
		fillBuffers(transfers[i], 1)
	}
	r.succeed(transfers, draw)
	transfers[0].Offset, transfers[1].Offset = transfers[1].Offset, transfers[0].Offset
	for _, m := range transfers {
		m.Write = false
	}
	r.succeed(transfers, draw)
	for _, m := range transfers {
		r.checkBuffers(m, 1)
		r.checkFile(m, 1)
	}
	r.checkGuards(transfers)
}

func (s Suite) failures(t *testing.T) {
	const blocks = 64
	draw := rand.New(rand.NewPCG(1, 5))
	r := s.start(t)
	defer r.engine.Close()
	write := &blockio.Transfer{File: r.file, Write: true, Buffers: r.take(blocks*vfs.Align, 3, draw)}
	fillBuffers(write, 1)
	r.succeed([]*blockio.Transfer{write}, draw)

	r.clear()
	var transfers []*blockio.Transfer
	for i := range blocks {
		// Every third read begins at the last block and is longer than the file.
		at, n := i, 1
		if i%3 == 0 {
			at, n = blocks-1, 1+i%4
		}
		transfers = append(transfers, &blockio.Transfer{File: r.file, Offset: int64(at * vfs.Align), Buffers: r.take(n*vfs.Align, n, draw)})
	}
	behind := &blockio.Transfer{File: r.file, Offset: blocks * vfs.Align, Buffers: r.take(vfs.Align, 1, draw)}
	transfers = append(transfers, behind)
	for i, err := range r.together(transfers, draw) {
		m, end := transfers[i], transfers[i].Offset
		for _, b := range m.Buffers {
			end += int64(len(b))
		}
		switch whole := end <= blocks*vfs.Align; {
		case whole && err != nil || !whole && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Errorf("a read from %d to %d of %d bytes: %v", m.Offset, end, blocks*vfs.Align, err)
		case whole:
			r.checkBuffers(m, 1)
		}
	}
	r.checkGuards(transfers)
	s.refused(r, draw)
}

// refused checks what the kernel takes not a byte of.
func (s Suite) refused(r *rig, draw *rand.Rand) {
	r.clear()
	closed := s.File(r.t)
	if err := closed.Close(); err != nil {
		r.t.Fatal(err)
	}
	crooked := r.take(2*vfs.Align, 1, draw)[0][:vfs.Align+100]
	transfers := []*blockio.Transfer{
		{File: closed, Buffers: r.take(vfs.Align, 1, draw)},
		{File: closed, Write: true, Buffers: r.take(vfs.Align, 2, draw)},
		{File: r.file, Write: true, Buffers: [][]byte{crooked}},
	}
	if r.file.WriteAt([][]byte{crooked}, 0) == nil {
		transfers = transfers[:2] // A file system in memory takes any length.
	}
	for i, err := range r.together(transfers, draw) {
		if err == nil {
			r.t.Errorf("transfer %d of a closed file, or of a length that direct I/O does not know, succeeded", i)
		}
	}
}

func (s Suite) submitNeverWaits(t *testing.T) {
	const transfers = 600
	r := s.start(t)
	defer r.engine.Close()
	if err := r.file.WriteAt([][]byte{r.memory[:vfs.Align]}, 0); err != nil {
		t.Fatal(err)
	}
	submitted, ended := make(chan struct{}), make(chan error)
	for i := range transfers {
		r.engine.Submit(&blockio.Transfer{
			File: r.file, Buffers: [][]byte{r.memory[i*vfs.Align:][:vfs.Align]},
			Done: func(err error) {
				<-submitted
				ended <- err
			},
		})
	}
	close(submitted)
	for range transfers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// chain writes and reads block after block, each from the Done of the one before, and calls end after the last.
func (r *rig) chain(first, blocks int, end func()) {
	var step func(i int)
	step = func(i int) {
		if i == 2*blocks {
			end()
			return
		}
		at := (first + i/2) * vfs.Align
		m := &blockio.Transfer{File: r.file, Write: i%2 == 0, Offset: int64(at), Buffers: [][]byte{r.memory[at:][:vfs.Align]}}
		if m.Write {
			fillBuffers(m, 1)
		} else {
			clear(m.Buffers[0])
		}
		m.Done = func(err error) {
			if err != nil {
				r.t.Error(err)
			}
			step(i + 1)
		}
		r.engine.Submit(m)
	}
	step(0)
}

func (s Suite) doneSubmits(t *testing.T) {
	const chains, blocks = 8, 20
	r := s.start(t)
	defer r.engine.Close()
	var all sync.WaitGroup
	all.Add(chains)
	for i := range chains {
		r.chain(i*blocks, blocks, all.Done)
	}
	all.Wait()
	r.checkBuffers(&blockio.Transfer{Buffers: [][]byte{r.memory[:chains*blocks*vfs.Align]}}, 1)
}

func (s Suite) closeWaits(t *testing.T) {
	const chains, blocks = 4, 20
	r := s.start(t)
	var ended atomic.Int32
	for i := range chains {
		r.chain(i*blocks, blocks, func() { ended.Add(1) })
	}
	r.engine.Close()
	if n := ended.Load(); n != chains {
		t.Errorf("%d of %d chains had ended when the engine was closed", n, chains)
	}
	r.checkBuffers(&blockio.Transfer{Buffers: [][]byte{r.memory[:chains*blocks*vfs.Align]}}, 1)
}
