package faulty

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// stallPoll is how often a stalled read looks whether it may go on.
const stallPoll = 10 * time.Millisecond

// folder is a folder with faults.
type folder struct {
	vfs.FS
	faults []*fault
}

// fault is a rule and what it has counted, over all files of the folder that it is for.
type fault struct {
	rule
	matched atomic.Uint64 // reads or writes, bytes for write-enospc-after
	mutex   sync.Mutex
	free    time.Time // when a disk of the given rate has done all that it was given
}

// Wrap puts rules around a folder. Without rules it is the folder itself.
func Wrap(fs vfs.FS, rules Rules) vfs.FS {
	if len(rules.rules) == 0 {
		return fs
	}
	f := &folder{FS: fs}
	for _, r := range rules.rules {
		f.faults = append(f.faults, &fault{rule: r})
	}
	return f
}

// Open opens a file with the faults that are for its name.
func (f *folder) Open(name string, mode vfs.Mode) (vfs.File, error) {
	file, err := f.FS.Open(name, mode)
	if err != nil {
		return nil, err
	}
	wrapped := &faultyFile{File: file, folder: f, path: filepath.Join(f.Name(), name), mode: mode, faults: map[*kind]*fault{}}
	for _, fault := range f.faults {
		// The longest name wins, as far as one kind goes.
		if old := wrapped.faults[fault.kind]; strings.HasPrefix(name, fault.prefix) && (old == nil || len(old.prefix) < len(fault.prefix)) {
			wrapped.faults[fault.kind] = fault
		}
	}
	return wrapped, nil
}

// faultyFile is a file with faults.
type faultyFile struct {
	vfs.File
	folder *folder
	path   string
	mode   vfs.Mode
	faults map[*kind]*fault
}

// Descriptor is none, so that all I/O comes by here.
func (f *faultyFile) Descriptor() (int, bool) { return -1, false }

// ReadAt fills the buffers, if no fault is against it.
func (f *faultyFile) ReadAt(buffers [][]byte, offset int64) error {
	if f.faults[stallReads] != nil {
		if err := f.folder.stall(); err != nil {
			return err
		}
	}
	bytes := total(buffers)
	f.faults[readRate].wait(bytes)
	if f.faults[readError].due() {
		return f.failed("read", unix.EIO)
	}
	if err := f.File.ReadAt(buffers, offset); err != nil {
		return err
	}
	if f.faults[readFlip].due() {
		flip(buffers, bytes/2)
	}
	return nil
}

// WriteAt writes the buffers, if no fault is against it: all of them or none.
func (f *faultyFile) WriteAt(buffers [][]byte, offset int64) error {
	bytes := total(buffers)
	f.faults[writeRate].wait(bytes)
	switch {
	case f.faults[writeInvalid] != nil && f.mode == vfs.Direct:
		return f.failed("write", unix.EINVAL)
	case f.faults[writeError].due():
		return f.failed("write", unix.EIO)
	case f.faults[writeFull].full(bytes):
		return f.failed("write", unix.ENOSPC)
	}
	return f.File.WriteAt(buffers, offset)
}

func (f *faultyFile) failed(operation string, err error) error {
	return &os.PathError{Op: operation, Path: f.path, Err: fmt.Errorf("%w (fault injection)", err)}
}

// stall waits for as long as the folder has the file that says so.
func (f *folder) stall() error {
	for {
		stalled, err := f.Exists(StallName)
		if err != nil || !stalled {
			return err
		}
		time.Sleep(stallPoll)
	}
}

// due says whether this is an nth operation. A fault that is not asked for never is.
func (f *fault) due() bool {
	return f != nil && f.matched.Add(1)%f.number == 0
}

// full says whether so many bytes more are too many, and counts them when they are not.
func (f *fault) full(bytes uint64) bool {
	if f == nil {
		return false
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.matched.Load()+bytes > f.number {
		return true
	}
	f.matched.Add(bytes)
	return false
}

// wait returns when a disk of the given rate, that does one thing after the other, has moved so many bytes.
func (f *fault) wait(bytes uint64) {
	if f == nil {
		return
	}
	f.mutex.Lock()
	now := time.Now()
	if f.free.Before(now) {
		f.free = now
	}
	f.free = f.free.Add(time.Duration(float64(bytes) / float64(f.number) * float64(time.Second)))
	until := f.free
	f.mutex.Unlock()
	time.Sleep(until.Sub(now))
}

// flip turns the bits of one byte.
func flip(buffers [][]byte, at uint64) {
	for _, b := range buffers {
		if at < uint64(len(b)) {
			b[at] ^= 0xff
			return
		}
		at -= uint64(len(b))
	}
}

func total(buffers [][]byte) (bytes uint64) {
	for _, b := range buffers {
		bytes += uint64(len(b))
	}
	return bytes
}
