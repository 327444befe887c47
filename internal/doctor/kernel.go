package doctor

import (
	"errors"
	"syscall"
)

// Probe tries what the kernel offers. Each function returns nil when the feature works, else the reason, with the errno in its chain.
type Probe struct {
	Release       func() string      // release of the kernel
	MemfdSeals    func() error       // an anonymous file that can be sealed against shrinking and growing
	PidfdOpen     func() error       // a descriptor that becomes readable when a process exits
	PeerPidfd     func() error       // such a descriptor for the peer of a Unix socket, without a race
	PopulateWrite func() error       // populating a mapping by madvise
	IOUring       func() error       // a ring for asynchronous reads and writes
	Dial          func(string) error // connects to a Unix socket and closes it again

	Folder   func(path string) (Folder, error) // what is known of a folder that exists
	DirectIO func(path string) error           // writes and reads an aligned block around the page cache, in a folder
}

// kernelLines say what the kernel offers. Only what a Manager cannot do without is bad.
func kernelLines(o Options) []Line {
	p := o.Probe
	lines := []Line{good("kernel", "Linux %s", p.Release())}
	required := []struct {
		name, fix string
		try       func() error
	}{
		{"sealed memfd", "Linux 3.17 or newer, and no filter on memfd_create: the pool cannot be made without it", p.MemfdSeals},
		{"pidfd_open", "Linux 5.3 or newer, and no filter on pidfd_open: the exit of an engine cannot be proved without it", p.PidfdOpen},
	}
	for _, r := range required {
		if err := r.try(); err != nil {
			lines = append(lines, bad(r.name, r.fix, "%s", reason(err)))
			continue
		}
		lines = append(lines, good(r.name, "works"))
	}
	lines = append(lines, populateLine(p.PopulateWrite()))
	if err := p.PeerPidfd(); err != nil {
		lines = append(lines, note("SO_PEERPIDFD", "Linux 6.5 or newer; until then a peer is proved by pidfd_open and its start time", "%s", reason(err)))
	} else {
		lines = append(lines, good("SO_PEERPIDFD", "works"))
	}
	return append(lines, ringLine(p.IOUring(), o.SSD))
}

// populateLine tells a kernel that does not know the call, where the pool is populated otherwise, from one that forbids it.
func populateLine(err error) Line {
	const name = "populate by madvise"
	switch {
	case err == nil:
		return good(name, "works")
	case errors.Is(err, syscall.EINVAL):
		return note(name, "Linux 5.14 or newer (MADV_POPULATE_WRITE); until then the pool is populated by fallocate", "%s", reason(err))
	}
	return bad(name, "no filter on madvise: the pool cannot be populated without MADV_POPULATE_WRITE", "%s", reason(err))
}

// ringLine explains the errno of an io_uring probe: each has a cause of its own.
func ringLine(err error, ssd SSD) Line {
	const name = "io_uring"
	switch {
	case err == nil:
		return good(name, "works")
	case ssd.NoRing:
		return good(name, "not asked for, and it would not work: %s", reason(err))
	}
	fix := "no harm: SSD reads and writes use a pool of threads"
	if ssd.RingOnly {
		fix = "name --ssd-backend auto"
	}
	switch {
	case errors.Is(err, syscall.EPERM):
		fix += "; a container's filter or sysctl kernel.io_uring_disabled forbids it"
	case errors.Is(err, syscall.ENOSYS):
		fix += "; the kernel was built without it or a filter hides it"
	case errors.Is(err, syscall.ENOMEM):
		fix += "; raise the limit of locked memory"
	}
	if ssd.RingOnly {
		return bad(name, fix, "%s", reason(err))
	}
	return note(name, fix, "%s", reason(err))
}

// reason names an errno by its symbol too, since manuals and reports are searched for it.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		if name := errnoName(errno); name != "" {
			return err.Error() + " (" + name + ")"
		}
	}
	return err.Error()
}
