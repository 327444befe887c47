package blockio

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

func TestChoose(t *testing.T) {
	newTestRing(t, RingConfig{Depth: 1})
	const blocks = 4
	for _, c := range []struct {
		want   string
		memory [][]byte
		name   string
		reason string
	}{
		{WantAuto, [][]byte{mapMemory(t, block)}, WantRing, "uring: it wrote and read back; memory is registered as it is touched"},
		{WantAuto, nil, WantRing, "uring: it wrote and read back; memory is not registered, which costs processor time: no memory was named"},
		{WantRing, nil, WantRing, "uring: it wrote"},
		{WantPool, nil, WantPool, "pool: it was asked for"},
	} {
		f := openDirect(t, blocks)
		engine, reason, err := Choose(Config{Want: c.want, File: f, Depth: 4, Memory: c.memory})
		if err != nil || engine.Name() != c.name || !strings.HasPrefix(reason, c.reason) {
			t.Fatalf("%s: %v, %q, %v", c.want, engine, reason, err)
		}
		rest := vfs.AlignedBuffer(blocks*block - ProbeBytes)
		if err := <-submit(engine, Transfer{File: f, Offset: ProbeBytes, Buffers: [][]byte{rest}}); err != nil {
			t.Error(err)
		}
		checkBlocks(t, rest, ProbeBytes) // the probe wrote no further
		useEngine(t, engine, f)
	}
}

func TestChooseRefuses(t *testing.T) {
	open := descriptors(t)
	for _, c := range []struct {
		cfg  Config
		text string
	}{
		{Config{Want: "cufile", Depth: 1}, `there is no I/O engine "cufile": ask for auto, uring or pool`},
		{Config{Want: "", Depth: 1}, `there is no I/O engine ""`},
		{Config{Want: WantPool, Depth: 0}, "0 transfers at a time are not possible"},
		{Config{Want: WantAuto, Depth: RingDepthMax + 1}, "4097 transfers at a time are not possible: 1 to 4096 are"},
		{Config{Want: WantRing, Depth: 1, File: failing{}}, "io_uring was asked for and cannot be used: the file has no descriptor"},
		{Config{Want: WantAuto, Depth: 1, File: failing{write: unix.EIO}}, "input/output error (EIO): see the kernel's log"},
		{Config{Want: WantPool, Depth: 1, File: failing{write: unix.EINVAL}}, "(EINVAL): the file system takes no direct I/O in blocks of 4096 bytes"},
		{Config{Want: WantPool, Depth: 1, File: failing{read: unix.EINVAL}}, "(EINVAL): the file system takes no direct I/O"},
		{Config{Want: WantPool, Depth: 1, File: failing{write: unix.ENOSPC}}, "(ENOSPC): free space in the file system, or lower --ssd-cache-capacity"},
		{Config{Want: WantPool, Depth: 1, File: failing{write: unix.EROFS}}, "(EROFS): the file system is mounted read-only"},
		{Config{Want: WantPool, Depth: 1, File: failing{write: errors.New("no errno")}}, "no errno"},
		{Config{Want: WantPool, Depth: 1, File: failing{}}, "8192 bytes were written and others read back"},
	} {
		engine, reason, err := Choose(c.cfg)
		if engine != nil || err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: Choose answered %v, %q, %v", c.cfg, engine, reason, err)
		}
	}
	if n := descriptors(t); n != open {
		t.Errorf("%d descriptors are open, %d were", n, open)
	}
}

// TestChooseFallsBackWithoutADescriptor: a file whose I/O must come through it, as package vfs/faulty makes them.
func TestChooseFallsBackWithoutADescriptor(t *testing.T) {
	f := withoutDescriptor{openDirect(t, 4)}
	engine, reason, err := Choose(Config{Want: WantAuto, File: f, Depth: 4})
	if err != nil || engine.Name() != WantPool || !strings.Contains(reason, "pool: io_uring cannot be used: the file has no descriptor") {
		t.Fatalf("Choose answered %v, %q, %v", engine, reason, err)
	}
	useEngine(t, engine, f)
}

// TestChooseFallsBackAfterTheProbe: a ring can be made, and the file cannot be used by it.
func TestChooseFallsBackAfterTheProbe(t *testing.T) {
	newTestRing(t, RingConfig{Depth: 1})
	f := openDirect(t, 4)
	p := newPipe(t, true) // the end that cannot be written to
	open := descriptors(t)
	engine, reason, err := Choose(Config{Want: WantAuto, File: elsewhere{f, p.descriptor}, Depth: 4})
	if err != nil || engine.Name() != WantPool || !strings.Contains(reason, "io_uring: write 8192 bytes at 0: bad file descriptor (EBADF)") {
		t.Fatalf("Choose answered %v, %q, %v", engine, reason, err)
	}
	useEngine(t, engine, f)
	if n := descriptors(t); n != open {
		t.Errorf("%d descriptors are open, %d were", n, open)
	}
}

// failing is a file that does nothing but answer.
type failing struct {
	vfs.File
	write, read error
}

func (f failing) WriteAt([][]byte, int64) error { return f.write }
func (f failing) ReadAt([][]byte, int64) error  { return f.read }
func (f failing) Descriptor() (int, bool)       { return -1, false }

type elsewhere struct {
	vfs.File
	descriptor int
}

func (f elsewhere) Descriptor() (int, bool) { return f.descriptor, true }
