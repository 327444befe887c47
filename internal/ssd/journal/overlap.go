package journal

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	"orbitkv/internal/ssd/format"
)

// span is bytes of the payload file, from the first to before the last.
type span struct{ first, end uint64 }

func (p *Put) span() span { return span{p.Offset, p.Offset + format.ExtentBytes(p.Bytes)} }

// endOverlapping ends (gives zero Bytes to) each page into whose extent a later one was written, and says how many they were. The sequence says which is
// later; it counts even when a still later one ended that page in its turn, since the bytes are gone.
func endOverlapping(puts []Put) (ended uint64) {
	order := make([]uint32, len(puts))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(x, y uint32) int { return cmp.Compare(puts[x].Offset, puts[y].Offset) })
	for len(order) > 0 {
		end := puts[order[0]].span().end
		cluster := 1
		for cluster < len(order) && puts[order[cluster]].Offset < end {
			end = max(end, puts[order[cluster]].span().end)
			cluster++
		}
		if cluster > 1 {
			ended += endCluster(puts, order[:cluster])
		}
		order = order[cluster:]
	}
	return ended
}

// endCluster ends pages of a cluster whose extents hang together.
func endCluster(puts []Put, cluster []uint32) (ended uint64) {
	slices.SortFunc(cluster, func(x, y uint32) int {
		return cmp.Or(cmp.Compare(puts[y].Sequence, puts[x].Sequence), cmp.Compare(y, x))
	})
	written := newSpans()
	for _, i := range cluster {
		s := puts[i].span()
		if written.add(s) {
			puts[i].Bytes = 0
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
