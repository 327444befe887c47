package session

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketPathMax is the kernel's limit on a socket's path, in bytes.
const socketPathMax = 107

// How long a start waits for another one that uses the folder, and how often it looks.
const (
	lockWait = 5 * time.Second
	lockLook = 10 * time.Millisecond
)

// socketFile is a bound socket and which file it is, so that only that file is ever removed.
type socketFile struct {
	listener *net.UnixListener
	path     string
	device   uint64
	inode    uint64
}

// listen binds a socket with mode 0600. A live Manager's socket and whatever is no socket are left alone; a dead one is replaced.
func listen(path string) (*socketFile, error) {
	if len(path) > socketPathMax {
		return nil, fmt.Errorf("socket path %q has %d bytes, the kernel takes %d: name a shorter one with --socket", path, len(path), socketPathMax)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the socket cannot be made: %w: name another one with --socket", err)
	}
	// The lock on the folder keeps a second Manager from removing a socket that the first one binds at this moment. It leaves no file.
	folder, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of the socket cannot be read: %w: run as the user that owns it, or name another path with --socket", err)
	}
	s, err := listenLocked(path, folder)
	return s, errors.Join(err, folder.Close())
}

func listenLocked(path string, folder *os.File) (*socketFile, error) {
	if err := lock(folder, lockWait); err != nil {
		return nil, err
	}
	if err := clearDead(path); err != nil {
		return nil, err
	}
	old := unix.Umask(0o177)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w: name another one with --socket", path, err)
	}
	listener.SetUnlinkOnClose(false)
	s := &socketFile{listener: listener, path: path}
	if s.device, s.inode, err = identify(path); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// lock takes the lock of a folder. Another Manager holds it for the moment of its own start; who holds it longer is no Manager.
func lock(folder *os.File, wait time.Duration) error {
	for end := time.Now().Add(wait); ; time.Sleep(lockLook) {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			if err != nil {
				err = fmt.Errorf("locking the folder %s: %w: end the program that holds its lock (`lslocks` names it), or name another folder with --socket", folder.Name(), err)
			}
			return err
		}
	}
}

// clearDead removes a socket that nobody listens on, and refuses everything else that is in the way.
func clearDead(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is in the way and no socket, so it is left alone: move it, or name another path with --socket", path)
	}
	probe, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	switch {
	case err == nil:
		pid := peerPID(probe)
		return errors.Join(fmt.Errorf("a Cache Manager (pid %d) listens on %s: `orbitkv status` shows it; end it, or name another path with --socket", pid, path), probe.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("a dead socket is in the way: %w", err)
		}
		return nil
	}
	return fmt.Errorf("socket %s does not answer (%w), so it is left alone: end its owner, or name another path with --socket", path, err)
}

func identify(path string) (device, inode uint64, err error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return 0, 0, fmt.Errorf("socket %s: %w", path, err)
	}
	return stat.Dev, stat.Ino, nil
}

// check returns nil while clients that go by the path reach this listener.
func (s *socketFile) check() error {
	device, inode, err := identify(s.path)
	if err == nil && (device != s.device || inode != s.inode) {
		err = fmt.Errorf("socket %s: another file has taken its place", s.path)
	}
	if err != nil {
		return fmt.Errorf("no engine can attach any more: %w: restart the Manager, and keep others from cleaning the folder", err)
	}
	return nil
}

// close removes the file if it is still the one that was bound, and stops listening. In this order: the open listener keeps the inode
// from being given to the socket of the next Manager, which would then be taken for this one.
func (s *socketFile) close() error {
	var err error
	if s.check() == nil {
		err = os.Remove(s.path)
	}
	return errors.Join(err, s.listener.Close())
}
