package blockio

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

const block = vfs.Align

// newTestRing makes a ring, or skips where the kernel lets nobody have one. It is closed at the end of the test.
func newTestRing(t testing.TB, cfg RingConfig) *Ring {
	t.Helper()
	r, err := NewRing(cfg)
	checkRing(t, err)
	t.Cleanup(r.Close)
	return r
}

func checkRing(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("needs io_uring, which this machine forbids: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newTamperedRing makes a ring whose calls of the kernel go through a function of the test.
func newTamperedRing(t *testing.T, cfg RingConfig, tamper func(*kernelQueue)) *Ring {
	t.Helper()
	r, started := &Ring{ended: make(chan struct{})}, make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(r.ended)
		l, err := r.begin(cfg)
		if err == nil {
			tamper(l.queue)
		}
		started <- err
		if err == nil {
			l.run()
		}
	}()
	checkRing(t, <-started)
	t.Cleanup(r.Close)
	return r
}

// openDirect makes a file of so many blocks, each filled with bytes of its own.
func openDirect(t testing.TB, blocks int) vfs.File {
	t.Helper()
	fs, err := vfs.NewOS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open("payload", vfs.Direct)
	if errors.Is(err, unix.EINVAL) {
		t.Skipf("needs a temporary folder that takes direct I/O: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	content := vfs.AlignedBuffer(blocks * block)
	fillBlocks(content, 0)
	if err := f.WriteAt([][]byte{content}, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

// contentAt is the byte of a file at an offset: no two blocks that a test uses are alike, nor two places of one.
func contentAt(offset int64) byte { return byte(offset) ^ byte(offset>>8) ^ byte(offset/block*37) }

func fillBlocks(memory []byte, offset int64) {
	for i := range memory {
		memory[i] = contentAt(offset + int64(i))
	}
}

// checkBlocks wants what a file has from an offset on.
func checkBlocks(t *testing.T, memory []byte, offset int64) {
	t.Helper()
	for i, b := range memory {
		if want := contentAt(offset + int64(i)); b != want {
			t.Fatalf("byte %d of what was read at %d is %d, not %d", i, offset, b, want)
		}
	}
}

// submit starts a transfer and returns where its end is told.
func submit(e Engine, t Transfer) <-chan error {
	done := make(chan error, 1)
	t.Done = func(err error) { done <- err }
	e.Submit(&t)
	return done
}

// pipe is a file whose operations end when the test wants: reads when it writes, writes when it reads.
type pipe struct {
	vfs.File
	descriptor, other int
}

func (p *pipe) Descriptor() (int, bool) { return p.descriptor, true }

// newPipe opens a pipe; each read takes at most one packet of a block. reading says which end is the file.
func newPipe(t *testing.T, reading bool) *pipe {
	t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_DIRECT); err != nil {
		t.Fatal(err)
	}
	p := &pipe{descriptor: ends[0], other: ends[1]}
	if !reading {
		p.descriptor, p.other = p.other, p.descriptor
	}
	t.Cleanup(func() {
		p.hangUp(t)
		if err := unix.Close(p.descriptor); err != nil {
			t.Error(err)
		}
	})
	return p
}

// hangUp closes the test's end.
func (p *pipe) hangUp(t *testing.T) {
	t.Helper()
	if p.other < 0 {
		return
	}
	if err := unix.Close(p.other); err != nil {
		t.Error(err)
	}
	p.other = -1
}

// feed lets one read of a block end.
func (p *pipe) feed(t *testing.T, packet []byte) {
	t.Helper()
	if n, err := unix.Write(p.other, packet); err != nil || n != len(packet) {
		t.Fatalf("a pipe took %d of %d bytes: %v", n, len(packet), err)
	}
}
