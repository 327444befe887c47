package cache

import (
	"iter"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// reclaimEffort bounds what one reservation may evict: this many times its own bytes. Where the pool is so fragmented that more is needed,
// the reservation gets no room, and the next one goes on from the space that this one made.
const reclaimEffort = 4

// makeRoom evicts until n pages of an instance find a place, as far as reclaimEffort goes. No hold of the mutex evicts more than
// ReclaimBatchPages pages: after as many it rests, and the caller must look anew at all that it knew when rested is true. Only what is short is
// evicted, by the sizes of the free extents, not by their sum.
func (c *Cache) makeRoom(inst *instance, n int) (rested bool) {
	most := reclaimEffort * uint64(n) * inst.geometry.pageBytes
	for more := true; more && most > 0 && inst.state != instanceGone; {
		var evicted uint64
		evicted, more = c.makeRoomNow(inst, n, most)
		most -= min(most, evicted)
		if more {
			c.rest()
			rested = true
		}
	}
	return rested
}

// makeRoomNow does so within one hold of the mutex: it evicts ReclaimBatchPages pages at most, and no more once it has evicted most bytes. It returns the
// bytes that came back, and whether the number of pages ended it, so that more may be short.
func (c *Cache) makeRoomNow(inst *instance, n int, most uint64) (evicted uint64, more bool) {
	if !c.couldFit(inst) {
		return 0, false
	}
	short, left := uint64(0), ReclaimBatchPages
	for evicted < most && left > 0 {
		if short == 0 {
			if short = c.shortage(inst, n); short == 0 {
				return evicted, false
			}
		}
		bytes, pages := c.reclaim(inst, short, left)
		if bytes == 0 {
			return evicted, false
		}
		short -= min(short, bytes)
		evicted += bytes
		left -= pages
	}
	return evicted, left <= 0
}

// shortage is the bytes that must at least come back before n pages of an instance can find a place.
func (c *Cache) shortage(inst *instance, n int) (bytes uint64) {
	geometry := &inst.geometry
	free := uint64(0)
	for _, a := range c.arenas {
		if inst.usable.has(a.id) {
			free += a.free.FreeBytes()
		}
	}
	if wanted := uint64(n) * geometry.pageBytes; wanted > free {
		bytes = wanted - free
	}
	for _, unit := range geometry.partBytes {
		fit := 0
		for _, a := range c.arenas {
			if inst.usable.has(a.id) && fit < n {
				fit += a.free.Fits(unit, n-fit)
			}
		}
		bytes = max(bytes, uint64(n-fit)*geometry.pageBytes)
	}
	return bytes
}

// allocate finds places for up to n pages of an instance in scratch.locations, by part, and returns for how many. makeRoom came before it; what
// it could not foresee, the parts of a page that compete for one extent, costs at most one more batch of victims.
func (c *Cache) allocate(inst *instance, n int) (have int) {
	pageBytes := inst.geometry.pageBytes
	c.resetLocations(len(inst.geometry.partBytes))
	left := ReclaimBatchPages
	for have < n && c.couldFit(inst) {
		have = c.place(inst, have, n)
		missing := uint64(n-have) * pageBytes
		if missing == 0 || left <= 0 || c.shortage(inst, n-have) > 0 {
			break // makeRoom went as far as it may
		}
		bytes, pages := c.reclaim(inst, missing, left)
		if bytes == 0 {
			break
		}
		left -= pages
	}
	c.counters.allocFailures += uint64(n - have)
	return have
}

// couldFit says whether the instance can use an arena that is as large as each part of a page, so that evicting can help at all.
func (c *Cache) couldFit(inst *instance) bool {
	for _, bytes := range inst.geometry.partBytes {
		fits := false
		for _, a := range c.arenas {
			fits = fits || inst.usable.has(a.id) && a.free.Bytes() >= bytes
		}
		if !fits {
			return false
		}
	}
	return true
}

func (c *Cache) resetLocations(parts int) {
	for len(c.scratch.locations) < parts {
		c.scratch.locations = append(c.scratch.locations, nil)
	}
	for part := range c.scratch.locations {
		c.scratch.locations[part] = c.scratch.locations[part][:0]
	}
}

// place allocates without evicting: every part of as many pages as there is room for. Pages beyond the part with the least room go back.
func (c *Cache) place(inst *instance, have, n int) int {
	got := n
	for part := range inst.geometry.partBytes {
		got = min(got, c.placePart(inst, part, n))
	}
	for part := range inst.geometry.partBytes {
		for i := got; i < len(c.scratch.locations[part]); i++ {
			c.freePart(inst.namespace, part, c.scratch.locations[part][i])
		}
		c.scratch.locations[part] = c.scratch.locations[part][:got]
	}
	return max(have, got)
}

// placePart lends extents of one part until n pages have one: adjacent where possible, on the part's own node first, only in arenas that every
// rank has mapped.
func (c *Cache) placePart(inst *instance, part, n int) int {
	unit := inst.geometry.partBytes[part]
	node := inst.geometry.nodes[part]
	for _, own := range []bool{true, false} {
		for _, a := range c.arenas {
			if (node < 0 || a.node == node) != own || !inst.usable.has(a.id) {
				continue
			}
			for len(c.scratch.locations[part]) < n {
				offset, units := a.free.AllocRun(unit, n-len(c.scratch.locations[part]))
				if units == 0 {
					break
				}
				for i := range units {
					at := wire.At(a.id, offset+uint64(i)*unit)
					c.scratch.locations[part] = append(c.scratch.locations[part], uint64(at))
				}
			}
		}
	}
	return len(c.scratch.locations[part])
}

func (c *Cache) freePart(ns *namespace, part int, location uint64) {
	at := wire.Location(location)
	c.arenaByID[at.Arena()].free.Free(at.Offset(), ns.geometry.partBytes[part])
}

// giveBack frees the places of the nth page in scratch.locations.
func (c *Cache) giveBack(ns *namespace, n int) {
	for part := range ns.geometry.partBytes {
		c.freePart(ns, part, c.scratch.locations[part][n])
	}
}

// reclaim drops one batch of victims, at most so many pages, and returns the bytes that came back and the pages that left the index: pages of dead
// namespaces first.
func (c *Cache) reclaim(inst *instance, want uint64, most int) (bytes uint64, pages int) {
	if c.deadPages > 0 {
		if bytes, pages = c.sweepDead(most); bytes > 0 {
			return bytes, pages
		}
	}
	for h := range c.victims(inst) {
		if bytes >= want || pages >= most {
			break
		}
		bytes += c.evict(c.pageOf(h))
		pages++
	}
	return bytes, pages
}

// victims yields the pages that an instance's reclaim would take, in class order those used longest ago first. A referenced page is in no list, so it
// is never a victim; a page outside the arenas that the instance can use would not help it. The page that is yielded may be evicted. Of each class
// it looks at sweepRecords pages at most.
func (c *Cache) victims(inst *instance) iter.Seq[index.Handle] {
	return func(yield func(index.Handle) bool) {
		for _, class := range index.Classes {
			h, ok := c.index.Oldest(class)
			for looked := 0; ok && looked < sweepRecords; looked++ {
				newer, more := c.index.Newer(h)
				if c.usable(h, &inst.usable) && !yield(h) {
					return
				}
				h, ok = newer, more
			}
		}
	}
}

// evict takes a page out of the index and returns the bytes that came back with it.
func (c *Cache) evict(p index.Page) (bytes uint64) {
	footprint := c.namespaces[p.Namespace].geometry.pageBytes
	c.counters.evictions[p.Class]++
	if !c.retirePage(p) {
		c.counters.evictionsReferenced++
		return 0
	}
	c.counters.reclaimedBytes += footprint
	return footprint
}

// sweepDead looks at the next sweepRecords records for sealed pages of dead namespaces and retires them, at most so many.
func (c *Cache) sweepDead(most int) (bytes uint64, pages int) {
	if c.deadPages == 0 {
		return 0, 0
	}
	end := min(c.sweepCursor+sweepRecords, c.index.Records())
	next := end
	c.index.Scan(c.sweepCursor, end, func(p index.Page) bool {
		ns := c.namespaces[p.Namespace]
		if p.State != index.Sealed || !ns.dead {
			return true
		}
		footprint := ns.geometry.pageBytes
		if c.retirePage(p) {
			bytes += footprint
		}
		pages++
		next = p.Handle.Entry() + 1
		return pages < most
	})
	if pages < most {
		next = end
	}
	if c.sweepCursor = next; next >= c.index.Records() {
		c.sweepCursor = 0
	}
	return bytes, pages
}

// CleanupReport is what a cleanup did. Bytes are padded footprints.
type CleanupReport struct {
	EvictedPages         uint64 `json:"evicted_pages"`
	EvictedBytes         uint64 `json:"evicted_bytes"`
	ReclaimedBytes       uint64 `json:"reclaimed_bytes"`        // free when the call returned
	StillReferencedPages uint64 `json:"still_referenced_pages"` // out of the index, freed with their last reference
}

// Cleanup empties the pool: every sealed page leaves the index, referenced ones are freed with their last reference (I6). What is being
// published goes on and becomes visible, and the tier keeps what it has.
func (c *Cache) Cleanup() CleanupReport { return c.dropAll(false) }

// Clear forgets every page, those of the tier too: as Cleanup, and what is being published or read never becomes visible.
func (c *Cache) Clear() CleanupReport { return c.dropAll(true) }

// dropAll takes the mutex anew for each batch of pages, so that queries go on.
func (c *Cache) dropAll(abandon bool) CleanupReport {
	var report CleanupReport
	c.enter()
	defer c.leave()
	if abandon {
		c.clearing++
		defer func() { c.clearing-- }()
		if c.config.Tier != nil {
			c.config.Tier.Clear()
			c.forgetReads()
		}
		for _, r := range inOrder(c.reservations) {
			if !r.instance.private {
				c.abandonPages(r)
			}
		}
	}
	for from := uint32(0); from < c.index.Records(); c.rest() {
		from = c.dropBatch(from, &report)
	}
	return report
}

// dropBatch drops the pages of the next records and returns the first record after them.
func (c *Cache) dropBatch(from uint32, report *CleanupReport) (next uint32) {
	next = min(from+sweepRecords, c.index.Records())
	dropped := 0
	c.index.Scan(from, next, func(p index.Page) bool {
		if p.State != index.Sealed || p.Class == index.Unlisted {
			return true
		}
		footprint := c.namespaces[p.Namespace].geometry.pageBytes
		report.EvictedPages++
		report.EvictedBytes += footprint
		if c.evict(p) > 0 {
			report.ReclaimedBytes += footprint
		} else {
			report.StillReferencedPages++
		}
		if dropped++; dropped == ReclaimBatchPages {
			next = p.Handle.Entry() + 1
			return false
		}
		return true
	})
	return next
}
