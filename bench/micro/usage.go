package micro

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is what all threads of this process have used.
func processorTime() (time.Duration, error) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0, os.NewSyscallError("getrusage", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// pageCache is the bytes of the machine's page cache, or of what /proc/meminfo shows of it here.
func pageCache() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, err := fmt.Sscanf(line, "Cached: %d kB", &kib); n == 1 && err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo tells nothing of the page cache")
}
