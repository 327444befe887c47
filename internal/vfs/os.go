package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	folderMode  = 0o700
	fileMode    = 0o600
	vectorsMax  = 1024    // buffers of one system call (IOV_MAX)
	reserveStep = 1 << 30 // bytes of one fallocate, so that one that a signal interrupts keeps what it did
)

// OS is a folder of the machine's own file systems.
type OS struct{ path string }

// NewOS returns a folder, which is made (mode 0700) where it is missing.
func NewOS(path string) (*OS, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := makeFolder(path); err != nil {
		return nil, err
	}
	return &OS{path: path}, nil
}

// makeFolder makes a folder and those above it that are missing, each durable in the one that has it.
func makeFolder(path string) error {
	switch info, err := os.Stat(path); {
	case err == nil && !info.IsDir():
		return fmt.Errorf("%s is no folder: name a folder on the disk, or a path at which one may be made", path)
	case err == nil || !errors.Is(err, os.ErrNotExist):
		return remedied(err)
	}
	above := filepath.Dir(path)
	if err := makeFolder(above); err != nil {
		return err
	}
	if err := os.Mkdir(path, folderMode); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: make the folder yourself, or name one below a folder that you may write to", err)
	}
	return (&OS{path: above}).SyncFolder()
}

// Name is the folder's path.
func (o *OS) Name() string { return o.path }

// Open opens a file of the folder, or makes it. A symbolic link in its place is refused, and so is anything that is no file.
func (o *OS) Open(name string, mode Mode) (File, error) {
	path, err := o.at("open", name)
	if err != nil {
		return nil, err
	}
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOFOLLOW
	if mode == Direct {
		flags |= unix.O_DIRECT
	}
	var descriptor int
	err = again(func() (err error) {
		descriptor, err = unix.Open(path, flags, fileMode)
		return err
	})
	switch {
	case mode == Direct && errors.Is(err, unix.EINVAL):
		return nil, failed("open", path, fmt.Errorf("%w: the file system takes no direct I/O (O_DIRECT)", err))
	case err != nil:
		return nil, failed("open", path, remedied(err))
	}
	f := &osFile{descriptor: descriptor, path: path, direct: mode == Direct}
	stat, err := f.stat()
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFREG {
		err = failed("open", path, errors.New("no regular file: move it away"))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Exists says whether the folder has a file.
func (o *OS) Exists(name string) (bool, error) {
	path, err := o.at("stat", name)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, remedied(err)
}

// Rename gives a file another name.
func (o *OS) Rename(from, to string) error {
	source, err := o.at("rename", from)
	if err != nil {
		return err
	}
	target, err := o.at("rename", to)
	if err != nil {
		return err
	}
	return os.Rename(source, target)
}

// Remove removes a file.
func (o *OS) Remove(name string) error {
	path, err := o.at("unlink", name)
	if err != nil {
		return err
	}
	err = again(func() error { return unix.Unlink(path) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return failed("unlink", path, err)
	}
	return nil
}

// SyncFolder makes the names of the folder durable.
func (o *OS) SyncFolder() error {
	folder, err := os.Open(o.path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// FreeBytes is what the file system can still give to this user.
func (o *OS) FreeBytes() (uint64, error) {
	var s unix.Statfs_t
	if err := again(func() error { return unix.Statfs(o.path, &s) }); err != nil {
		return 0, failed("statfs", o.path, err)
	}
	return available(&s), nil
}

// at is the path of a file. A name with a folder in it is a programmer's error, which must not reach another folder.
func (o *OS) at(operation, name string) (string, error) {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return "", failed(operation, o.path, fmt.Errorf("%q is no name of a file in this folder", name))
	}
	return filepath.Join(o.path, name), nil
}

// osFile is an open file. Its descriptor is -1 once it is closed.
type osFile struct {
	descriptor int
	path       string
	direct     bool
}

// ReadAt fills the buffers.
func (f *osFile) ReadAt(buffers [][]byte, offset int64) error {
	return f.whole("read", unix.Preadv, io.ErrUnexpectedEOF, buffers, offset)
}

// WriteAt writes the buffers.
func (f *osFile) WriteAt(buffers [][]byte, offset int64) error {
	return f.whole("write", unix.Pwritev, io.ErrShortWrite, buffers, offset)
}

// whole repeats a call until all buffers are done. The kernel may stop early: at a signal, at its own limit of bytes or of buffers, before a bad
// block, at the end of the file or of the disk. What stopped it shows in the next call.
func (f *osFile) whole(operation string, call func(int, [][]byte, int64) (int, error), short error, buffers [][]byte, offset int64) error {
	left, at := trim(buffers, 0), offset
	for len(left) > 0 {
		n, err := call(f.descriptor, left[:min(len(left), vectorsMax)], at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0, f.direct && at > offset && at%Align != 0 && errors.Is(err, unix.EINVAL):
			// The second case is direct I/O that stopped inside a block, since the file ends there, and may not go on.
			err = short
		}
		if err != nil {
			return failed(fmt.Sprintf("%s %d bytes at %d of", operation, bytesOf(left), at), f.path, err)
		}
		left, at = trim(left, n), at+int64(n)
	}
	return nil
}

// Sync makes written bytes durable.
func (f *osFile) Sync() error {
	return f.do("fdatasync", func() error { return unix.Fdatasync(f.descriptor) })
}

// Allocate gives the file a size and reserves its bytes. One that the disk has no room for is refused before it takes any.
func (f *osFile) Allocate(bytes int64) error {
	stat, err := f.stat()
	if err != nil {
		return err
	}
	var s unix.Statfs_t
	if err := f.do("fstatfs", func() error { return unix.Fstatfs(f.descriptor, &s) }); err != nil {
		return err
	}
	if missing, free := bytes-occupied(stat), available(&s); missing > 0 && uint64(missing) > free {
		return failed("allocate", f.path, fmt.Errorf("%w: %s more are needed, %s are free", unix.ENOSPC, sized(uint64(missing)), sized(free)))
	}
	for at := int64(0); at < bytes; at += reserveStep {
		step := min(reserveStep, bytes-at)
		if err := f.do("fallocate", func() error { return unix.Fallocate(f.descriptor, 0, at, step) }); err != nil {
			return errors.Join(err, f.Truncate(stat.Size))
		}
	}
	if stat.Size > bytes {
		return f.Truncate(bytes)
	}
	return nil
}

// Truncate cuts or extends the file.
func (f *osFile) Truncate(bytes int64) error {
	return f.do("ftruncate", func() error { return unix.Ftruncate(f.descriptor, bytes) })
}

// Size is the file's size in bytes.
func (f *osFile) Size() (int64, error) {
	stat, err := f.stat()
	return stat.Size, err
}

// AllocatedBytes is what the file occupies on the device.
func (f *osFile) AllocatedBytes() (int64, error) {
	stat, err := f.stat()
	return occupied(stat), err
}

// Named says whether the file still has a name.
func (f *osFile) Named() (bool, error) {
	stat, err := f.stat()
	return stat.Nlink > 0, err
}

// Lock takes the file's lock. It belongs to the open descriptor, so that the kernel frees it when the process has ended.
func (f *osFile) Lock() error {
	err := f.do("flock", func() error { return unix.Flock(f.descriptor, unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return failed("flock", f.path, ErrLocked)
	}
	return err
}

// Descriptor is the file's descriptor.
func (f *osFile) Descriptor() (int, bool) { return f.descriptor, f.descriptor >= 0 }

// Close closes the descriptor; it comes after all I/O.
func (f *osFile) Close() error {
	if f.descriptor < 0 {
		return failed("close", f.path, os.ErrClosed)
	}
	descriptor := f.descriptor
	f.descriptor = -1
	if err := unix.Close(descriptor); err != nil {
		return failed("close", f.path, err)
	}
	return nil
}

func (f *osFile) stat() (s unix.Stat_t, err error) {
	err = f.do("fstat", func() error { return unix.Fstat(f.descriptor, &s) })
	return s, err
}

func (f *osFile) do(operation string, call func() error) error {
	if err := again(call); err != nil {
		return failed(operation, f.path, err)
	}
	return nil
}

// again makes a call until no signal interrupts it.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func failed(operation, path string, err error) error {
	return &os.PathError{Op: operation, Path: path, Err: err}
}

// remedied says what to do about a file that this user may not use.
func remedied(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: chown the folder and its files to the Manager's user (uid %d) and give it mode 0700, or name another folder", err, os.Geteuid())
	}
	return err
}

// sized writes bytes for people.
func sized(bytes uint64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.2f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
}

// occupied counts the kernel's blocks, which are of 512 bytes on every file system.
func occupied(s unix.Stat_t) int64 { return s.Blocks * 512 }

// available is what a user without privileges may still take: a tier must not eat the reserve of the machine's owner.
func available(s *unix.Statfs_t) uint64 { return s.Bavail * uint64(s.Frsize) }
