package cache

import (
	"fmt"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// offer hands a sealed page to the tier. The page is referenced until the tier says that its bytes are written (I1).
func (c *Cache) offer(ns *namespace, h index.Handle, group uint16, key *wire.Key) {
	switch {
	case !c.stores(ns):
		return
	case c.clearing > 0:
		c.counters.writeSkips[skipClearing]++
		return
	case c.writes[h] > 0: // the tier may be done with it, and its word on the way: a page has one write
		c.counters.writeSkips[skipPending]++
		return
	case !c.wantedByTier(ns, group, key):
		return
	}
	c.index.Hold(h)
	c.writes[h] = ns.geometry.pageBytes
	c.writeBytes += ns.geometry.pageBytes
	if !c.config.Tier.Write(c.tierPage(ns, h, group, key)) {
		c.endWrite(h)
	}
}

// PageWritten is the terminal report of a write. A page that could not be written is a miss of the tier, no more.
func (c *Cache) PageWritten(page index.Handle, digest Digest, ok bool) {
	c.enter()
	defer c.leave()
	if c.writes[page] == 0 {
		panic(fmt.Sprintf("cache: the tier reports page record %d, which it does not write", page.Entry()))
	}
	p := c.pageOf(page)
	if ok && !c.compare(page, digest) { // the page was damaged before it was written: so is what is stored, whose digest agrees with it
		c.config.Tier.Drop(c.namespaces[p.Namespace].stored, p.Group, (*wire.Key)(&p.Key))
	}
	c.endWrite(page)
}

func (c *Cache) endWrite(h index.Handle) {
	c.writeBytes -= c.writes[h]
	delete(c.writes, h)
	c.index.Drop(h)
}

// Offer hands those of the keys that are resident to the tier, which asked for them after Demanded. namespace is the tier's number.
func (c *Cache) Offer(namespace uint32, group uint16, keys []wire.Key) {
	c.enter()
	defer c.leave()
	ns := c.byStored[namespace]
	if ns == nil {
		return
	}
	for i := range keys {
		if h, state, ok := c.index.Find(ns.handle, group, (*index.Key)(&keys[i])); ok && state == index.Sealed {
			c.offer(ns, h, group, &keys[i])
		}
	}
}
