package index

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

const (
	tables        = 256 // a table grows alone, so that a pause is a 256th of the whole
	tableSlotsMin = 8
	tableLoadNum  = 3 // a table grows at three quarters
	tableLoadDen  = 4
)

// table is an open-addressed array of slots with linear probing. A slot is 0 when empty, else the tag in its upper and
// the entry number in its lower half. The home slot comes from the tag alone, so that growing and deleting read no entry.
type table struct {
	slots []uint64
	used  int
}

// seeds salts the hash, since keys are chosen by clients: crafted keys cannot make long probe chains.
type seeds [6]uint64

func newSeeds(seed uint64) seeds {
	source := rand.NewPCG(seed, 0x9e3779b97f4a7c15)
	var s seeds
	for i := range s {
		s[i] = source.Uint64() | 1
	}
	return s
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func (s *seeds) hash(namespace uint32, group uint16, key *Key) uint64 {
	a := mix(binary.LittleEndian.Uint64(key[0:])^s[0], binary.LittleEndian.Uint64(key[8:])^s[1])
	b := mix(binary.LittleEndian.Uint64(key[16:])^s[2], binary.LittleEndian.Uint64(key[24:])^s[3])
	return mix(a^s[4]^uint64(namespace)<<16^uint64(group), b^s[5])
}

func split(hash uint64) (tableNumber int, tag uint32) {
	return int(hash & (tables - 1)), uint32(hash >> 32)
}

// lookup returns the record of a key, 0 when there is none.
func (x *Index) lookup(namespace uint32, group uint16, key *Key) uint32 {
	number, tag := split(x.seeds.hash(namespace, group, key))
	t := &x.tables[number]
	if t.used == 0 {
		return 0
	}
	mask := uint32(len(t.slots) - 1)
	for i := tag & mask; ; i = (i + 1) & mask {
		slot := t.slots[i]
		if slot == 0 {
			return 0
		}
		if uint32(slot>>32) != tag {
			continue
		}
		e := x.at(uint32(slot))
		if e.is(key, namespace, group) {
			return uint32(slot)
		}
	}
}

// rekey puts a record into its table. The caller has made sure that the key is not there.
func (x *Index) rekey(e *entry, number uint32) {
	tableNumber, tag := split(x.seeds.hash(e.namespace, e.group, &e.key))
	t := &x.tables[tableNumber]
	if (t.used+1)*tableLoadDen > len(t.slots)*tableLoadNum {
		t.grow()
	}
	t.put(tag, number)
	t.used++
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]uint64, max(tableSlotsMin, 2*len(old)))
	for _, slot := range old {
		if slot != 0 {
			t.put(uint32(slot>>32), uint32(slot))
		}
	}
}

func (t *table) put(tag, number uint32) {
	mask := uint32(len(t.slots) - 1)
	i := tag & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = uint64(tag)<<32 | uint64(number)
}

// unkey takes a record out of its table and closes the gap by shifting later slots of the chain back, so that deletion
// leaves no tombstone and never degrades a lookup.
func (x *Index) unkey(e *entry, number uint32) {
	tableNumber, tag := split(x.seeds.hash(e.namespace, e.group, &e.key))
	t := &x.tables[tableNumber]
	mask := uint32(len(t.slots) - 1)
	gap := tag & mask
	for uint32(t.slots[gap]) != number {
		if t.slots[gap] == 0 {
			panic("index: a keyed page record is not in its table")
		}
		gap = (gap + 1) & mask
	}
	for i := (gap + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		home := uint32(t.slots[i]>>32) & mask
		if (i-home)&mask >= (i-gap)&mask { // the slot may move back to the gap without passing its home
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = 0
	t.used--
}
