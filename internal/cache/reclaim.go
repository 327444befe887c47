package cache

import (
	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// reclaimEffort bounds what one reservation may evict: this many times its own bytes. Where the pool is so fragmented that more is needed,
// the reservation gets no room, and the next one goes on from the space that this one made.
const reclaimEffort = 4

// allocate finds places for up to n pages of an instance in scratch.locations, by part, and returns for how many. It evicts under pressure: a
// batch of victims is at most what is still missing or ReclaimBatchPages pages; then the allocators are asked again, whose largest
// contiguous extent decides, not the sum.
func (c *Cache) allocate(inst *instance, n int) (have int) {
	pageBytes := inst.geometry.pageBytes
	c.resetLocations(len(inst.geometry.partBytes))
	evicted := uint64(0)
	for have < n && c.couldFit(inst) {
		have = c.place(inst, have, n)
		missing := uint64(n-have) * pageBytes
		if missing == 0 || evicted >= reclaimEffort*uint64(n)*pageBytes {
			break
		}
		bytes := c.reclaim(inst, missing)
		if bytes == 0 {
			break
		}
		evicted += bytes
	}
	if have < n {
		c.counters.allocFailures++
	}
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

// reclaim drops one batch of victims and returns the bytes that came back: pages of dead namespaces first, then in class order the pages used
// longest ago. A referenced page is in no list, so it is never a victim; a page outside the arenas that the instance can use would not
// help it.
func (c *Cache) reclaim(inst *instance, want uint64) (bytes uint64) {
	if c.deadPages > 0 {
		if bytes = c.sweepDead(sweepRecords); bytes > 0 {
			return bytes
		}
	}
	pages := 0
	for _, class := range index.Classes {
		h, ok := c.index.Oldest(class)
		for looked := 0; ok && bytes < want && pages < ReclaimBatchPages && looked < sweepRecords; looked++ {
			newer, more := c.index.Newer(h)
			if c.usable(h, &inst.usable) {
				bytes += c.evict(c.pageOf(h))
				pages++
			}
			h, ok = newer, more
		}
	}
	return bytes
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

// sweepDead looks at the next records for sealed pages of dead namespaces and retires them.
func (c *Cache) sweepDead(records uint32) (bytes uint64) {
	if c.deadPages == 0 {
		return 0
	}
	end := min(c.sweepCursor+records, c.index.Records())
	c.index.Scan(c.sweepCursor, end, func(p index.Page) bool {
		if ns := c.namespaces[p.Namespace]; p.State == index.Sealed && ns.dead {
			footprint := ns.geometry.pageBytes
			if c.retirePage(p) {
				bytes += footprint
			}
		}
		return true
	})
	if c.sweepCursor = end; end >= c.index.Records() {
		c.sweepCursor = 0
	}
	return bytes
}

// CleanupReport is what a cleanup did. Bytes are padded footprints.
type CleanupReport struct {
	EvictedPages         uint64 `json:"evicted_pages"`
	EvictedBytes         uint64 `json:"evicted_bytes"`
	ReclaimedBytes       uint64 `json:"reclaimed_bytes"`        // free when the call returned
	StillReferencedPages uint64 `json:"still_referenced_pages"` // out of the index, freed with their last reference
}

// Cleanup empties the pool: every sealed page leaves the index, referenced ones are freed with their last reference (I6). What is being
// published goes on and becomes visible.
func (c *Cache) Cleanup() CleanupReport { return c.dropAll(false) }

// Clear forgets every page: as Cleanup, and what is being published never becomes visible.
func (c *Cache) Clear() CleanupReport { return c.dropAll(true) }

// dropAll takes the mutex anew for each step, so that queries go on.
func (c *Cache) dropAll(abandon bool) CleanupReport {
	var report CleanupReport
	for from := uint32(0); ; from += sweepRecords {
		c.enter()
		if from == 0 && abandon {
			for _, r := range inOrder(c.reservations) {
				if !r.instance.private {
					c.abandonPages(r)
				}
			}
		}
		end := c.index.Records()
		c.index.Scan(from, min(from+sweepRecords, end), func(p index.Page) bool {
			if p.State == index.Sealed && p.Class != index.Unlisted {
				footprint := c.namespaces[p.Namespace].geometry.pageBytes
				report.EvictedPages++
				report.EvictedBytes += footprint
				if c.evict(p) > 0 {
					report.ReclaimedBytes += footprint
				} else {
					report.StillReferencedPages++
				}
			}
			return true
		})
		c.leave()
		if from+sweepRecords >= end {
			return report
		}
	}
}
