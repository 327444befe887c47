package cache

import (
	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// tier checks what is on its way between pool and tier: a page that is being read is reserved and nobody else's, everybody who wants it or gave
// it up is charged for it, and a page that is being written is referenced (I1, I2, I4). It adds the references that it finds.
func (k *checker) tier(refs map[index.Handle]uint32) {
	c := k.c
	bytes := uint64(0)
	for h, footprint := range c.writes {
		refs[h]++
		bytes += footprint
	}
	if bytes != c.writeBytes {
		k.add(1, "pages of %d bytes are being written to the tier, the counter says %d", bytes, c.writeBytes)
	}
	for entry, r := range c.reads {
		if p, live := c.index.Page(r.page); !live || p.State != index.Reserved || entry != r.page.Entry() || p.Refs != 0 {
			k.add(2, "page record %d is being read from the tier, it is %v with %d references, live %v", entry, p.State, p.Refs, live)
		}
	}
	for _, p := range c.preparations {
		k.preparation(p, refs)
	}
	for _, h := range c.hints {
		k.hint(h, refs)
	}
}

// preparation checks one prefix: its slots against its counters, and each read against the places that it fills.
func (k *checker) preparation(p *preparation, refs map[index.Handle]uint32) {
	reads := 0
	for i := range p.slots {
		s := &p.slots[i]
		switch {
		case s.held():
			refs[s.page]++
		case s.read != nil:
			reads++
			if k.c.reads[s.read.page.Entry()] != s.read {
				k.add(2, "a query waits for page record %d, which is not being read", s.read.page.Entry())
			}
		case i < p.next:
			k.add(5, "a query passed page %d of its prefix, which is neither held nor being read", i)
		}
	}
	old := 0
	for _, r := range k.c.reads {
		if r.given == p {
			old++
		}
	}
	if reads != p.reads || old != p.old {
		k.add(4, "a query waits for %d reads and gave %d up, its counters say %d and %d", reads, old, p.reads, p.old)
	}
	if (p.op == nil) != (p.phase == phaseDraining) || p.op != nil && (p.op.state != operationPreparing || p.op.preparation != p) {
		k.add(4, "a prefix in phase %s does not agree with its query", phaseMachine.Names[p.phase])
	}
	pages := uint64(len(p.slots) + p.old)
	if want := pages * p.instance.geometry.pageBytes; p.charged != want {
		k.add(4, "a prefix of %d pages that are held, read or given up is charged %d bytes, not %d", pages, p.charged, want)
	}
}

// preparing returns the keys that queries keep which read from the tier, in bytes, and the permits of those that were given up.
func (k *checker) preparing() (keyBytes, permits int) {
	for _, p := range k.c.preparations {
		if p.op != nil {
			keyBytes += len(p.op.keys) * wire.KeyBytes
		}
		if p.owing {
			permits++
		}
	}
	return keyBytes, permits
}
