package index

import "fmt"

// Key is the hash of one page.
type Key = [32]byte

// Handle names one generation of a page record. The zero Handle names nothing. A handle that outlived its record is stale:
// no method moves anything by it.
type Handle struct {
	entry      uint32
	generation uint32
}

// Entry is the number of the record, 1 and up; it is reused by later generations.
func (h Handle) Entry() uint32 { return h.entry }

// Zero says whether the handle names nothing.
func (h Handle) Zero() bool { return h.entry == 0 }

// entry is one page record: 64 bytes, no pointers, so that tens of millions of pages cost the garbage collector nothing.
type entry struct {
	key        Key
	namespace  uint32
	group      uint16
	state      State
	flags      uint8 // class in bits 0-1, origin in bits 2-3, credited in bit 4, listed in bit 5, pinned in bit 6
	generation uint32
	refs       uint32
	location   uint64
	prev, next uint32
}

const (
	classMask   = 0x03
	originShift = 2
	originMask  = 0x03 << originShift
	creditedBit = 1 << 4
	listedBit   = 1 << 5
	pinnedBit   = 1 << 6
)

func (e *entry) class() Class   { return Class(e.flags & classMask) }
func (e *entry) origin() Origin { return Origin(e.flags & originMask >> originShift) }
func (e *entry) listed() bool   { return e.flags&listedBit != 0 }
func (e *entry) pinned() bool   { return e.flags&pinnedBit != 0 }

// owned says whether somebody may still read a page's bytes.
func (e *entry) owned() bool { return e.refs > 0 || e.pinned() }

func (e *entry) setClass(c Class) { e.flags = e.flags&^classMask | uint8(c) }

// Page is a copy of a record's facts, for callers that look at one.
type Page struct {
	Handle    Handle
	Key       Key
	Namespace uint32
	Group     uint16
	State     State
	Class     Class
	Origin    Origin
	Credited  bool   // a terminal report said that some of its bytes were used
	Refs      uint32 // references of leases and transfers; residence in the table is not counted
	Pinned    bool
	Location  uint64 // of part 0
}

func (e *entry) page(number uint32) Page {
	return Page{
		Handle: Handle{number, e.generation}, Key: e.key, Namespace: e.namespace, Group: e.group, State: e.state,
		Class: e.class(), Origin: e.origin(), Credited: e.flags&creditedBit != 0, Refs: e.refs, Pinned: e.pinned(), Location: e.location,
	}
}

// to is the only place where a record's state changes. An illegal move is a programmer error and panics: the record's bytes
// would belong to two owners.
func (x *Index) to(number uint32, next State) {
	e := x.at(number)
	if !moves[e.state][next] {
		panic(fmt.Sprintf("index: page record %d cannot go from %v to %v", number, e.state, next))
	}
	if next == Free && e.owned() {
		panic(fmt.Sprintf("index: page record %d became free with %d references, pinned %v", number, e.refs, e.pinned())) // I1
	}
	wasKeyed := e.state.keyed()
	x.counts[e.state]--
	e.state = next
	x.counts[next]++
	if wasKeyed && !next.keyed() {
		x.unkey(e, number)
	}
}

// is says whether the record is that of a key.
func (e *entry) is(key *Key, namespace uint32, group uint16) bool {
	return e.key == *key && e.namespace == namespace && e.group == group
}
