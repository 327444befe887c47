package twin

import "maps"

const (
	sectorBytes     = 512
	blockBytes      = 4 << 10 // unit of allocation
	sectorsPerBlock = blockBytes / sectorBytes
)

// block is never changed once it stands in a content, so that contents share them.
type block [blockBytes]byte

// content is what a file holds: blocks by their number, and zeros where there is none.
type content struct {
	blocks   map[int64]*block
	size     int64
	reserved int64 // blocks from the start that are allocated, written or not
	beyond   int64 // written blocks behind the reserved ones
}

func newContent() content { return content{blocks: map[int64]*block{}} }

func (c *content) clone() content {
	copied := *c
	copied.blocks = maps.Clone(c.blocks)
	return copied
}

// allocated is the number of blocks that the content occupies.
func (c *content) allocated() int64 { return c.reserved + c.beyond }

// has says whether a block is allocated.
func (c *content) has(number int64) bool { return number < c.reserved || c.blocks[number] != nil }

func (c *content) set(number int64, b *block) {
	if !c.has(number) {
		c.beyond++
	}
	c.blocks[number] = b
}

// copyOf is a block that may be changed until it is set.
func (c *content) copyOf(number int64) *block {
	fresh := &block{}
	if old := c.blocks[number]; old != nil {
		*fresh = *old
	}
	return fresh
}

// read fills p, whose bytes all lie inside the size.
func (c *content) read(p []byte, offset int64) {
	for len(p) > 0 {
		within := offset % blockBytes
		n := min(int64(len(p)), blockBytes-within)
		if b := c.blocks[offset/blockBytes]; b != nil {
			copy(p[:n], b[within:])
		} else {
			clear(p[:n])
		}
		p, offset = p[n:], offset+n
	}
}

// write puts p at an offset and extends the size.
func (c *content) write(p []byte, offset int64) {
	c.size = max(c.size, offset+int64(len(p)))
	for len(p) > 0 {
		within := offset % blockBytes
		n := min(int64(len(p)), blockBytes-within)
		fresh := &block{}
		if n < blockBytes {
			fresh = c.copyOf(offset / blockBytes)
		}
		copy(fresh[within:], p[:n])
		c.set(offset/blockBytes, fresh)
		p, offset = p[n:], offset+n
	}
}

// needs is how many of the blocks from first up to end are not allocated.
func (c *content) needs(first, end int64) int64 {
	first = max(first, c.reserved)
	missing := max(0, end-first)
	if missing < int64(len(c.blocks)) {
		for number := first; number < end; number++ {
			if c.blocks[number] != nil {
				missing--
			}
		}
		return missing
	}
	for number := range c.blocks {
		if number >= first && number < end {
			missing--
		}
	}
	return missing
}

// fits is how many of so many bytes at an offset can be written when so many blocks more may be allocated.
func (c *content) fits(offset, bytes, blocks int64) int64 {
	end := offset + bytes
	for number := offset / blockBytes; number*blockBytes < end; number++ {
		if c.has(number) {
			continue
		}
		if blocks--; blocks < 0 {
			return max(0, number*blockBytes-offset)
		}
	}
	return bytes
}

// resize cuts or extends the content. What is cut reads as zeros when the content grows again.
func (c *content) resize(size int64) {
	if size < c.size {
		c.cut(size)
	}
	c.size = size
}

// cut forgets everything from an offset on.
func (c *content) cut(size int64) {
	end := blocksFor(size)
	for number := range c.blocks {
		if number >= end {
			delete(c.blocks, number)
		}
	}
	if within := size % blockBytes; within != 0 && c.blocks[size/blockBytes] != nil {
		last := c.copyOf(size / blockBytes)
		clear(last[within:])
		c.blocks[size/blockBytes] = last
	}
	c.reserve(min(c.reserved, end))
}

// reserve allocates the first blocks and no others that are not written.
func (c *content) reserve(blocks int64) {
	c.reserved, c.beyond = blocks, 0
	for number := range c.blocks {
		if number >= blocks {
			c.beyond++
		}
	}
}

// flip turns all bits of so many bytes, as far as the content goes.
func (c *content) flip(offset, bytes int64) {
	for at := offset; at < min(offset+bytes, c.size); at++ {
		changed := c.copyOf(at / blockBytes)
		changed[at%blockBytes] ^= 0xff
		c.set(at/blockBytes, changed)
	}
}

func blocksFor(bytes int64) int64 { return (bytes + blockBytes - 1) / blockBytes }

func sectorsFor(bytes int64) int64 { return (bytes + sectorBytes - 1) / sectorBytes }
