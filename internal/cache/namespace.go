package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"slices"

	"orbitkv/internal/extent"
	"orbitkv/internal/wire"
)

// identity is what makes the bytes of two pages with one key the same.
type identity [sha256.Size]byte

// geometry is how a page of an instance is laid out: the padded slices of one NUMA node in rank order make a part, and each
// part is one extent.
type geometry struct {
	storage   []int        // storage ranks, ascending
	slices    []wire.Slice // one a storage rank, in the same order
	partBytes []uint64     // padded
	nodes     []int        // by part: the NUMA node that it should lie on, -1 for any
	pageBytes uint64       // padded footprint over all parts
	dataBytes uint64       // unpadded bytes of all slices
}

// storageIndex is the position of a rank among the storage ranks, -1 when it stores nothing.
func (g *geometry) storageIndex(rank int) int { return slices.Index(g.storage, rank) }

// sliceBytes is the most bytes that one rank restores of one page: its own slice, or all of a page that is stored once for all.
func (g *geometry) sliceBytes(rank int) uint64 {
	if i := g.storageIndex(rank); i >= 0 {
		return g.slices[i].Bytes
	}
	return g.dataBytes
}

// layOut computes the geometry of a page from the ranks of an instance. nodes are those of the pool: a rank on another node, or on none,
// counts as one on the first.
func layOut(ranks []rankSlot, nodes []int) geometry {
	var g geometry
	for rank, slot := range ranks {
		if !slot.storage {
			continue
		}
		node := -1
		if len(nodes) > 0 {
			node = nodes[0]
			if slices.Contains(nodes, slot.numa) {
				node = slot.numa
			}
		}
		part := slices.Index(g.nodes, node)
		if part < 0 {
			part = len(g.nodes)
			g.nodes = append(g.nodes, node)
			g.partBytes = append(g.partBytes, 0)
		}
		padded := (slot.sliceBytes + extent.Granule - 1) / extent.Granule * extent.Granule
		g.storage = append(g.storage, rank)
		g.slices = append(g.slices, wire.Slice{
			Rank: slot.number, Part: uint16(part), Offset: g.partBytes[part], Bytes: slot.sliceBytes,
		})
		g.partBytes[part] += padded
		g.pageBytes += padded
		g.dataBytes += slot.sliceBytes
	}
	return g
}

// namespace is one identity of bytes and the pages that have it. Instances with equal facts share it.
type namespace struct {
	handle   uint32
	identity identity
	epoch    uint64
	geometry geometry
	pages    uint64 // records, whatever their state
	sealed   uint64 // of these: found by queries
	users    int    // instances
	dead     bool   // unreachable for ever: its pages are swept
	private  bool
	stored   uint32 // the tier's number
	facts    map[string]string
}

// identify hashes everything that the bytes of a page depend on.
func identify(facts map[string]string, epoch uint64, world int, g *geometry) identity {
	h := sha256.New()
	text(h, "orbitkv namespace 1")
	number(h, uint64(len(facts)))
	for _, name := range slices.Sorted(maps.Keys(facts)) {
		text(h, name)
		text(h, facts[name])
	}
	number(h, epoch)
	number(h, uint64(world))
	number(h, uint64(len(g.slices)))
	for _, s := range g.slices {
		number(h, uint64(s.Rank))
		number(h, uint64(s.Part))
		number(h, s.Offset)
		number(h, s.Bytes)
	}
	var id identity
	h.Sum(id[:0])
	return id
}

func text(h hash.Hash, s string) {
	number(h, uint64(len(s)))
	h.Write([]byte(s))
}

func number(h hash.Hash, n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	h.Write(b[:])
}

// useNamespace finds or makes the namespace of an instance and counts the instance as its user.
func (c *Cache) useNamespace(facts map[string]string, epoch uint64, world int, g geometry) (*namespace, error) {
	id := identify(facts, epoch, world, &g)
	ns := c.identities[id]
	if ns == nil {
		var err error
		if ns, err = c.makeNamespace(epoch, g); err != nil {
			return nil, err
		}
		ns.identity, ns.facts = id, facts
		c.identities[id] = ns
		if c.config.Tier != nil {
			ns.stored = c.config.Tier.Namespace(id, epoch, g.pageBytes)
			c.byStored[ns.stored] = ns
		}
	}
	ns.users++
	return ns, nil
}

func (c *Cache) makeNamespace(epoch uint64, g geometry) (*namespace, error) {
	if len(c.namespaces) >= NamespacesMax {
		c.counters.busy++
		return nil, wire.Errorf(wire.StatusBusy, "%d namespaces have pages or users, the most that a Manager keeps; clear the cache", len(c.namespaces))
	}
	c.nextHandle++
	ns := &namespace{handle: c.nextHandle, epoch: epoch, geometry: g}
	c.namespaces[ns.handle] = ns
	return ns, nil
}

// leaveNamespace takes an instance off its namespace. Epoch zero is shared by whoever comes with the same facts, so its pages stay; any other
// epoch was drawn for one life of an engine and dies with its last user.
func (c *Cache) leaveNamespace(ns *namespace) {
	ns.users--
	if ns.users == 0 && (ns.epoch != 0 || ns.private) {
		c.killNamespace(ns)
	}
	c.dropIfEmpty(ns)
}

// killNamespace makes a namespace's pages unreachable at once. They are swept in steps; this call takes the first.
func (c *Cache) killNamespace(ns *namespace) {
	ns.dead = true
	delete(c.identities, ns.identity)
	if c.config.Tier != nil && !ns.private {
		c.config.Tier.DropNamespace(ns.stored)
		delete(c.byStored, ns.stored)
	}
	c.deadPages += ns.sealed
	c.sweepDead(ReclaimBatchPages)
}

func (c *Cache) dropIfEmpty(ns *namespace) {
	if ns.users == 0 && ns.pages == 0 {
		delete(c.namespaces, ns.handle)
		if c.identities[ns.identity] == ns {
			delete(c.identities, ns.identity)
			delete(c.byStored, ns.stored)
			if c.config.Tier != nil {
				c.config.Tier.ReleaseNamespace(ns.stored)
			}
		}
	}
}
