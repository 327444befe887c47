package blockio

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbid puts a seccomp filter over the calling thread and all processes that it starts, which answers one system call with an errno, as the
// filters of container runtimes do.
func forbid(call uint32, errno unix.Errno) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call is the first word
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	var pin runtime.Pinner
	pin.Pin(&filter)
	pin.Pin(&program[0])
	defer pin.Unpin()
	return errors.Join(
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0),
	)
}
