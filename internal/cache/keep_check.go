package cache

import "orbitkv/internal/index"

// keeping checks what the policies count: the protected segment against its pages and its bound, the page that is being scrubbed against its pin, and
// that digests are kept of living pages alone.
func (k *checker) keeping() {
	c := k.c
	protected := uint64(0)
	known := map[uint32]bool{}
	c.index.Scan(0, c.index.Records(), func(p index.Page) bool {
		known[p.Handle.Entry()] = true
		if p.State == index.Sealed && p.Class == index.Retained {
			protected += c.namespaces[p.Namespace].geometry.pageBytes
		}
		if p.Pinned != (p.Handle == c.scrubbed) {
			k.add(1, "page record %d is pinned: %v, being scrubbed is %d", p.Handle.Entry(), p.Pinned, c.scrubbed.Entry())
		}
		return true
	})
	if c.config.ProtectedPercent == 0 {
		protected = 0
	}
	if protected != c.protectedBytes || protected > c.config.protectedMax() {
		k.add(0, "retained pages have %d bytes, the counter says %d, the segment has %d", protected, c.protectedBytes, c.config.protectedMax())
	}
	if c.digests == nil {
		return
	}
	for chunk, part := range c.digests.chunks {
		for i := range part.sums {
			if entry := uint32(chunk*digestChunk + i); (part.sums[i] != 0 || part.writers[i] != 0) && !known[entry] {
				k.add(6, "the digest of page record %d outlived its page", entry)
			}
		}
	}
}
