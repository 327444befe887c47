package twin

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// inode is a file, whatever its names. The disk's mutex guards it.
type inode struct {
	cached  content // what reads see
	durable content // what the last Sync left on the disk
	changes []*change
	changed uint64 // number of the latest change
	links   int
	handles int
	locked  *handle
}

func newInode(c content) *inode { return &inode{cached: c, durable: c.clone()} }

// note records a change of the cached content: a write of so many bytes, or a new size.
func (n *inode) note(offset, bytes int64) {
	n.changed++
	c := &change{number: n.changed, size: n.cached.size, reserved: n.cached.reserved}
	n.changes = append(n.changes, c)
	if bytes == 0 {
		return
	}
	c.first, c.end = offset/sectorBytes, sectorsFor(offset+bytes)
	for number := offset / blockBytes; number*blockBytes < offset+bytes; number++ {
		c.blocks = append(c.blocks, n.cached.blocks[number])
	}
}

// noteSize records a new size. Where it cuts a sector, zeros were written behind it.
func (n *inode) noteSize() {
	through := n.cached.size % sectorBytes
	if n.cached.blocks[n.cached.size/blockBytes] == nil {
		through = 0
	}
	n.note(n.cached.size-through, through)
}

// covered takes the changes out that a Sync covers.
func (n *inode) covered(through uint64) []*change {
	count := 0
	for count < len(n.changes) && n.changes[count].number <= through {
		count++
	}
	changes := n.changes[:count]
	n.changes = n.changes[count:]
	return changes
}

func (n *inode) damage(offset, bytes int64) {
	n.cached.flip(offset, bytes)
	n.durable.flip(offset, bytes)
	for _, c := range n.changes {
		c.flip(offset, bytes)
	}
}

// handle is an open file. The names in its errors are those that it was opened by.
type handle struct {
	disk   *Disk
	file   *inode
	name   string
	direct bool
	closed bool
}

// begin passes an operation by the faults and takes the disk's mutex, which the caller gives back.
func (h *handle) begin(e Event) (moved int64, err error) {
	e.Name = h.name
	moved, err = h.disk.enter(e)
	if err == nil && h.closed {
		err = os.ErrClosed
	}
	return moved, err
}

func (h *handle) failed(o Operation, err error) error {
	if err == nil {
		return nil
	}
	return h.disk.failed(o, h.name, err)
}

// ReadAt fills the buffers.
func (h *handle) ReadAt(buffers [][]byte, offset int64) error {
	bytes := total(buffers)
	moved, err := h.begin(Event{Operation: Read, Offset: offset, Bytes: bytes})
	defer h.disk.mutex.Unlock()
	there := max(0, h.file.cached.size-offset)
	switch {
	case err != nil:
		bytes = min(moved, there)
	case h.direct && !vfs.Aligned(buffers, offset):
		bytes, err = 0, unix.EINVAL
	case bytes > there:
		bytes, err = there, io.ErrUnexpectedEOF
	}
	for _, b := range buffers {
		n := min(bytes, int64(len(b)))
		h.file.cached.read(b[:n], offset)
		bytes, offset = bytes-n, offset+n
	}
	return h.failed(Read, err)
}

// WriteAt writes the buffers.
func (h *handle) WriteAt(buffers [][]byte, offset int64) error {
	bytes := total(buffers)
	moved, err := h.begin(Event{Operation: Write, Offset: offset, Bytes: bytes})
	defer h.disk.mutex.Unlock()
	switch {
	case err != nil:
		bytes = moved
	case h.direct && !vfs.Aligned(buffers, offset):
		bytes, err = 0, unix.EINVAL
	default:
		fits := h.file.cached.fits(offset, bytes, (h.disk.capacity-h.disk.used)/blockBytes)
		if fits < bytes {
			bytes, err = fits, unix.ENOSPC
		}
	}
	if bytes == 0 {
		return h.failed(Write, err)
	}
	h.disk.keep(h.file, func() {
		at, left := offset, bytes
		for _, b := range buffers {
			n := min(left, int64(len(b)))
			h.file.cached.write(b[:n], at)
			at, left = at+n, left-n
		}
		h.file.note(offset, bytes)
	})
	return h.failed(Write, err)
}

// Sync makes durable what was written before the call.
func (h *handle) Sync() error {
	h.disk.mutex.Lock()
	through := h.file.changed
	h.disk.mutex.Unlock()
	_, err := h.begin(Event{Operation: Sync})
	defer h.disk.mutex.Unlock()
	if h.closed || h.disk.off {
		return h.failed(Sync, err)
	}
	changes := h.file.covered(through)
	if err != nil {
		h.file.durable = settle(&h.file.durable, changes, h.disk.draw())
		return h.failed(Sync, err)
	}
	for _, c := range changes {
		c.apply(&h.file.durable)
	}
	return nil
}

// Allocate gives the file a size and reserves its blocks, all or none.
func (h *handle) Allocate(bytes int64) error {
	_, err := h.begin(Event{Operation: Allocate, Bytes: bytes})
	defer h.disk.mutex.Unlock()
	blocks := blocksFor(bytes)
	if err == nil && h.file.cached.needs(0, blocks) > (h.disk.capacity-h.disk.used)/blockBytes {
		err = unix.ENOSPC
	}
	if err != nil {
		return h.failed(Allocate, err)
	}
	h.disk.keep(h.file, func() {
		h.file.cached.resize(bytes)
		h.file.cached.reserve(max(blocks, h.file.cached.reserved))
		h.file.noteSize()
	})
	return nil
}

// Truncate cuts or extends the file.
func (h *handle) Truncate(bytes int64) error {
	_, err := h.begin(Event{Operation: Truncate, Bytes: bytes})
	defer h.disk.mutex.Unlock()
	if err != nil {
		return h.failed(Truncate, err)
	}
	h.disk.keep(h.file, func() {
		h.file.cached.resize(bytes)
		h.file.noteSize()
	})
	return nil
}

// Size is the file's size in bytes.
func (h *handle) Size() (int64, error) {
	h.disk.mutex.Lock()
	defer h.disk.mutex.Unlock()
	return h.file.cached.size, nil
}

// AllocatedBytes is what the file occupies.
func (h *handle) AllocatedBytes() (int64, error) {
	h.disk.mutex.Lock()
	defer h.disk.mutex.Unlock()
	return h.file.cached.allocated() * blockBytes, nil
}

// Named says whether the file still has a name.
func (h *handle) Named() (bool, error) {
	h.disk.mutex.Lock()
	defer h.disk.mutex.Unlock()
	return h.file.links > 0, nil
}

// Lock takes the file's lock until the handle is closed.
func (h *handle) Lock() error {
	_, err := h.begin(Event{Operation: Lock})
	defer h.disk.mutex.Unlock()
	if err == nil && h.file.locked != nil && h.file.locked != h {
		err = vfs.ErrLocked
	}
	if err == nil {
		h.file.locked = h
	}
	return h.failed(Lock, err)
}

// Descriptor is none: all I/O comes through the handle.
func (h *handle) Descriptor() (int, bool) { return -1, false }

// Close gives the handle and its lock back. It works on a disk without power, too.
func (h *handle) Close() error {
	h.disk.mutex.Lock()
	defer h.disk.mutex.Unlock()
	if h.closed {
		return h.disk.failed(Open, h.name, os.ErrClosed)
	}
	h.closed = true
	if h.file.locked == h {
		h.file.locked = nil
	}
	h.file.handles--
	h.disk.release(h.file)
	return nil
}

func total(buffers [][]byte) (bytes int64) {
	for _, b := range buffers {
		bytes += int64(len(b))
	}
	return bytes
}
