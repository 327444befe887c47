package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mpolPreferred places on the node while it has memory: from linux/mempolicy.h. A strict binding would kill an engine
// that touches first when the node is full.
const mpolPreferred = 1

const maskBits = 1024 // nodes that the kernel can be built for

// bindToNode sets the placement of a mapped file's pages.
func bindToNode(view []byte, node int) error {
	var mask [maskBits / 64]uint64
	mask[node/64] |= 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(view))), uintptr(len(view)),
		mpolPreferred, uintptr(unsafe.Pointer(&mask)), maskBits+1, 0) // the kernel reads one bit fewer than it is told
	if errno != 0 {
		return errno
	}
	return nil
}
