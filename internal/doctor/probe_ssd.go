package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Folder is what the kernel tells of a folder.
type Folder struct {
	Path      string // without symbolic links
	FreeBytes uint64 // that this user may take
	InUse     bool   // a process has the volume in it
}

func probeFolder(path string) (Folder, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Folder{}, err
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(resolved, &stat); err != nil {
		return Folder{}, fmt.Errorf("statfs: %w", err)
	}
	return Folder{Path: resolved, FreeBytes: stat.Bavail * uint64(stat.Bsize), InUse: inUse(resolved)}, nil
}

// inUse says whether somebody holds the lock of a folder's payload. It asks for a shared one, and gives it back at once.
func inUse(folder string) bool {
	fd, err := unix.Open(filepath.Join(folder, payloadFile), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// directBytes is written and read by probeDirectIO: two blocks of the largest size that disks ask for.
const directBytes = 8 << 10

// probeDirectIO writes an aligned block around the page cache into a file without a name, and reads it back.
func probeDirectIO(path string) (err error) {
	file, err := openUnnamed(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	memory, err := unix.Mmap(-1, 0, 2*directBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(memory)) }()
	written, read := memory[:directBytes], memory[directBytes:]
	for i := range written {
		written[i] = byte(i*7 + i>>8)
	}
	if _, err := file.WriteAt(written, 0); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	if _, err := file.ReadAt(read, 0); err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	if !bytes.Equal(written, read) {
		return errors.New("other bytes were read than had been written")
	}
	return nil
}

// openUnnamed opens a file for direct I/O that is gone when it is closed. A file system that has no files without a name gets one whose name is
// removed at once.
func openUnnamed(path string) (*os.File, error) {
	const flags = unix.O_RDWR | unix.O_DIRECT | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags|unix.O_TMPFILE, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), path), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("open: %w", err)
	}
	name := filepath.Join(path, fmt.Sprintf(".orbitkv-doctor-%d", os.Getpid()))
	fd, err = unix.Open(name, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if err := os.Remove(name); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
