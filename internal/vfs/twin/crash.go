package twin

import "math/rand/v2"

// change is one write, or one change of size, that no Sync has made durable.
type change struct {
	number   uint64   // of the file's changes, for a Sync to say which ones it covers
	first    int64    // sector that was written first; a cut writes the one that it goes through
	end      int64    // sector behind the last one, or first when none was
	blocks   []*block // what the written blocks held after it, from that of the first sector on
	size     int64    // the file's size after it
	reserved int64    // and its reserved blocks
}

// apply brings the whole change to a content.
func (c *change) apply(to *content) {
	to.resize(c.size)
	c.applyReserved(to)
	c.applySectors(to, func() bool { return true })
}

// applySize brings the size alone: a sector that a cut goes through keeps its old end, which is zeros in what the change wrote.
func (c *change) applySize(to *content) {
	if c.size < to.size {
		to.cut(sectorsFor(c.size) * sectorBytes)
	}
	to.size = c.size
	c.applyReserved(to)
}

func (c *change) applyReserved(to *content) {
	if to.reserved != c.reserved {
		to.reserve(c.reserved)
	}
}

// applySectors brings those of the written sectors that keep says yes to. The other sectors of a block are not this change's: what a
// failed Sync lost stays lost.
func (c *change) applySectors(to *content, keep func() bool) {
	for i, written := range c.blocks {
		number := c.first/sectorsPerBlock + int64(i)
		first := max(0, c.first-number*sectorsPerBlock)
		end := min(sectorsPerBlock, c.end-number*sectorsPerBlock)
		result, kept := to.copyOf(number), int64(0)
		for s := first; s < end; s++ {
			if keep() {
				copy(result[s*sectorBytes:(s+1)*sectorBytes], written[s*sectorBytes:])
				kept++
			}
		}
		switch kept {
		case 0:
		case sectorsPerBlock:
			to.set(number, written)
		default:
			to.set(number, result)
		}
	}
}

// settle returns what a disk may hold that lost its power after these changes. A file system keeps sizes in the order in which they
// came, so that those of a first part of the changes hold. Sectors follow no order.
func settle(base *content, changes []*change, draw *rand.Rand) content {
	result := base.clone()
	sizes := draw.IntN(len(changes) + 1)
	for i, c := range changes {
		if i < sizes {
			c.applySize(&result)
		}
		kept := draw.Float64() // part of this write; mostly none or all of it, as disks do
		switch draw.IntN(3) {
		case 0:
			kept = 0
		case 1:
			kept = 1
		}
		c.applySectors(&result, func() bool { return draw.Float64() < kept })
	}
	result.cut(result.size)
	return result
}

// flip turns all bits of so many bytes in what the change wrote.
func (c *change) flip(offset, bytes int64) {
	for i, written := range c.blocks {
		start := (c.first/sectorsPerBlock + int64(i)) * blockBytes
		fresh := *written
		for at := max(offset, start); at < min(offset+bytes, start+blockBytes); at++ {
			fresh[at-start] ^= 0xff
		}
		c.blocks[i] = &fresh
	}
}
