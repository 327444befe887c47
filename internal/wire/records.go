package wire

// Key is the hash of one page: a chained block hash of the engine, raw.
type Key [KeyBytes]byte

// ID16 is 16 raw bytes: an incarnation of the Manager or the token of a session.
type ID16 [16]byte

// Location is where one part of a page lies: the arena in the bits from LocationArenaBit up, the byte offset below.
type Location uint64

// At makes the location of a byte offset in an arena.
func At(arena uint16, offset uint64) Location {
	return Location(uint64(arena)<<LocationArenaBit | offset)
}

// Arena returns the arena id.
func (l Location) Arena() uint16 { return uint16(l >> LocationArenaBit) }

// Offset returns the byte offset in the arena.
func (l Location) Offset() uint64 { return uint64(l) & (1<<LocationArenaBit - 1) }

// Run is one part of Count consecutive pages whose extents are adjacent: page i lies at First plus i times the part's bytes.
type Run struct {
	Part  uint16
	Count uint32
	First Location
}

// Range names the ordinals First to First+Count-1.
type Range struct {
	First uint32
	Count uint32
}

// GrantRun is the same answer for Count consecutive keys of a reserve.
type GrantRun struct {
	Grant Grant
	Count uint32
}

// Slice says where one storage rank's bytes lie in each page: in which part, at which byte offset of it, and how many bytes unpadded.
type Slice struct {
	Rank   uint16
	Part   uint16
	Offset uint64
	Bytes  uint64
}

// AppendRun adds one page's part to runs and merges it into the last run when it lies right behind it. Runs of one part must be
// added in prefix order.
func AppendRun(runs []Run, part uint16, at Location, partBytes uint64) []Run {
	if n := len(runs); n > 0 {
		last := &runs[n-1]
		if last.Part == part && last.First.Arena() == at.Arena() && uint64(last.First)+uint64(last.Count)*partBytes == uint64(at) {
			last.Count++
			return runs
		}
	}
	return append(runs, Run{Part: part, Count: 1, First: at})
}

// CountRuns returns the pages that the runs of one part hold.
func CountRuns(runs []Run, part uint16) uint64 {
	var pages uint64
	for _, r := range runs {
		if r.Part == part {
			pages += uint64(r.Count)
		}
	}
	return pages
}

// AppendRange adds the ordinals first to first+count-1 and merges them into the last range when they continue it.
func AppendRange(ranges []Range, first, count uint32) []Range {
	if count == 0 {
		return ranges
	}
	if n := len(ranges); n > 0 && uint64(ranges[n-1].First)+uint64(ranges[n-1].Count) == uint64(first) {
		ranges[n-1].Count += count
		return ranges
	}
	return append(ranges, Range{First: first, Count: count})
}

// AppendGrant adds the answer for count keys and merges it into the last one when it is equal.
func AppendGrant(grants []GrantRun, grant Grant, count uint32) []GrantRun {
	if count == 0 {
		return grants
	}
	if n := len(grants); n > 0 && grants[n-1].Grant == grant {
		grants[n-1].Count += count
		return grants
	}
	return append(grants, GrantRun{Grant: grant, Count: count})
}

// CountRanges returns the ordinals that ranges name when they are strictly increasing, disjoint, not empty and below limit.
func CountRanges(ranges []Range, limit uint32) (ordinals uint32, err error) {
	var next uint64
	for _, r := range ranges {
		if r.Count == 0 || uint64(r.First) < next || uint64(r.First)+uint64(r.Count) > uint64(limit) {
			return 0, malformed("page range %d+%d is empty, out of order or beyond page %d", r.First, r.Count, limit)
		}
		next = uint64(r.First) + uint64(r.Count)
		ordinals += r.Count
	}
	return ordinals, nil
}
