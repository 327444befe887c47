package policy

import "math/bits"

const (
	// EstimateMax is the largest count that a Sketch keeps of one page.
	EstimateMax = counterMax + 1

	counterMax    = 15 // of 4 bits
	sketchRows    = 4
	rowCounters   = 32 // of one block
	doorBits      = 7 * 64
	pageBytesLow  = 256 << 10 // a pool of pages that are no smaller has a counter in each row for every page
	blocksMin     = 32
	periodOfPages = 10      // uses, times the pages that are resident, between two ageings
	periodMin     = 1 << 10 // uses between two ageings while few pages are resident
	periodOfRow   = 8       // the most uses between two ageings, times the counters of a row
	nibbles       = 0x1111111111111111
)

// block is what one hash leads to, two cache lines: 4 rows of 32 counters, and the doorkeeper's bits. The part of a page's first use in a period is
// played by its two bits at the door, so that pages used once, which are most, do not wear out the counters.
type block struct {
	age      uint64 // of the sketch, when the block was looked at last
	door     [doorBits / 64]uint64
	counters [sketchRows][rowCounters / 16]uint64
}

// Sketch estimates how often a page was used of late: a count-min sketch with 4-bit counters behind a doorkeeper, whose counts are halved
// from time to time (TinyLFU). An estimate is never below the uses since the last ageing, up to EstimateMax, and exceeds them where pages share
// all their counters. Create it with NewSketch.
type Sketch struct {
	seed   uint64
	blocks []block
	age    uint64 // ageings so far; a block catches up when it is looked at, so that none is a long pause
	uses   uint64 // since the last ageing, and half of those before
}

// NewSketch returns a sketch for a pool of so many bytes. It takes 16 to 32 bytes for each MiB of the pool and never more.
func NewSketch(poolBytes, seed uint64) *Sketch {
	blocks := max(blocksMin, poolBytes/pageBytesLow/rowCounters)
	return &Sketch{seed: seed, blocks: make([]block, uint64(1)<<bits.Len64(blocks-1))}
}

// Use counts one use of a page. resident is the number of pages that the pool holds now: the counts age after ten times as many uses.
func (s *Sketch) Use(p Page, resident uint64) {
	b, at := s.find(p)
	if b.knock(at) {
		b.increment(at)
	}
	s.uses++
	if s.uses >= min(max(periodOfPages*resident, periodMin), s.usesMax()) {
		s.uses /= 2
		s.age++
	}
}

// Estimate is how often a page was used of late.
func (s *Sketch) Estimate(p Page) int {
	b, at := s.find(p)
	estimate := int(b.least(at))
	if b.opened(at) {
		estimate++
	}
	return estimate
}

// Bytes is the memory of the counters.
func (s *Sketch) Bytes() uint64 {
	const blockBytes = 8 + doorBits/8 + sketchRows*rowCounters/2
	return uint64(len(s.blocks)) * blockBytes
}

func (s *Sketch) usesMax() uint64 { return periodOfRow * rowCounters * uint64(len(s.blocks)) }

// place is where a page's counters and bits are in its block.
type place struct {
	counters [sketchRows]uint8
	door     [2]uint16
}

// find returns the block of a page, brought up to date, and the page's place in it.
func (s *Sketch) find(p Page) (*block, place) {
	hash := p.hash(s.seed)
	var at place
	for row := range at.counters {
		at.counters[row] = uint8(hash>>(5*row)) % rowCounters
	}
	for i := range at.door {
		at.door[i] = uint16(hash >> (20 + 9*i) % 512 * doorBits / 512)
	}
	b := &s.blocks[hash>>38&uint64(len(s.blocks)-1)]
	b.catchUp(s.age)
	return b, at
}

// catchUp halves the counts once for each ageing that the block missed.
func (b *block) catchUp(age uint64) {
	missed := age - b.age
	if missed == 0 {
		return
	}
	b.age = age
	clear(b.door[:])
	mask := uint64(counterMax) >> missed * nibbles // of what is left of each counter
	for row := range b.counters {
		for i, word := range b.counters[row] {
			b.counters[row][i] = word >> missed & mask
		}
	}
}

// knock marks a page at the door and says whether it was there before.
func (b *block) knock(at place) (before bool) {
	before = b.opened(at)
	for _, bit := range at.door {
		b.door[bit/64] |= 1 << (bit % 64)
	}
	return before
}

func (b *block) opened(at place) bool {
	for _, bit := range at.door {
		if b.door[bit/64]&(1<<(bit%64)) == 0 {
			return false
		}
	}
	return true
}

func (b *block) counter(row int, at place) uint64 {
	n := at.counters[row]
	return b.counters[row][n/16] >> (4 * (n % 16)) & counterMax
}

func (b *block) least(at place) uint64 {
	least := uint64(counterMax)
	for row := range sketchRows {
		least = min(least, b.counter(row, at))
	}
	return least
}

// increment raises the page's counters that are the least: the others are already too high by what other pages put there.
func (b *block) increment(at place) {
	least := b.least(at)
	if least == counterMax {
		return
	}
	for row, n := range at.counters {
		if b.counter(row, at) == least {
			b.counters[row][n/16] += 1 << (4 * (n % 16))
		}
	}
}
