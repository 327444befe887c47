package cache

import (
	"slices"
	"time"

	"orbitkv/internal/wire"
)

// storedKey names a page in a tier.
type storedKey struct {
	namespace uint32
	group     uint16
	key       wire.Key
}

func (t *TierPage) stored() storedKey { return storedKey{t.Namespace, t.Group, t.Key} }

// bench is a Tier that does what a test says: reads and writes lie on the table until the test ends them.
type bench struct {
	stored     map[storedKey]any // whatever a test keeps of a page
	reads      []TierPage
	writes     []TierPage
	room       int // reads that it takes at once
	full       bool
	refuses    bool // it has a page and does not read it
	numbers    map[[32]byte]uint32
	dropped    []uint32
	released   []uint32
	last       uint32
	demanded   []storedKey
	onRead     func(TierPage, ReadPriority)
	cleared    int
	priorities []ReadPriority
	hastened   []storedKey
	digest     Digest // of every page that it reads or writes
	expected   time.Duration
	awaited    Awaited // what it was asked for last
}

func newBench() *bench {
	return &bench{stored: map[storedKey]any{}, numbers: map[[32]byte]uint32{}, room: 1 << 20, digest: Digest{1}, onRead: func(TierPage, ReadPriority) {}}
}

func (b *bench) Namespace(identity [32]byte, _, _ uint64) uint32 {
	if b.numbers[identity] == 0 {
		b.last++
		b.numbers[identity] = b.last
	}
	return b.numbers[identity]
}

func (b *bench) DropNamespace(namespace uint32) {
	b.dropped = append(b.dropped, namespace)
	b.forget(func(k storedKey) bool { return k.namespace == namespace })
	for identity, number := range b.numbers {
		if number == namespace {
			delete(b.numbers, identity)
		}
	}
}

func (b *bench) ReleaseNamespace(namespace uint32) { b.released = append(b.released, namespace) }

func (b *bench) Clear() {
	b.cleared++
	b.forget(func(storedKey) bool { return true })
}

func (b *bench) Drop(namespace uint32, group uint16, key *wire.Key) {
	delete(b.stored, storedKey{namespace, group, *key})
}

func (b *bench) forget(which func(storedKey) bool) {
	for k := range b.stored {
		if which(k) {
			delete(b.stored, k)
		}
	}
}

func (b *bench) Stored(namespace uint32, group uint16, key *wire.Key) bool {
	_, ok := b.stored[storedKey{namespace, group, *key}]
	return ok
}

func (b *bench) Wanted(namespace uint32, group uint16, key *wire.Key) bool {
	k := storedKey{namespace, group, *key}
	_, ok := b.stored[k]
	return !ok && !slices.ContainsFunc(b.writes, func(t TierPage) bool { return t.stored() == k })
}

func (b *bench) Read(t TierPage, priority ReadPriority) bool {
	if b.refuses || !b.Stored(t.Namespace, t.Group, &t.Key) || b.ReadRoom() <= 0 {
		return false
	}
	b.onRead(t, priority)
	b.reads = append(b.reads, t)
	b.priorities = append(b.priorities, priority)
	return true
}

func (b *bench) Hasten(namespace uint32, group uint16, key *wire.Key) {
	b.hastened = append(b.hastened, storedKey{namespace, group, *key})
}

func (b *bench) Write(t TierPage) bool {
	if b.full {
		return false
	}
	b.writes = append(b.writes, t)
	return true
}

func (b *bench) Expected(a Awaited) time.Duration {
	b.awaited = a
	return b.expected
}

func (b *bench) ReadRoom() int { return b.room - len(b.reads) }

func (b *bench) Demanded(namespace uint32, group uint16, keys []wire.Key) {
	for _, key := range keys {
		b.demanded = append(b.demanded, storedKey{namespace, group, key})
	}
}

// endRead ends the ith read on the table.
func (r *rig) endRead(b *bench, i int, ok bool) {
	t := b.reads[i]
	b.reads = slices.Delete(b.reads, i, i+1)
	r.PageRead(t.Page, b.digest, ok)
}

// endReads ends every read, those that follow too, the oldest first.
func (r *rig) endReads(b *bench) {
	for len(b.reads) > 0 {
		r.endRead(b, 0, true)
	}
}

// endWrite ends the ith write on the table.
func (r *rig) endWrite(b *bench, i int, ok bool) {
	t := b.writes[i]
	b.writes = slices.Delete(b.writes, i, i+1)
	if ok {
		b.stored[t.stored()] = true
	}
	r.PageWritten(t.Page, b.digest, ok)
}

// endWrites ends every write.
func (r *rig) endWrites(b *bench) {
	for len(b.writes) > 0 {
		r.endWrite(b, 0, true)
	}
}
