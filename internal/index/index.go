// Package index keeps one record for each page: its key, state, generation, references, class and location.
//
// It owns which key leads to which page, the legal moves of a page's life (state.go), the reference counts and the LRU order inside
// the classes. It does not know what a location means, who holds a reference or when a page should be reclaimed.
//
// Records are 64-byte entries without pointers in chunks that never move; 256 small slot tables lead from keys to them.
//
// Concurrency: an Index has no lock; the cache calls it under its mutex. It must not do I/O, read a clock, or import anything
// of the module.
package index

import "fmt"

const (
	chunkEntries = 1 << 10
	// EntriesMax is the number of page records that an Index can hold.
	EntriesMax = 1<<32 - 1 - chunkEntries
)

type chunk [chunkEntries]entry

// Index is the table of page records. Create it with New.
type Index struct {
	seeds         seeds
	tables        [tables]table
	chunks        []*chunk
	made          uint32 // records that exist, free ones included; numbers are 1..made
	firstFree     uint32 // free records are linked by next
	lists         [classes]list
	counts        [states]uint64
	resident      [classes]uint64
	lastReference func(Page)
}

// New returns an empty index. seed salts the hash of keys. lastReference is called with a record's facts when its last owner let
// go, just before the record becomes free: all accounting that follows the allocation hangs there (I6).
func New(seed uint64, lastReference func(Page)) *Index {
	return &Index{seeds: newSeeds(seed), lastReference: lastReference}
}

// Find returns the keyed record of a key: reserved or sealed. ok is false when there is none. It moves no page in any list (I7): whoever
// demands a page touches it apart.
func (x *Index) Find(namespace uint32, group uint16, key *Key) (h Handle, state State, ok bool) {
	number := x.lookup(namespace, group, key)
	if number == 0 {
		return Handle{}, Free, false
	}
	e := x.at(number)
	return Handle{number, e.generation}, e.state, true
}

// Reserve makes a reserved record for a key that Find does not know; a second record for a key panics. class and origin are those
// that the page has once it is sealed.
func (x *Index) Reserve(namespace uint32, group uint16, key *Key, location uint64, class Class, origin Origin) Handle {
	if x.lookup(namespace, group, key) != 0 {
		panic("index: a second page record for one key")
	}
	number := x.newRecord()
	e := x.at(number)
	*e = entry{
		key: *key, namespace: namespace, group: group, generation: e.generation, location: location,
		flags: uint8(class) | uint8(origin)<<originShift,
	}
	x.to(number, Reserved)
	x.rekey(e, number)
	return Handle{number, e.generation}
}

// Seal makes a reserved page visible and the one used last in its class. The caller has made sure that every slice is committed.
func (x *Index) Seal(h Handle) {
	e := x.must(h)
	x.to(h.entry, Sealed)
	x.resident[e.class()]++
	x.link(h.entry)
}

// Abandon takes a reserved page off its key: it can never seal, and its key may be reserved anew.
func (x *Index) Abandon(h Handle) {
	x.must(h)
	x.to(h.entry, Abandoned)
}

// Quarantine makes a reserved or abandoned page one that is never reused.
func (x *Index) Quarantine(h Handle) {
	x.must(h)
	x.to(h.entry, Quarantined)
}

// Discard frees an abandoned page, when its last writer has ended.
func (x *Index) Discard(h Handle) {
	x.must(h)
	if x.at(h.entry).state != Abandoned {
		panic(fmt.Sprintf("index: discard of a %v page", x.at(h.entry).state))
	}
	x.release(h.entry)
}

// Retire takes a sealed page off its key. It is freed at once when nobody owns it, else with its last reference or its pin (I6).
func (x *Index) Retire(h Handle) (freed bool) {
	e := x.must(h)
	x.unlink(h.entry)
	x.to(h.entry, Retired)
	x.resident[e.class()]--
	return x.releaseIfLast(e, h.entry)
}

// Hold adds a reference to a sealed page: it leaves its LRU list and is no victim until the last reference goes (I1).
func (x *Index) Hold(h Handle) {
	e := x.must(h)
	if e.state != Sealed {
		panic(fmt.Sprintf("index: reference to a %v page", e.state))
	}
	if e.refs == 0 {
		x.unlink(h.entry)
	}
	e.refs++
}

// Drop takes a reference off. The last one puts a sealed page back as the one used last in its class, and frees a retired page.
func (x *Index) Drop(h Handle) (freed bool) {
	e := x.must(h)
	if e.refs == 0 {
		panic("index: a reference dropped twice")
	}
	e.refs--
	if e.refs > 0 {
		return false
	}
	if e.state == Retired {
		return x.releaseIfLast(e, h.entry)
	}
	x.link(h.entry)
	return false
}

// Pin keeps the bytes of a sealed page from being reused, once at a time (I1). Unlike a reference it leaves the page where it is in its LRU list,
// as a victim too: reading a page to look after it must not make it look used (I7).
func (x *Index) Pin(h Handle) {
	e := x.must(h)
	if e.state != Sealed || e.pinned() {
		panic(fmt.Sprintf("index: pin of a %v page, pinned %v", e.state, e.pinned()))
	}
	e.flags |= pinnedBit
}

// Unpin takes the pin off. It frees a page that was retired meanwhile and that nobody references.
func (x *Index) Unpin(h Handle) (freed bool) {
	e := x.must(h)
	if !e.pinned() {
		panic(fmt.Sprintf("index: %v page record %d is not pinned", e.state, h.entry))
	}
	e.flags &^= pinnedBit
	return e.state == Retired && x.releaseIfLast(e, h.entry)
}

// Credit marks a page as used by a copy that arrived and says whether it was the first such report.
func (x *Index) Credit(h Handle) bool {
	e := x.must(h)
	first := e.flags&creditedBit == 0
	e.flags |= creditedBit
	return first
}

// Location returns where part 0 of a page lies.
func (x *Index) Location(h Handle) uint64 { return x.must(h).location }

// Page returns the facts of a live record; ok is false for a stale handle.
func (x *Index) Page(h Handle) (Page, bool) {
	e := x.live(h)
	if e == nil {
		return Page{}, false
	}
	return e.page(h.entry), true
}

// Count is the number of records in a state.
func (x *Index) Count(s State) uint64 { return x.counts[s] }

// Resident is the number of sealed pages of a class, referenced ones included.
func (x *Index) Resident(c Class) uint64 { return x.resident[c] }

// Records is one more than the largest record number so far: the bound of Scan's cursor.
func (x *Index) Records() uint32 { return x.made + 1 }

// Scan calls each for the live records with numbers in [from, to) until it returns false. each may retire the page that it is given.
func (x *Index) Scan(from, to uint32, each func(Page) bool) {
	for number := max(from, 1); number < to && number <= x.made; number++ {
		if e := x.at(number); e.state != Free && !each(e.page(number)) {
			return
		}
	}
}

// Bytes is the memory of the index in bytes.
func (x *Index) Bytes() uint64 {
	const entryBytes, slotBytes, pointerBytes = 64, 8, 8
	bytes := uint64(len(x.chunks))*chunkEntries*entryBytes + uint64(cap(x.chunks))*pointerBytes
	for i := range x.tables {
		bytes += uint64(len(x.tables[i].slots)) * slotBytes
	}
	return bytes
}

func (x *Index) at(number uint32) *entry {
	return &x.chunks[(number-1)/chunkEntries][(number-1)%chunkEntries]
}

// live returns the entry of a handle, nil when the handle is stale.
func (x *Index) live(h Handle) *entry {
	if h.entry == 0 || h.entry > x.made {
		return nil
	}
	e := x.at(h.entry)
	if e.generation != h.generation || e.state == Free {
		return nil
	}
	return e
}

// must returns the entry of a handle that the caller holds; a stale one means that an owner lost its page.
func (x *Index) must(h Handle) *entry {
	e := x.live(h)
	if e == nil {
		panic(fmt.Sprintf("index: stale handle of page record %d, generation %d", h.entry, h.generation))
	}
	return e
}

func (x *Index) handle(number uint32) (Handle, bool) {
	if number == 0 {
		return Handle{}, false
	}
	return Handle{number, x.at(number).generation}, true
}

func (x *Index) newRecord() uint32 {
	if number := x.firstFree; number != 0 {
		x.firstFree = x.at(number).next
		return number
	}
	if x.made == EntriesMax {
		panic(fmt.Sprintf("index: %d page records are in use; a larger page or a smaller pool is needed", x.made))
	}
	if int(x.made)%chunkEntries == 0 {
		x.chunks = append(x.chunks, new(chunk))
	}
	x.made++
	x.counts[Free]++
	return x.made
}

// releaseIfLast ends the life of a retired record that nobody owns any more.
func (x *Index) releaseIfLast(e *entry, number uint32) (freed bool) {
	if e.owned() {
		return false
	}
	x.release(number)
	return true
}

// release ends a record's life: the hook sees its facts, and the next generation makes every handle of this one stale.
func (x *Index) release(number uint32) {
	e := x.at(number)
	facts := e.page(number)
	x.to(number, Free)
	if x.lastReference != nil {
		x.lastReference(facts)
	}
	e.generation++
	e.prev, e.next = 0, x.firstFree
	x.firstFree = number
}
