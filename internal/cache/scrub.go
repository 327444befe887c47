package cache

import (
	"fmt"
	"maps"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// damagesMax is how much damage is kept until it is told; all of it is counted.
const damagesMax = 64

// ScrubPage is one page whose bytes are to be looked at. They stay what they are until ScrubDone.
type ScrubPage struct {
	Page  index.Handle
	Parts []TierPart
	Bytes uint64 // of all parts
}

// Damage is a page whose bytes are not those that were written: memory that lies, or a process that wrote where it must not.
type Damage struct {
	Namespace uint32
	Epoch     uint64
	Facts     map[string]string // of the namespace
	Group     uint16
	Key       wire.Key
	Parts     []TierPart
	Origin    string // how the bytes came into the pool
	Writer    Writer // zero when they came from the tier, or when it is forgotten
}

// ScrubNext gives out the next resident page of a pass over all records; false ends the pass, and the next call begins another. One page is out at a
// time. Config.Scrub must be set.
func (c *Cache) ScrubNext() (ScrubPage, bool) {
	c.enter()
	defer c.leave()
	if !c.scrubbed.Zero() {
		panic(fmt.Sprintf("cache: page record %d is still being scrubbed", c.scrubbed.Entry()))
	}
	for c.scrubCursor < c.index.Records() {
		from := c.scrubCursor
		c.scrubCursor = min(from+sweepRecords, c.index.Records())
		c.index.Scan(from, c.scrubCursor, func(p index.Page) bool {
			if p.State != index.Sealed || p.Class == index.Unlisted {
				return true
			}
			c.scrubbed, c.scrubCursor = p.Handle, p.Handle.Entry()+1
			return false
		})
		if !c.scrubbed.Zero() {
			c.index.Pin(c.scrubbed) // I1; its place among the victims stays as it is (I7)
			ns := c.namespaces[c.pageOf(c.scrubbed).Namespace]
			return ScrubPage{c.scrubbed, c.partsOf(ns, c.scrubbed), ns.geometry.pageBytes}, true
		}
		c.rest()
	}
	c.scrubCursor = 0
	c.counters.scrubPasses++
	return ScrubPage{}, false
}

// ScrubDone takes the digest of the page that ScrubNext gave out: its first sight, or one to compare. A page whose bytes differ from what is known of
// them is a miss at once, and among the next Damages.
func (c *Cache) ScrubDone(page index.Handle, digest Digest) {
	c.enter()
	defer c.leave()
	if page.Zero() || page != c.scrubbed {
		panic(fmt.Sprintf("cache: page record %d is not being scrubbed", page.Entry()))
	}
	c.scrubbed = index.Handle{}
	c.counters.scrubBytes += c.namespaces[c.pageOf(page).Namespace].geometry.pageBytes
	c.compare(page, digest)
	c.index.Unpin(page)
}

// Damages returns the damage that was found since the last call, by the scrubber or on the way to the tier, at most damagesMax pages.
func (c *Cache) Damages() []Damage {
	c.enter()
	defer c.leave()
	damages := c.damages
	c.damages = nil
	return damages
}

// compare remembers the first digest of a page. When a later one differs, the page is damaged: it leaves the index, and false is returned.
func (c *Cache) compare(h index.Handle, digest Digest) bool {
	if c.digests == nil {
		return true
	}
	part, i := c.digests.at(h)
	if known := part.sums[i]; known == 0 || known == digest.half() {
		part.sums[i] = digest.half()
		return true
	}
	p := c.pageOf(h)
	c.counters.damagedPages++
	if len(c.damages) < damagesMax {
		c.damages = append(c.damages, c.damageOf(p))
	}
	if p.State == index.Sealed {
		c.retirePage(p)
	}
	return false
}

func (c *Cache) damageOf(p index.Page) Damage {
	ns := c.namespaces[p.Namespace]
	return Damage{
		Namespace: ns.handle, Epoch: ns.epoch, Facts: maps.Clone(ns.facts), Group: p.Group, Key: wire.Key(p.Key), Parts: c.partsOf(ns, p.Handle),
		Origin: p.Origin.String(), Writer: c.digests.writer(p.Handle),
	}
}
