package doctor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringParams is struct io_uring_params of the kernel: 120 bytes, all zero for a ring without options.
type ringParams [120]byte

// probeIOUring sets up a ring of one entry and closes it.
func probeIOUring() error {
	var params ringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return fmt.Errorf("io_uring_setup: %w", errno)
	}
	return unix.Close(int(fd))
}
