package session

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"orbitkv/internal/wire"
)

// soPeerPIDFD is SO_PEERPIDFD of linux/socket.h (Linux 6.5).
const soPeerPIDFD = 77

// commandBytesMax bounds what is kept of a process's command line.
const commandBytesMax = 256

// peer is the process at the other end of a connection when it connected.
type peer struct {
	pid       int
	uid       uint32
	startTime uint64 // clock ticks since boot; with the pid it names one process
	command   string
	pidfd     int // readable once the process has exited
}

// control runs f with the connection's descriptor.
func control(conn *net.UnixConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func credentials(conn *net.UnixConn) (cred *unix.Ucred, err error) {
	err = control(conn, func(fd int) error {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

func peerPID(conn *net.UnixConn) int {
	cred, err := credentials(conn)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// identifyPeer checks the peer's user and takes a proof of life: a pidfd of exactly the process that connected. The error is what the
// peer is told; nothing is open then.
func identifyPeer(conn *net.UnixConn) (peer, error) {
	cred, err := credentials(conn)
	if err != nil {
		return peer{}, wire.Errorf(wire.StatusNoLiveness, "the kernel does not name the process at the other end: %v", err)
	}
	if own := uint32(os.Geteuid()); cred.Uid != own {
		return peer{}, wire.Errorf(wire.StatusWrongUser, "the Cache Manager runs as user %d and serves that user alone, you are user %d: start the engine and the Manager as one user", own, cred.Uid)
	}
	if cred.Pid <= 0 {
		return peer{}, wire.Errorf(wire.StatusNoLiveness, "your process is not visible to the Cache Manager: let both share a process namespace (--pid, or shareProcessNamespace)")
	}
	p := peer{pid: int(cred.Pid), uid: cred.Uid}
	if p.pidfd, err = openPIDFD(conn, p.pid); err != nil {
		return peer{}, wire.Errorf(wire.StatusNoLiveness, "the kernel gives no proof that process %d lives (%v): Linux 5.3 or later is needed, and a seccomp profile that allows pidfd_open", p.pid, err)
	}
	if p.startTime, err = startTime(p.pid); err != nil || exited(p.pidfd) {
		err = errors.Join(err, unix.Close(p.pidfd))
		return peer{}, wire.Errorf(wire.StatusNoLiveness, "process %d ended while it connected (%v)", p.pid, err)
	}
	p.command = command(p.pid)
	return p, nil
}

// openPIDFD prefers the descriptor that the kernel took when the peer connected.
func openPIDFD(conn *net.UnixConn, pid int) (fd int, err error) {
	err = control(conn, func(socket int) error {
		fd, err = unix.GetsockoptInt(socket, unix.SOL_SOCKET, soPeerPIDFD)
		return err
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		return pidfdByNumber(conn, pid)
	}
	if err != nil {
		return -1, fmt.Errorf("SO_PEERPIDFD: %w", err)
	}
	unix.CloseOnExec(fd)
	return fd, nil
}

// pidfdByNumber is for kernels without SO_PEERPIDFD: it opens the pid and then sees that the connection is still open. The pid
// cannot have gone to another process while the peer that holds it lives.
func pidfdByNumber(conn *net.UnixConn, pid int) (int, error) {
	before, err := startTime(pid)
	if err != nil {
		return -1, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	after, err := startTime(pid)
	if err == nil && after == before && !hungUp(conn) {
		return fd, nil
	}
	return -1, errors.Join(errors.New("the process ended while it connected"), err, unix.Close(fd))
}

// hungUp says whether the other end of the connection is closed.
func hungUp(conn *net.UnixConn) bool {
	gone := true
	err := control(conn, func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		gone = fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		return err
	})
	return gone || err != nil
}

// exited says whether the process of a pidfd has ended.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// startTime reads when a process started, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold blanks; the fields behind it are counted from 3, and 22 is the start time.
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndexByte(string(text), ')')):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// command reads what a process shows as its command line, for status and logs.
func command(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(text) == 0 {
		return "?"
	}
	text = text[:min(len(text), commandBytesMax)]
	return strings.ToValidUTF8(strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " ")), "?")
}
