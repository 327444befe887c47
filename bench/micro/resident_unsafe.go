package micro

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident says whether any page of a mapping of a file is in the page cache. It brings none there. Go's libraries have no mincore.
func resident(mapping []byte) (bool, error) {
	pages := make([]byte, (len(mapping)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mapping))), uintptr(len(mapping)), uintptr(unsafe.Pointer(unsafe.SliceData(pages)))); failed != 0 {
		return false, os.NewSyscallError("mincore", failed)
	}
	for _, page := range pages {
		if page&1 != 0 { // the other bits say nothing
			return true, nil
		}
	}
	return false, nil
}
