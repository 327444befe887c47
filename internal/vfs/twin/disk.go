package twin

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// roomy is the capacity of a disk that was given none, in bytes.
const roomy = 1 << 50

// Disk is one folder on a disk of its own.
type Disk struct {
	mutex    sync.Mutex
	seed     uint64
	draws    uint64 // random sources that were made
	names    map[string]*inode
	durable  map[string]*inode // names at the last SyncFolder
	renames  []rename          // since then
	renamed  uint64            // number of the latest one
	capacity int64
	used     int64
	peak     int64
	off      bool
	rules    []*rule
	gates    []*Gate
	hook     func(Event)
	counts   [operations]count
}

// rename is a change of names: a file gets the name to, loses the name from, or both.
type rename struct {
	number   uint64
	from, to string
	file     *inode
}

func (r rename) apply(names map[string]*inode) {
	delete(names, r.from)
	if r.to != "" {
		names[r.to] = r.file
	}
}

// New returns an empty disk with room for all that a test writes.
func New(seed uint64) *Disk {
	return &Disk{seed: seed, names: map[string]*inode{}, durable: map[string]*inode{}, capacity: roomy}
}

// Capacity bounds what all files may occupy together, in bytes.
func (d *Disk) Capacity(bytes int64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.capacity = bytes
}

// Used is what all files occupy, in bytes: those that have lost their name and are still open, too.
func (d *Disk) Used() int64 {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.used
}

// Peak is the most that Used ever was.
func (d *Disk) Peak() int64 {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.peak
}

// Names are the files of the folder, in order.
func (d *Disk) Names() []string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// Damage turns all bits of so many bytes of a file, in what is durable and in what is not. It panics for a file that does not exist.
func (d *Disk) Damage(name string, offset, bytes int64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	file := d.names[name]
	if file == nil {
		panic(fmt.Sprintf("twin: damage to %s, which does not exist", name))
	}
	d.keep(file, func() { file.damage(offset, bytes) })
}

// Crash returns what a power cut at this moment could leave, another outcome with each call. This disk goes on; the other one has its
// capacity, and neither its rules nor its gates, hook, locks and counters.
func (d *Disk) Crash() *Disk {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	draw := d.draw()
	left := New(draw.Uint64())
	left.capacity = d.capacity
	names := maps.Clone(d.durable)
	for _, c := range d.renames {
		if draw.IntN(2) == 0 {
			c.apply(names)
		}
	}
	settled := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		file := names[name]
		if settled[file] == nil {
			settled[file] = newInode(settle(&file.durable, file.changes, draw))
			left.used += settled[file].cached.allocated() * blockBytes
		}
		left.names[name] = settled[file]
		settled[file].links++
	}
	left.durable, left.peak = maps.Clone(left.names), left.used
	return left
}

// draw returns a random source of its own for the next outcome.
func (d *Disk) draw() *rand.Rand {
	d.draws++
	return rand.New(rand.NewPCG(d.seed, d.draws))
}

// rename changes names, and frees a file that lost its last one and is not open.
func (d *Disk) rename(r rename) {
	d.renamed++
	r.number = d.renamed
	d.renames = append(d.renames, r)
	if replaced := d.names[r.to]; r.to != "" && replaced != nil {
		replaced.links--
		d.release(replaced)
	}
	if r.to != "" {
		r.file.links++
	}
	if r.from != "" {
		r.file.links--
	}
	r.apply(d.names)
	d.release(r.file)
}

// release frees what a file occupies that has neither a name nor a handle. Only a crash can bring its bytes back.
func (d *Disk) release(file *inode) {
	if file.links == 0 && file.handles == 0 {
		d.used -= file.cached.allocated() * blockBytes
	}
}

// keep accounts for what act allocates or frees of a file.
func (d *Disk) keep(file *inode, act func()) {
	before := file.cached.allocated()
	act()
	d.used += (file.cached.allocated() - before) * blockBytes
	d.peak = max(d.peak, d.used)
}

func (d *Disk) failed(o Operation, name string, err error) error {
	return &os.PathError{Op: o.String(), Path: path.Join(d.Name(), name), Err: err}
}

// Name is the folder's path, for people.
func (d *Disk) Name() string { return fmt.Sprintf("twin-%d", d.seed) }

// Open opens a file, or makes it.
func (d *Disk) Open(name string, mode vfs.Mode) (vfs.File, error) {
	_, err := d.enter(Event{Operation: Open, Name: name})
	defer d.mutex.Unlock()
	if err != nil {
		return nil, d.failed(Open, name, err)
	}
	file := d.names[name]
	if file == nil {
		file = newInode(newContent())
		d.rename(rename{to: name, file: file})
	}
	file.handles++
	return &handle{disk: d, file: file, name: name, direct: mode == vfs.Direct}, nil
}

// Exists says whether the folder has a file.
func (d *Disk) Exists(name string) (bool, error) {
	_, err := d.enter(Event{Operation: Exists, Name: name})
	defer d.mutex.Unlock()
	if err != nil {
		return false, d.failed(Exists, name, err)
	}
	return d.names[name] != nil, nil
}

// Rename gives a file another name.
func (d *Disk) Rename(from, to string) error {
	_, err := d.enter(Event{Operation: Rename, Name: from})
	defer d.mutex.Unlock()
	file := d.names[from]
	if err == nil && file == nil {
		err = unix.ENOENT
	}
	if err != nil {
		return d.failed(Rename, from, err)
	}
	if from != to {
		d.rename(rename{from: from, to: to, file: file})
	}
	return nil
}

// Remove removes a file.
func (d *Disk) Remove(name string) error {
	_, err := d.enter(Event{Operation: Remove, Name: name})
	defer d.mutex.Unlock()
	if err != nil {
		return d.failed(Remove, name, err)
	}
	if file := d.names[name]; file != nil {
		d.rename(rename{from: name, file: file})
	}
	return nil
}

// SyncFolder makes the names of the folder durable that it had when the call began.
func (d *Disk) SyncFolder() error {
	d.mutex.Lock()
	through := d.renamed
	d.mutex.Unlock()
	_, err := d.enter(Event{Operation: SyncFolder})
	defer d.mutex.Unlock()
	if err != nil {
		return d.failed(SyncFolder, "", err)
	}
	for len(d.renames) > 0 && d.renames[0].number <= through {
		d.renames[0].apply(d.durable)
		d.renames = d.renames[1:]
	}
	return nil
}

// FreeBytes is what is left of the capacity.
func (d *Disk) FreeBytes() (uint64, error) {
	_, err := d.enter(Event{Operation: FreeBytes})
	defer d.mutex.Unlock()
	if err != nil {
		return 0, d.failed(FreeBytes, "", err)
	}
	return uint64(max(0, d.capacity-d.used)), nil
}
