// Package extent keeps the free space of one arena as disjoint, coalesced extents.
//
// It owns the answer to "which bytes of the arena are free", and therefore the true size of the largest contiguous free
// region. It does not know what an allocated extent holds: whoever was lent an extent gives exactly that extent back,
// whole or in pieces, and a piece that is already free is a programmer error that panics.
//
// Concurrency: an Allocator has no lock of its own; the cache calls it under its mutex. It must not do I/O, touch the
// memory that it describes, or import anything of the module.
package extent

import (
	"fmt"

	"github.com/tidwall/btree"
)

// Granule is the smallest extent and the unit of every offset and length, in bytes.
const Granule = 4 << 10

// treeDegree is the branching of both trees: nodes of about one kilobyte.
const treeDegree = 32

// Extent is a region of one arena, in bytes from the arena's start. Both numbers are multiples of Granule.
type Extent struct {
	Offset uint64
	Bytes  uint64
}

// End is the first byte after the extent.
func (e Extent) End() uint64 { return e.Offset + e.Bytes }

// Allocator is the free space of one arena. Create it with New.
type Allocator struct {
	bytes   uint64
	free    uint64
	byStart *btree.BTreeG[Extent]
	bySize  *btree.BTreeG[Extent]
}

// New returns an allocator over an arena of arenaBytes, all of it free. Bytes after the last whole Granule are never lent.
func New(arenaBytes uint64) *Allocator {
	options := btree.Options{Degree: treeDegree, NoLocks: true}
	a := &Allocator{
		bytes:   arenaBytes / Granule * Granule,
		byStart: btree.NewBTreeGOptions(func(x, y Extent) bool { return x.Offset < y.Offset }, options),
		bySize: btree.NewBTreeGOptions(func(x, y Extent) bool {
			if x.Bytes != y.Bytes {
				return x.Bytes < y.Bytes
			}
			return x.Offset < y.Offset
		}, options),
	}
	if a.bytes > 0 {
		a.insert(Extent{Bytes: a.bytes})
		a.free = a.bytes
	}
	return a
}

// Alloc lends the smallest free extent of at least bytes, the lowest address among equals. bytes is a positive multiple of
// Granule. ok is false when no contiguous region is large enough, whatever the sum of the free bytes.
func (a *Allocator) Alloc(bytes uint64) (offset uint64, ok bool) {
	mustBeWhole("allocation", 0, bytes)
	fit, ok := a.smallestFit(bytes)
	if !ok {
		return 0, false
	}
	a.take(fit, bytes)
	return fit.Offset, true
}

// AllocRun lends one contiguous region for as many of count units as fit into one: all of them when a region is large
// enough, else as many as the largest region holds. units is 0 when not even one fits. Each unit may be freed alone.
func (a *Allocator) AllocRun(unitBytes uint64, count int) (offset uint64, units int) {
	mustBeWhole("run", 0, unitBytes)
	if count <= 0 {
		return 0, 0
	}
	fit, ok := a.smallestFit(unitBytes * uint64(count))
	if !ok {
		fit, ok = a.bySize.Max()
		if !ok || fit.Bytes < unitBytes {
			return 0, 0
		}
		count = int(fit.Bytes / unitBytes)
	}
	a.take(fit, unitBytes*uint64(count))
	return fit.Offset, count
}

// Fits is how many units AllocRun would lend in as many calls as it takes, at most the given number. It looks at no more extents than that.
func (a *Allocator) Fits(unitBytes uint64, most int) (units int) {
	mustBeWhole("unit", 0, unitBytes)
	a.bySize.Reverse(func(e Extent) bool {
		units += int(min(e.Bytes/unitBytes, uint64(most)))
		return units < most && e.Bytes >= unitBytes
	})
	return min(units, most)
}

// Free gives [offset, offset+bytes) back and merges it with free neighbours. It panics when any of these bytes is free
// already or lies outside the arena: the caller then no longer knows what it owns.
func (a *Allocator) Free(offset, bytes uint64) {
	mustBeWhole("freed extent", offset, bytes)
	freed := Extent{offset, bytes}
	if freed.End() > a.bytes || freed.End() < offset {
		panic(fmt.Sprintf("extent: free of [%d,%d) outside the arena of %d bytes", offset, freed.End(), a.bytes))
	}

	before, hasBefore := a.atOrBefore(offset)
	after, hasAfter := a.atOrAfter(offset)
	if hasBefore && before.End() > offset || hasAfter && after.Offset < freed.End() {
		panic(fmt.Sprintf("extent: free of [%d,%d), which overlaps free space", offset, freed.End()))
	}

	if hasBefore && before.End() == offset {
		a.remove(before)
		freed = Extent{before.Offset, before.Bytes + freed.Bytes}
	}
	if hasAfter && after.Offset == freed.End() {
		a.remove(after)
		freed.Bytes += after.Bytes
	}
	a.insert(freed)
	a.free += bytes
}

// Bytes is the size of the arena that can be lent.
func (a *Allocator) Bytes() uint64 { return a.bytes }

// FreeBytes is the sum of all free extents.
func (a *Allocator) FreeBytes() uint64 { return a.free }

// LargestFree is the size of the largest contiguous free extent in bytes.
func (a *Allocator) LargestFree() uint64 {
	largest, ok := a.bySize.Max()
	if !ok {
		return 0
	}
	return largest.Bytes
}

// Extents is the number of free extents: 1 in an empty arena, more as it fragments.
func (a *Allocator) Extents() int { return a.byStart.Len() }

// Ascend calls each for every free extent in address order until it returns false.
func (a *Allocator) Ascend(each func(Extent) bool) { a.byStart.Scan(each) }

// Check reports the first broken rule of the allocator's own state: extents whole, inside the arena, disjoint, coalesced,
// equal in both trees and summing to FreeBytes.
func (a *Allocator) Check() error {
	var sum uint64
	var broken error
	last := Extent{}
	first := true
	a.byStart.Scan(func(e Extent) bool {
		switch {
		case e.Bytes == 0 || e.Bytes%Granule != 0 || e.Offset%Granule != 0:
			broken = fmt.Errorf("extent: free extent [%d,%d) is not whole", e.Offset, e.End())
		case e.End() > a.bytes:
			broken = fmt.Errorf("extent: free extent [%d,%d) ends outside the arena of %d bytes", e.Offset, e.End(), a.bytes)
		case !first && e.Offset <= last.End():
			broken = fmt.Errorf("extent: free extents [%d,%d) and [%d,%d) touch", last.Offset, last.End(), e.Offset, e.End())
		default:
			if _, ok := a.bySize.Get(e); !ok {
				broken = fmt.Errorf("extent: free extent [%d,%d) is missing by size", e.Offset, e.End())
			}
		}
		sum += e.Bytes
		last, first = e, false
		return broken == nil
	})
	if broken != nil {
		return broken
	}
	if a.byStart.Len() != a.bySize.Len() {
		return fmt.Errorf("extent: %d free extents by start, %d by size", a.byStart.Len(), a.bySize.Len())
	}
	if sum != a.free {
		return fmt.Errorf("extent: free extents sum to %d bytes, the counter says %d", sum, a.free)
	}
	return nil
}

// take removes the first bytes of a free extent from the free space.
func (a *Allocator) take(from Extent, bytes uint64) {
	a.remove(from)
	if from.Bytes > bytes {
		a.insert(Extent{from.Offset + bytes, from.Bytes - bytes})
	}
	a.free -= bytes
}

func (a *Allocator) insert(e Extent) {
	a.byStart.Set(e)
	a.bySize.Set(e)
}

func (a *Allocator) remove(e Extent) {
	a.byStart.Delete(e)
	a.bySize.Delete(e)
}

func (a *Allocator) smallestFit(bytes uint64) (fit Extent, ok bool) {
	a.bySize.Ascend(Extent{Bytes: bytes}, func(e Extent) bool {
		fit, ok = e, true
		return false
	})
	return fit, ok
}

func (a *Allocator) atOrBefore(offset uint64) (found Extent, ok bool) {
	a.byStart.Descend(Extent{Offset: offset}, func(e Extent) bool {
		found, ok = e, true
		return false
	})
	return found, ok
}

func (a *Allocator) atOrAfter(offset uint64) (found Extent, ok bool) {
	a.byStart.Ascend(Extent{Offset: offset}, func(e Extent) bool {
		found, ok = e, true
		return false
	})
	return found, ok
}

func mustBeWhole(what string, offset, bytes uint64) {
	if bytes == 0 || bytes%Granule != 0 || offset%Granule != 0 {
		panic(fmt.Sprintf("extent: %s at %d of %d bytes is not a positive multiple of %d", what, offset, bytes, Granule))
	}
}
