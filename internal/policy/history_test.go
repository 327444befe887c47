package policy

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// pageOf is one of the pages of a test; neighbours differ in namespace and group, too.
func pageOf(n int) Page {
	p := Page{Namespace: uint32(n % 3), Group: uint16(n % 2)}
	binary.LittleEndian.PutUint64(p.Key[8*(n%4):], uint64(n/4)+1)
	return p
}

// TestHistoryIsTheLastDifferentPages compares with the definition: a page is remembered when fewer than HistoryPages others were added after it.
func TestHistoryIsTheLastDifferentPages(t *testing.T) {
	const pages, adds, checks = 20_000, 90_000, 3_000
	random := rand.New(rand.NewPCG(1, 2))
	h := NewHistory()
	added := map[int]int{} // when each page was added last
	oldest := func() int { // the time from which on pages are remembered
		if len(added) <= HistoryPages {
			return 0
		}
		times := make([]int, 0, len(added))
		for _, at := range added {
			times = append(times, at)
		}
		slices.Sort(times)
		return times[len(times)-HistoryPages]
	}
	for step := 1; step <= adds; step++ {
		n := random.IntN(pages)
		if step%5 == 0 {
			n = random.IntN(200) // some come often, so that the order is not that of first arrival
		}
		before := h.Has(pageOf(n))
		if known := h.Add(pageOf(n)); known != before {
			t.Fatalf("page %d: has said %v, add said %v", n, before, known)
		}
		added[n] = step
		if step%checks != 0 {
			continue
		}
		since := oldest()
		if want := min(len(added), HistoryPages); h.Len() != want {
			t.Fatalf("%d pages after %d adds, want %d", h.Len(), step, want)
		}
		for page, at := range added {
			if h.Has(pageOf(page)) != (at >= since) {
				t.Fatalf("page %d added at %d of %d, remembered from %d on: %v", page, at, step, since, h.Has(pageOf(page)))
			}
		}
	}
}

func TestHistoryKeepsIdentitiesApart(t *testing.T) {
	h := NewHistory()
	p := Page{Namespace: 1, Group: 1, Key: [32]byte{31: 1}}
	h.Add(p)
	for _, other := range []Page{{2, 1, p.Key}, {1, 2, p.Key}, {1, 1, [32]byte{31: 2}}} {
		if h.Has(other) {
			t.Errorf("%+v is remembered as %+v", other, p)
		}
	}
	if !h.Has(p) {
		t.Error("the page that was added is not remembered")
	}
}

func BenchmarkHistory(b *testing.B) {
	h := NewHistory()
	pages := make([]Page, 4*HistoryPages)
	for i := range pages {
		pages[i] = pageOf(i)
		h.Add(pages[i])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.Add(pages[i%len(pages)])
	}
}
