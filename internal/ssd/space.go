package ssd

import (
	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
)

// op is something that the next commit tells the index log, or does once it is durable.
type op struct {
	kind   opKind
	offset uint64 // drop, free
	bytes  uint64 // free: of the extent
	number uint32 // drop namespace
}

type opKind uint8

const (
	opDrop          opKind = iota // the page at an offset is stored no more
	opDropNamespace               // a namespace and its pages are
	opClear                       // no page is
	opFree                        // nobody reads an extent any more: it may be written anew once all ops before this one are durable
)

// note queues an op. What is queued is bounded: each page has at most one drop and one free, each namespace one.
func (v *volume) note(o op) {
	if o.kind == opFree {
		v.limbo += o.bytes
	}
	v.ops = append(v.ops, o)
}

// hurry makes the next commit begin without waiting for pages.
func (v *volume) hurry() {
	v.urgent = true
	v.changed.Broadcast()
}

// usedBytes is what of the payload is lent: to pages, and to what was dropped and is not free yet.
func (v *volume) usedBytes() uint64 {
	return v.space.Bytes() - v.space.FreeBytes() - format.ScratchBytes
}

// retain makes a page the one used last of the retained class. Where the class holds more than its part of the payload, its oldest pages fall back to
// the probationary ones.
func (v *volume) retain(h index.Handle) {
	if !v.move(h, index.Retained) {
		v.index.Touch(h)
		return
	}
	v.demote()
}

// demote lets the oldest retained pages fall back while their class holds more than its part.
func (v *volume) demote() {
	for v.classBytes[index.Retained] > v.space.Bytes()/100*retainedPercent {
		oldest, ok := v.index.Oldest(index.Retained)
		if !ok {
			return
		}
		v.move(oldest, index.Probationary)
		v.store.counters.demoted++
	}
}

// move gives a page a class and keeps the bytes of both.
func (v *volume) move(h index.Handle, class index.Class) bool {
	page, ok := v.index.Page(h)
	if !ok || !v.index.Promote(h, class) {
		return false
	}
	bytes := v.store.lives[page.Namespace].extent()
	v.classBytes[page.Class] -= bytes
	v.classBytes[class] += bytes
	return true
}

// show makes a page readable: its record is durable.
func (v *volume) show(l *life, group uint16, key *Key, offset uint64, class index.Class, digest Digest, sequence uint64) {
	h := v.index.Reserve(l.number, group, key, offset, class, index.Published)
	v.facts.set(h.Entry(), pageFacts{digest, sequence})
	v.index.Seal(h)
	l.pages[v.number]++
	v.classBytes[class] += l.extent()
}

// retire takes a page out of the index: it cannot be read from here on. recorded says whether the log must be told, which it need not be when its
// namespace is dropped or the volume cleared. The extent comes back when the last transfer that uses it has ended (I6).
func (v *volume) retire(page index.Page, recorded bool) {
	if recorded {
		v.note(op{kind: opDrop, offset: page.Location})
	}
	v.classBytes[page.Class] -= v.store.lives[page.Namespace].extent()
	v.index.Retire(page.Handle)
}

// lastReference is called by the index when a retired page has no reader left.
func (v *volume) lastReference(page index.Page) {
	if !v.readable() {
		return
	}
	l := v.store.lives[page.Namespace]
	l.pages[v.number]--
	v.note(op{kind: opFree, offset: page.Location, bytes: l.extent()})
	v.store.forgetLife(l)
}

// pin keeps a page's bytes where they are while somebody reads them. It leaves recency and class alone (I7).
func (v *volume) pin(h index.Handle) {
	if v.readers[h]++; v.readers[h] == 1 {
		v.index.Pin(h) // I1
	}
}

func (v *volume) unpin(h index.Handle) {
	if v.readers[h]--; v.readers[h] == 0 {
		delete(v.readers, h)
		v.index.Unpin(h)
	}
}

// discard drops a page whose bytes cannot be read: it is a miss from here on, and after a restart as soon as its drop is durable.
func (v *volume) discard(h index.Handle, reason string) {
	page, ok := v.index.Page(h)
	if !v.readable() || !ok || page.State != index.Sealed {
		return
	}
	v.store.counters.evictions[reason]++
	v.forgotten++
	v.retire(page, true)
	v.hurry()
}

// evict drops the next victim and returns the bytes of its extent, zero when there is none. First come pages of epochs that nobody registered, then
// the probationary ones, then the retained ones; in a class the one used longest ago. A page that is being read is passed over.
func (v *volume) evict() uint64 {
	for _, class := range index.Classes {
		h, ok := v.index.Oldest(class)
		for ok {
			newer, more := v.index.Newer(h)
			page, _ := v.index.Page(h)
			l := v.store.lives[page.Namespace]
			switch {
			case page.Pinned:
			case class == index.Reclaimable && !l.dead && !l.namespace.abandoned():
				v.move(h, index.Probationary) // its engine came back
			default:
				v.store.counters.evictions[class.String()]++
				v.retire(page, !l.dead)
				return l.extent()
			}
			h, ok = newer, more
		}
	}
	return 0
}

// headroom is the space that is kept free or on its way to be: what two group commits take. So the drops of victims become durable with a commit while the
// pages of the next one find space still.
func (v *volume) headroom() uint64 { return min(2*BatchBytes, v.space.Bytes()/16) }

// evictAhead drops victims until there is headroom for pages to come, as far as one hold of the mutex may.
func (v *volume) evictAhead() {
	for range evictionsMax {
		if v.space.FreeBytes()+v.limbo >= v.headroom() || v.evict() == 0 {
			return
		}
	}
}

// pagesFull says whether the index log has no room for a page more, whatever the payload has.
func (v *volume) pagesFull() bool {
	return v.index.Count(index.Sealed)+uint64(v.unrecorded) >= v.pagesMax
}

// pageFacts is what the index does not keep of a page.
type pageFacts struct {
	digest   Digest
	sequence uint64
}

const factsChunk = 1 << 10

// factsTable is the facts of pages by the number of their record, in chunks that never move.
type factsTable struct {
	chunks []*[factsChunk]pageFacts
}

func (t *factsTable) set(entry uint32, f pageFacts) {
	for int(entry)/factsChunk >= len(t.chunks) {
		t.chunks = append(t.chunks, new([factsChunk]pageFacts))
	}
	t.chunks[entry/factsChunk][entry%factsChunk] = f
}

func (t *factsTable) get(entry uint32) pageFacts { return t.chunks[entry/factsChunk][entry%factsChunk] }

func (t *factsTable) bytes() uint64 { return uint64(len(t.chunks)) * factsChunk * 24 }
