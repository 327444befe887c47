package cache

import (
	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// newPage makes a reserved record for a key whose parts lie at the given locations.
func (c *Cache) newPage(ns *namespace, group uint16, key *wire.Key, parts []uint64, class index.Class, origin index.Origin) index.Handle {
	h := c.index.Reserve(ns.handle, group, (*index.Key)(key), parts[0], class, origin)
	if len(parts) > 1 {
		c.moreParts[h.Entry()] = append([]uint64(nil), parts[1:]...)
	}
	ns.pages++
	c.stateBytes[index.Reserved] += ns.geometry.pageBytes
	return h
}

// part returns where one part of a page lies.
func (c *Cache) part(h index.Handle, part int) wire.Location {
	if part == 0 {
		return wire.Location(c.index.Location(h))
	}
	return wire.Location(c.moreParts[h.Entry()][part-1])
}

// usable says whether every part of a page lies in an arena of the set.
func (c *Cache) usable(h index.Handle, set *arenaSet) bool {
	if !set.has(wire.Location(c.index.Location(h)).Arena()) {
		return false
	}
	for _, location := range c.moreParts[h.Entry()] {
		if !set.has(wire.Location(location).Arena()) {
			return false
		}
	}
	return true
}

// sealPage makes a page visible: every slice is committed (I9).
func (c *Cache) sealPage(ns *namespace, h index.Handle) {
	c.index.Seal(h)
	ns.sealed++
	c.moveBytes(ns, index.Reserved, index.Sealed)
}

// abandonPage takes a reserved page off its key, whose writers may go on.
func (c *Cache) abandonPage(ns *namespace, h index.Handle) {
	c.index.Abandon(h)
	c.moveBytes(ns, index.Reserved, index.Abandoned)
}

// quarantinePage takes a page away for ever: a writer of it may never end (I8).
func (c *Cache) quarantinePage(ns *namespace, h index.Handle, from index.State) {
	c.index.Quarantine(h)
	c.moveBytes(ns, from, index.Quarantined)
}

// retirePage takes a sealed page off its key. Its extent is free with its last reference (I6): the hook lastReference runs then.
func (c *Cache) retirePage(p index.Page) (freed bool) {
	ns := c.namespaces[p.Namespace]
	ns.sealed--
	if ns.dead && !ns.private {
		c.deadPages--
	}
	c.moveBytes(ns, index.Sealed, index.Retired)
	c.unprotect(p, ns.geometry.pageBytes)
	return c.index.Retire(p.Handle)
}

// creditPage says that bytes of a page arrived at a consumer; the first such report resolves a warmed page.
func (c *Cache) creditPage(inst *instance, h index.Handle) {
	first := c.index.Credit(h)
	if first && !inst.private {
		c.useful.restored(h, inst.geometry.pageBytes, c.now)
	}
}

func (c *Cache) pageOf(h index.Handle) index.Page {
	p, _ := c.index.Page(h)
	return p
}

// lastReference is called by the index when nobody can reach a page any more: only here is an extent freed.
func (c *Cache) lastReference(p index.Page) {
	ns := c.namespaces[p.Namespace]
	for i, bytes := range ns.geometry.partBytes {
		location := wire.Location(p.Location)
		if i > 0 {
			location = wire.Location(c.moreParts[p.Handle.Entry()][i-1])
		}
		c.arenaByID[location.Arena()].free.Free(location.Offset(), bytes)
	}
	delete(c.moreParts, p.Handle.Entry())
	c.digests.forget(p.Handle)
	if p.State == index.Retired {
		c.stateBytes[index.Retired] -= ns.geometry.pageBytes
		c.useful.ended(p.Handle, ns.geometry.pageBytes, c.now)
	} else {
		c.stateBytes[index.Abandoned] -= ns.geometry.pageBytes
	}
	ns.pages--
	c.dropIfEmpty(ns)
}

func (c *Cache) moveBytes(ns *namespace, from, to index.State) {
	c.stateBytes[from] -= ns.geometry.pageBytes
	c.stateBytes[to] += ns.geometry.pageBytes
}
