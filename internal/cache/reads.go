package cache

import (
	"fmt"
	"slices"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// read is one page that the tier brings into the pool. Its record is reserved until the end: no query finds it (I9), and its extent is nobody
// else's whatever becomes of those who wanted it (I2, I3).
type read struct {
	page      index.Handle
	namespace *namespace
	priority  ReadPriority
	wanted    []interest   // in the order in which they joined
	hints     []*hint      // that wait for it, until its end
	given     *preparation // who gave the page up first: it is charged until the end, for all that do
	since     time.Time
	forgotten bool // the cache was cleared: the bytes are not for anybody
	ended     bool
}

// readHangsAfter is the age at which nobody joins a read any more and whoever waits for it goes on without it: the disk hangs. The read itself runs to
// its end (I3).
const readHangsAfter = 30 * time.Second

// hangs says whether a read takes so long that it is not worth waiting for.
func (c *Cache) hangs(r *read) bool { return c.now.Sub(r.since) >= readHangsAfter }

// interest is one preparation's place for the page of a read.
type interest struct {
	preparation *preparation
	at          int
}

// giveUp takes a preparation's place off those that want the page. It says whether the read runs under its charge from here on (I4): one pays for all,
// so that a tier that hangs keeps no more of the budget than it keeps of the pool.
func (r *read) giveUp(p *preparation, at int) (pays bool) {
	i := slices.Index(r.wanted, interest{p, at})
	if i < 0 {
		panic(fmt.Sprintf("cache: a preparation gave up page record %d, which it did not want", r.page.Entry()))
	}
	r.wanted = slices.Delete(r.wanted, i, i+1)
	if r.given != nil {
		return false
	}
	r.given = p
	return true
}

// readAs is what the owner that starts a read makes of its page, for good: whoever joins changes neither class nor origin.
type readAs struct {
	class    index.Class
	origin   index.Origin
	priority ReadPriority
}

// startReadOf reads a page into the ith place of scratch.locations; nil, with the place free again, when the tier has lost it.
func (c *Cache) startReadOf(ns *namespace, group uint16, key *wire.Key, i int, as readAs) *read {
	parts := make([]uint64, len(ns.geometry.partBytes))
	for part := range parts {
		parts[part] = c.scratch.locations[part][i]
	}
	h := c.newPage(ns, group, key, parts, as.class, as.origin)
	r := &read{page: h, namespace: ns, priority: as.priority, since: c.now}
	c.reads[h.Entry()] = r
	if !c.config.Tier.Read(c.tierPage(ns, h, group, key), as.priority) {
		delete(c.reads, h.Entry())
		c.abandonPage(ns, h)
		c.index.Discard(h) // frees its place
		return nil
	}
	return r
}

// hasten makes a read one that a query waits for, so that it does not wait behind those of other queries that came later.
func (c *Cache) hasten(r *read, group uint16, key *wire.Key) {
	if r.priority != ReadDemand {
		r.priority = ReadDemand
		c.config.Tier.Hasten(r.namespace.stored, group, key)
	}
}

// tierPage says where a page lies.
func (c *Cache) tierPage(ns *namespace, h index.Handle, group uint16, key *wire.Key) TierPage {
	return TierPage{Page: h, Namespace: ns.stored, Group: group, Key: *key, Parts: c.partsOf(ns, h)}
}

func (c *Cache) partsOf(ns *namespace, h index.Handle) []TierPart {
	parts := make([]TierPart, len(ns.geometry.partBytes))
	for part, bytes := range ns.geometry.partBytes {
		parts[part] = TierPart{c.part(h, part), bytes}
	}
	return parts
}

// PageRead is the terminal report of a read: ok when every byte is there and agrees with the digest. Whoever waited for the page has it then, or is
// cut there.
func (c *Cache) PageRead(page index.Handle, digest Digest, ok bool) {
	c.enter()
	defer c.leave()
	r := c.reads[page.Entry()]
	if r == nil || r.page != page {
		panic(fmt.Sprintf("cache: the tier reports page record %d, which it does not read", page.Entry()))
	}
	delete(c.reads, page.Entry())
	r.ended = true
	ns := r.namespace
	warmed := c.pageOf(page).Origin == index.Warmed
	if ok = ok && !r.forgotten && !ns.dead; ok {
		c.sealPage(ns, page)
		c.compare(page, digest)
		if warmed {
			c.useful.prepared(page, ns.geometry.pageBytes, c.now)
		}
	} else {
		c.counters.readFailures++
		c.abandonPage(ns, page)
		c.index.Discard(page) // I2: the only writer has ended
	}
	bytes := ns.geometry.pageBytes
	if r.given != nil {
		c.drained(r.given, bytes)
	}
	for _, h := range r.hints {
		c.cameFor(h, page, ok, warmed)
	}
	for _, w := range r.wanted {
		c.arrived(r, w, ok)
	}
	c.advanceAll()
	c.advanceHints()
}

// arrived ends one preparation's wait for a page, unless the failure of this very page has cut it off there.
func (c *Cache) arrived(r *read, w interest, ok bool) {
	p := w.preparation
	if w.at >= len(p.slots) {
		return
	}
	p.slots[w.at].read = nil
	p.reads--
	if ok {
		c.fill(p, w.at, r.page)
		return
	}
	c.cut(p, w.at)
}

// forgetReads makes what is being read come to nobody, and the queries that wait for it ready with what is there.
func (c *Cache) forgetReads() {
	c.stopHints(hintDropped, func(*hint) bool { return true })
	for _, r := range c.reads {
		r.forgotten = true
	}
	for _, p := range slices.Clone(c.preparations) { // one that ends leaves the list
		if p.op != nil {
			c.stopReading(p.op)
		}
	}
}
