package journal

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/tidwall/btree"

	"orbitkv/internal/ssd/format"
)

var little = binary.LittleEndian

// span is bytes of the payload file, from the first to before the last.
type span struct{ first, end uint64 }

func (p *Put) span() span { return span{p.Offset, p.Offset + format.ExtentBytes(p.Bytes)} }

// sound leaves, of pages in the order in which they came, those into whose extent and under whose key no later one came.
func sound(puts []Put, problems map[string]uint64) []Put {
	overlapping := endOverlapping(puts)
	duplicate := endDuplicates(puts)
	if overlapping+duplicate == 0 {
		return puts
	}
	for reason, n := range map[string]uint64{Overlapping: overlapping, Duplicate: duplicate} {
		if n > 0 {
			problems[reason] += n
		}
	}
	return slices.DeleteFunc(puts, func(p Put) bool { return p.Bytes == 0 })
}

// endDuplicates ends each page under whose key a later one lies, and says how many they were. Pages are told apart by 8 bytes of their keys, and by all of
// them only where those are equal.
func endDuplicates(puts []Put) (ended uint64) {
	seen := make(map[uint64]uint32, len(puts))
	clashes := map[pageKey]bool{}
	for i := len(puts) - 1; i >= 0; i-- {
		p := &puts[i]
		if p.Bytes == 0 {
			continue
		}
		short := little.Uint64(p.Key[:]) ^ uint64(p.Namespace)<<32 ^ uint64(p.Group)
		later, found := seen[short]
		switch {
		case !found:
			seen[short] = uint32(i)
		case puts[later].pageKey() == p.pageKey() || clashes[p.pageKey()]:
			p.Bytes = 0
			ended++
		default:
			clashes[p.pageKey()] = true
		}
	}
	return ended
}

// pageKey is what a page is looked up by.
type pageKey struct {
	key       [32]byte
	namespace uint32
	group     uint16
}

func (p *Put) pageKey() pageKey { return pageKey{p.Key, p.Namespace, p.Group} }

// endOverlapping ends (gives zero Bytes to) each page into whose extent a later one was written, and says how many they were. The sequence says which is
// later; it counts even when a still later one ended that page in its turn, since the bytes are gone.
func endOverlapping(puts []Put) (ended uint64) {
	order := make([]placed, len(puts))
	for i := range order {
		order[i] = placed{puts[i].Offset, uint32(i)}
	}
	slices.SortFunc(order, func(x, y placed) int { return cmp.Compare(x.offset, y.offset) })
	for len(order) > 0 {
		end := puts[order[0].put].span().end
		cluster := 1
		for cluster < len(order) && order[cluster].offset < end {
			end = max(end, puts[order[cluster].put].span().end)
			cluster++
		}
		if cluster > 1 {
			ended += endCluster(puts, order[:cluster])
		}
		order = order[cluster:]
	}
	return ended
}

// placed is a page by its place on disk, small enough to be sorted fast.
type placed struct {
	offset uint64
	put    uint32
}

// endCluster ends pages of a cluster whose extents hang together.
func endCluster(puts []Put, cluster []placed) (ended uint64) {
	slices.SortFunc(cluster, func(x, y placed) int {
		return cmp.Or(cmp.Compare(puts[y.put].Sequence, puts[x.put].Sequence), cmp.Compare(y.put, x.put))
	})
	written := newSpans()
	for _, c := range cluster {
		if written.add(puts[c.put].span()) {
			puts[c.put].Bytes = 0
			ended++
		}
	}
	return ended
}

// spans is a set of bytes, as disjoint spans.
type spans struct {
	byFirst *btree.BTreeG[span]
}

func newSpans() *spans {
	less := func(x, y span) bool { return x.first < y.first }
	return &spans{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

// add adds a span and says whether any byte of it was in the set.
func (s *spans) add(added span) (overlapped bool) {
	merged := added
	for {
		var found span
		hit := false
		s.byFirst.Descend(span{first: merged.end - 1}, func(x span) bool {
			found, hit = x, x.end > merged.first
			return false
		})
		if !hit {
			s.byFirst.Set(merged)
			return overlapped
		}
		overlapped = overlapped || found.end > added.first && found.first < added.end
		merged = span{min(merged.first, found.first), max(merged.end, found.end)}
		s.byFirst.Delete(found)
	}
}
