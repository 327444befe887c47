package micro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

// Bounds of the disk's file and of what is in flight on it.
const (
	diskAlign     = 4 << 10  // bytes; of every offset, length and buffer
	blockBytesMax = 64 << 20 // of one read or write
	depthMax      = 256
	flightMax     = 4 << 30 // bytes of all buffers of a row
	layBlock      = 1 << 20 // of the writes that lay the file
	layDepth      = 8
	probes        = 16 // places that are looked for in the page cache
)

// disk is the file that is read and written. It has no name from the moment that it is made: however this process ends, nothing is left.
type disk struct {
	direct   int // descriptor whose reads and writes go around the page cache
	buffered int // descriptor of the same file that sees the page cache
	bytes    uint64
	storage  record.Storage
}

// openDisk makes the file in a folder that checkFolder took and fills it with bytes that no device can shrink. The error says what of the folder,
// its file system or its disk cannot be measured.
func openDisk(ctx context.Context, folder string, bytes uint64) (*disk, error) {
	storage, err := launch.StorageOf("ssd", folder)
	if err != nil {
		return nil, err
	}
	d := &disk{direct: -1, buffered: -1, bytes: bytes, storage: storage}
	err = d.open(folder)
	if err == nil {
		err = d.try()
	}
	if err == nil {
		err = d.lay(ctx)
	}
	if err == nil {
		err = d.prove(d.bytes)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// checkFolder says why no file of so many bytes fits there.
func checkFolder(folder string, bytes uint64) error {
	info, err := os.Stat(folder)
	if err != nil {
		return fmt.Errorf("the folder to measure: %w: name one on the disk", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder: name the folder on the disk in which a file may be made", folder)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return fmt.Errorf("%s: statfs: %w", folder, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < bytes {
		return fmt.Errorf("%s has %d bytes free and the file would take %d: give a smaller --size, fewer --recovery-pages or another folder", folder, free, bytes)
	}
	return nil
}

// open makes the file, takes its name away and opens it again around the page cache. It does not ask for O_DIRECT when it makes the file, since
// a file system that refuses may have made it by then.
func (d *disk) open(folder string) error {
	file, err := os.CreateTemp(folder, "orbitkv-bench-")
	if err != nil {
		return fmt.Errorf("no file can be made in %s: %w: name a folder that you may write to", folder, err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return errors.Join(err, file.Close())
	}
	d.buffered, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	d.direct, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", d.buffered), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		d.direct = -1
		return d.refuse(fmt.Sprintf("O_DIRECT is refused (%v)", err))
	}
	flags, err := openFlags(d.direct)
	if err != nil {
		return err
	}
	if flags&unix.O_DIRECT == 0 {
		return d.refuse(fmt.Sprintf("O_DIRECT was asked for and /proc/self/fdinfo shows flags %#o without it", flags))
	}
	d.storage.Direct = fmt.Sprintf("held (flags %#o), and what was read is not in the page cache", flags)
	return nil
}

// try writes one block and proves it: a folder in memory is refused before the whole file lies there.
func (d *disk) try() error {
	b, err := newBuffers(1, layBlock)
	if err != nil {
		return err
	}
	err = d.write(b.of(0), 0)
	if err == nil {
		err = os.NewSyscallError("fsync", unix.Fsync(d.direct))
	}
	if err == nil {
		err = d.prove(layBlock)
	}
	return errors.Join(err, b.free())
}

// refuse is the error of a folder whose figures would be those of memory.
func (d *disk) refuse(reason string) error {
	return &noDirectError{Folder: d.storage.Path, Filesystem: d.storage.Filesystem, Reason: reason}
}

// noDirectError says that reads and writes in a folder do not go around the page cache, so that its disk cannot be measured.
type noDirectError struct{ Folder, Filesystem, Reason string }

// Error says what happened and what to do.
func (e *noDirectError) Error() string {
	return fmt.Sprintf("%s on %s: %s: the figures would be those of memory, name a folder on a file system such as ext4 or xfs", e.Folder, e.Filesystem, e.Reason)
}

// openFlags reads the flags of an open file back from the kernel.
func openFlags(descriptor int) (flags int64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc/self/fdinfo", strconv.Itoa(descriptor)))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "flags:"); found {
			return strconv.ParseInt(strings.TrimSpace(value), 8, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/fdinfo/%d has no flags", descriptor)
}

// lay writes every block of the file once: a block that was only reserved is read without the disk.
func (d *disk) lay(ctx context.Context) error {
	if err := unix.Fallocate(d.buffered, 0, 0, int64(d.bytes)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%s: room for %d bytes: %w: give a smaller --size or another folder", d.storage.Path, d.bytes, err)
	}
	blocks := int(d.bytes / layBlock)
	b, err := newBuffers(layDepth, layBlock)
	if err != nil {
		return err
	}
	for first := 0; first < blocks && err == nil; first += layDepth {
		round := min(layDepth, blocks-first)
		_, err = together(ctx, load{clients: round, once: func(_ context.Context, i int) (time.Duration, error) {
			return 0, d.write(b.of(i), int64(first+i)*layBlock)
		}})
	}
	if err == nil {
		err = os.NewSyscallError("fsync", unix.Fsync(d.direct))
	}
	return errors.Join(err, b.free())
}

// prove reads some blocks of the first so many bytes and looks whether the page cache has one of them: a file system may take O_DIRECT and go through memory all the same.
func (d *disk) prove(bytes uint64) (err error) {
	b, err := newBuffers(1, diskAlign)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.free()) }()
	if err := unix.Fadvise(d.buffered, 0, 0, unix.FADV_DONTNEED); err != nil {
		return os.NewSyscallError("fadvise", err)
	}
	view, err := unix.Mmap(d.buffered, 0, int(bytes), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(view)) }()
	page := uint64(os.Getpagesize())
	for i := range uint64(probes) {
		at := i * (bytes / probes) / page * page
		if err := d.read(b.of(0), int64(at)); err != nil {
			return err
		}
		cached, err := resident(view[at:][:diskAlign])
		if err != nil {
			return err
		}
		if cached {
			return d.refuse("O_DIRECT was taken, but what was read lies in the page cache")
		}
	}
	return nil
}

// read fills buf from an offset.
func (d *disk) read(buf []byte, at int64) error { return d.whole("pread", unix.Pread, buf, at) }

// write puts buf at an offset.
func (d *disk) write(buf []byte, at int64) error { return d.whole("pwrite", unix.Pwrite, buf, at) }

func (d *disk) whole(name string, call func(int, []byte, int64) (int, error), buf []byte, at int64) error {
	for {
		n, err := call(d.direct, buf, at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n < len(buf):
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("%s: %s of %d bytes at %d: %w", d.storage.Path, name, len(buf), at, err)
		}
		return nil
	}
}

func (d *disk) close() (err error) {
	for _, descriptor := range []int{d.direct, d.buffered} {
		if descriptor >= 0 {
			err = errors.Join(err, unix.Close(descriptor))
		}
	}
	return err
}

// buffers are aligned memory for as many reads or writes at a time.
type buffers struct {
	memory []byte
	bytes  int
}

// newBuffers makes them full of random bytes.
func newBuffers(count, bytes int) (*buffers, error) {
	memory, err := plainMemory(uint64(count) * uint64(bytes))
	if err != nil {
		return nil, err
	}
	source := rand.NewChaCha8([32]byte{1})
	if _, err := source.Read(memory); err != nil {
		return nil, errors.Join(err, unix.Munmap(memory))
	}
	return &buffers{memory: memory, bytes: bytes}, nil
}

func (b *buffers) of(i int) []byte { return b.memory[i*b.bytes:][:b.bytes] }

func (b *buffers) free() error { return unix.Munmap(b.memory) }
