package cache

import "orbitkv/internal/index"

// With a protected segment the class retained is for pages that a query found resident, up to a share of the pool. What is saved, or read from the
// tier for a query, begins as probationary and goes first; past the share the oldest retained pages fall back. Without one everything of use
// is retained.

// demotionsMax bounds how many pages fall back for one that is promoted: many small pages may have to for a large one.
const demotionsMax = sweepRecords

// protectedMax is the bytes that retained pages may have; zero when no segment is protected.
func (cfg *Config) protectedMax() uint64 { return cfg.PoolBytes * cfg.ProtectedPercent / 100 }

// entryClass is the class in which a page of use begins.
func (c *Cache) entryClass() index.Class {
	if c.config.ProtectedPercent > 0 {
		return index.Probationary
	}
	return index.Retained
}

// promote moves pages up that a query found, by generation: to retained those that were resident before it asked, as far as the protected segment
// goes, and all of them at least to where pages of use begin. slow says by position which ones were read for it; nil is none.
func (c *Cache) promote(ns *namespace, pages []index.Handle, slow []bool) {
	for i, h := range pages {
		if hit := slow == nil || !slow[i]; hit && c.retain(ns, h) {
			continue
		}
		if p := c.pageOf(h); p.Class < c.entryClass() && c.index.Promote(h, c.entryClass()) {
			c.counters.promotions++
		}
	}
}

// retain makes a page retained, and says false when the protected segment has no room for it.
func (c *Cache) retain(ns *namespace, h index.Handle) bool {
	if c.config.ProtectedPercent == 0 {
		if c.index.Promote(h, index.Retained) {
			c.counters.promotions++
		}
		return true
	}
	if p := c.pageOf(h); p.State != index.Sealed || p.Class == index.Retained {
		return true // one that left the index meanwhile is not found again
	}
	bytes := ns.geometry.pageBytes
	if !c.makeProtectedRoom(bytes) {
		return false
	}
	c.index.Promote(h, index.Retained)
	c.counters.promotions++
	c.protectedBytes += bytes
	return true
}

// makeProtectedRoom lets the oldest retained pages fall back until bytes fit. A page that is larger than the segment never does, and one that is
// referenced does not fall back.
func (c *Cache) makeProtectedRoom(bytes uint64) bool {
	most := c.config.protectedMax()
	if bytes > most {
		return false
	}
	for range demotionsMax {
		if c.protectedBytes+bytes <= most {
			return true
		}
		h, ok := c.index.Oldest(index.Retained)
		if !ok {
			return false
		}
		c.index.Promote(h, index.Probationary)
		c.counters.demotions++
		c.protectedBytes -= c.namespaces[c.pageOf(h).Namespace].geometry.pageBytes
	}
	return false
}

// unprotect takes a page that leaves the index out of the segment.
func (c *Cache) unprotect(p index.Page, bytes uint64) {
	if c.config.ProtectedPercent > 0 && p.Class == index.Retained {
		c.protectedBytes -= bytes
	}
}
