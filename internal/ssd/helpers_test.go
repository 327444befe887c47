package ssd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

const (
	small    = 8 << 10 // pages of most tests, bytes
	capacity = 24 << 20
)

// arena is the memory that pages come from and go to. Its slots are as large as the largest page of a test.
type arena struct {
	memory []byte
	slot   uint64
	free   chan uint64
}

func newArena(slots int, slotBytes uint64) *arena {
	a := &arena{memory: vfs.AlignedBuffer(slots * int(slotBytes)), slot: slotBytes, free: make(chan uint64, slots)}
	for i := range slots {
		a.free <- uint64(i) * slotBytes
	}
	return a
}

func (a *arena) bytes(location, bytes uint64) []byte { return a.memory[location:][:bytes:bytes] }

// oracle is what a page's bytes are: a function of its namespace's identity, its group and its key.
func oracle(identity byte, group uint16, number int, bytes uint64) []byte {
	page := make([]byte, bytes)
	word := uint64(identity)<<48 | uint64(group)<<32 | uint64(number)
	for at := 0; at < len(page); at += 8 {
		word = word*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(page[at:], word)
	}
	return page
}

// poison is what memory holds before a read.
var poison = [64 << 10]byte{0: 0xEE, 4096: 0xEE, 8192: 0xEE}

func keyOf(number int) *Key {
	key := &Key{}
	source := rand.New(rand.NewPCG(uint64(number), 77))
	for at := 0; at < len(key); at += 8 {
		binary.LittleEndian.PutUint64(key[at:], source.Uint64())
	}
	return key
}

func identityOf(identity byte) (id [32]byte) {
	for i := range id {
		id[i] = identity
	}
	return id
}

// rig is a store over disks in memory.
type rig struct {
	t     testing.TB
	store *Store
	arena *arena
	disks []*twin.Disk
}

// space is a namespace of a test.
type space struct {
	handle   uint32
	identity byte
	bytes    uint64
}

// configure are changes of a test to the usual configuration.
type configure func(*Config)

func configOf(a *arena, disks []*twin.Disk, changes ...configure) Config {
	config := Config{CapacityBytes: capacity * uint64(len(disks)), Backend: "pool", Memory: a.bytes, Seed: 1}
	for i, disk := range disks {
		config.Volumes = append(config.Volumes, VolumeConfig{FS: disk, Name: fmt.Sprintf("volume %d", i)})
	}
	for _, change := range changes {
		change(&config)
	}
	return config
}

// openRig opens a store over the disks.
func openRig(t testing.TB, disks []*twin.Disk, changes ...configure) *rig {
	t.Helper()
	return openRigIn(t, newArena(64, 64<<10), disks, changes...)
}

func openRigIn(t testing.TB, a *arena, disks []*twin.Disk, changes ...configure) *rig {
	t.Helper()
	store, err := Open(configOf(a, disks, changes...))
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, store: store, arena: a, disks: disks}
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.store.Check(); err != nil {
		r.t.Error(err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// again closes the store and opens another one over the same disks.
func (r *rig) again(changes ...configure) *rig {
	r.t.Helper()
	r.close()
	return openRigIn(r.t, r.arena, r.disks, changes...)
}

func (r *rig) namespace(identity byte, epoch, pageBytes uint64) space {
	return space{r.store.Namespace(identityOf(identity), epoch, pageBytes), identity, pageBytes}
}

// parts splits a page of the arena into two, so that no test depends on one.
func parts(location, bytes uint64) []Part {
	if bytes < 2*vfs.Align {
		return []Part{{location, bytes}}
	}
	return []Part{{location + vfs.Align, bytes - vfs.Align}, {location, vfs.Align}}
}

func (r *rig) fill(s space, group uint16, number int, location uint64) {
	page := oracle(s.identity, group, number, s.bytes)
	for _, p := range parts(location, s.bytes) {
		page = page[copy(r.arena.bytes(p.Location, p.Bytes), page):]
	}
}

// errBytes is a read that said OK and brought other bytes: what must never happen.
var errBytes = errors.New("a read that ended well brought other bytes than were written")

func (r *rig) compare(s space, group uint16, number int, location uint64) error {
	page := oracle(s.identity, group, number, s.bytes)
	for _, p := range parts(location, s.bytes) {
		if string(r.arena.bytes(p.Location, p.Bytes)) != string(page[:p.Bytes]) {
			return fmt.Errorf("page %d of namespace %d: %w", number, s.identity, errBytes)
		}
		page = page[p.Bytes:]
	}
	return nil
}

// begin offers a page and returns the channel of its end, nil when it was not taken.
func (r *rig) begin(s space, group uint16, number int) <-chan WriteResult {
	location := <-r.arena.free
	r.fill(s, group, number, location)
	ended := make(chan WriteResult, 1)
	taken := r.store.Write(Write{
		Namespace: s.handle, Group: group, Key: *keyOf(number), Parts: parts(location, s.bytes), Done: func(result WriteResult) {
			r.arena.free <- location
			ended <- result
		},
	})
	if !taken {
		r.arena.free <- location
		return nil
	}
	return ended
}

// write writes a page and says how that ended; a page that was not taken has the reason "refused".
func (r *rig) write(s space, number int) WriteResult {
	ended := r.begin(s, 0, number)
	if ended == nil {
		return WriteResult{Reason: "refused"}
	}
	return <-ended
}

// mustWrite writes pages that must all end well.
func (r *rig) mustWrite(s space, numbers ...int) {
	r.t.Helper()
	var ends []<-chan WriteResult
	for _, number := range numbers {
		ended := r.begin(s, 0, number)
		if ended == nil {
			r.t.Fatalf("page %d was not taken: %v", number, r.store.Stats().WriteSkipsTotal)
		}
		ends = append(ends, ended)
	}
	for i, ended := range ends {
		if result := <-ended; !result.OK {
			r.t.Fatalf("page %d was not written: %s", numbers[i], result.Reason)
		}
	}
}

// ask begins to read a page into poisoned memory and returns the channel of its end, nil when it was not taken. The bytes of a good end are
// compared before it is told.
func (r *rig) ask(s space, group uint16, number int, priority Priority) <-chan ReadResult {
	location := <-r.arena.free
	copy(r.arena.bytes(location, s.bytes), poison[:])
	ended := make(chan ReadResult, 1)
	taken := r.store.Read(Read{
		Namespace: s.handle, Group: group, Key: *keyOf(number), Parts: parts(location, s.bytes), Priority: priority, Done: func(result ReadResult) {
			if result.OK {
				if err := r.compare(s, group, number, location); err != nil {
					r.t.Error(err)
				}
			}
			r.arena.free <- location
			ended <- result
		},
	})
	if !taken {
		r.arena.free <- location
		return nil
	}
	return ended
}

// read reads a page on demand; one that is not stored or not taken has the reason "refused".
func (r *rig) read(s space, number int) ReadResult {
	return r.readAs(s, number, Warm)
}

func (r *rig) readAs(s space, number int, priority Priority) ReadResult {
	ended := r.ask(s, 0, number, priority)
	if ended == nil {
		return ReadResult{Reason: "refused"}
	}
	return <-ended
}

func (r *rig) mustRead(s space, numbers ...int) {
	r.t.Helper()
	for _, number := range numbers {
		if result := r.read(s, number); !result.OK {
			r.t.Errorf("page %d could not be read: %s", number, result.Reason)
		}
	}
}

func (r *rig) stored(s space, number int) bool { return r.store.Stored(s.handle, 0, keyOf(number)) }

// count is how many of the pages from..to-1 are stored.
func (r *rig) count(s space, from, to int) (stored int) {
	for number := from; number < to; number++ {
		if r.stored(s, number) {
			stored++
		}
	}
	return stored
}

func numbers(from, to int) (list []int) {
	for number := from; number < to; number++ {
		list = append(list, number)
	}
	return list
}

func oneDisk(seed uint64) []*twin.Disk { return []*twin.Disk{twin.New(seed)} }

// clock is a clock that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_000_000, 0)} }

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// logged sends the store's log to the test's.
func logged(t testing.TB) configure {
	return func(config *Config) { config.Log = slog.New(slog.NewTextHandler(t.Output(), nil)) }
}

// logPages closes a store with one volume and writes an index log that says so many pages are stored, whose bytes nobody wrote.
func (r *rig) logPages(pages int, bytes uint64) {
	r.t.Helper()
	v := r.store.volumes[0]
	r.close()
	log, _, err := journal.Open(v.fs, v.id, v.limits())
	if err != nil {
		r.t.Fatal(err)
	}
	log.Namespace(journal.Namespace{Number: 1, Identity: identityOf(1), PageBytes: bytes})
	err = log.Compact(func(yield func(journal.Put) bool) {
		for number := range pages {
			offset := format.ScratchBytes + uint64(number)*format.ExtentBytes(bytes)
			if !yield(journal.Put{Namespace: 1, Key: *keyOf(number), Offset: offset, Bytes: bytes, Sequence: log.NextSequence()}) {
				return
			}
		}
	})
	if err := errors.Join(err, log.Close()); err != nil {
		r.t.Fatal(err)
	}
}
