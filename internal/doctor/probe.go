package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// probeBytes is the size of the anonymous file that probes make.
const probeBytes = 64 << 10

// dialTimeout bounds the wait for a Manager that is stopped while its queue of connections is full.
const dialTimeout = 500 * time.Millisecond

// RealProbe tries this machine's kernel.
func RealProbe() *Probe {
	return &Probe{
		Release: kernelRelease, MemfdSeals: probeMemfdSeals, PidfdOpen: probePidfdOpen, PeerPidfd: probePeerPidfd,
		PopulateWrite: probePopulateWrite, IOUring: probeIOUring, Dial: probeDial, Folder: probeFolder, DirectIO: probeDirectIO,
	}
}

func errnoName(errno syscall.Errno) string { return unix.ErrnoName(errno) }

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// withMemfd gives use a sealable anonymous file of probeBytes.
func withMemfd(use func(fd int) error) error {
	fd, err := unix.MemfdCreate("orbitkv-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	err = unix.Ftruncate(fd, probeBytes)
	if err == nil {
		err = use(fd)
	}
	return errors.Join(err, unix.Close(fd))
}

func probeMemfdSeals() error {
	return withMemfd(func(fd int) error {
		const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return fmt.Errorf("F_ADD_SEALS: %w", err)
		}
		return nil
	})
}

func probePopulateWrite() error {
	return withMemfd(func(fd int) error {
		mapping, err := unix.Mmap(fd, 0, probeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("mmap: %w", err)
		}
		err = unix.Madvise(mapping, unix.MADV_POPULATE_WRITE)
		if err != nil {
			err = fmt.Errorf("madvise: %w", err)
		}
		return errors.Join(err, unix.Munmap(mapping))
	})
}

func probePidfdOpen() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	return unix.Close(fd)
}

func probePeerPidfd() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	pidfd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		err = fmt.Errorf("getsockopt: %w", err)
	} else {
		err = unix.Close(pidfd)
	}
	return errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]))
}

func probeDial(path string) error {
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}
