package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

const benchRun = 512

func filled(pages int) (*Index, []Key) {
	x := New(1, nil)
	source := rand.NewPCG(1, 2)
	keys := make([]Key, pages)
	for i := range keys {
		for j := 0; j < len(keys[i]); j += 8 {
			word := source.Uint64()
			for b := range 8 {
				keys[i][j+b] = byte(word >> (8 * b))
			}
		}
		x.Seal(x.Reserve(1, 0, &keys[i], uint64(i), Retained, Published))
	}
	return x, keys
}

// BenchmarkMemory reports the bytes of index memory for each page.
func BenchmarkMemory(b *testing.B) {
	for _, pages := range []int{100_000, 1_000_000, 3_200_000} {
		b.Run(fmt.Sprint(pages), func(b *testing.B) {
			for b.Loop() {
				x, _ := filled(pages)
				b.ReportMetric(float64(x.Bytes())/float64(pages), "B/page")
			}
		})
	}
}

// BenchmarkLookup is runs of 512 keys in prefix order, as a query reads them.
func BenchmarkLookup(b *testing.B) {
	x, keys := filled(2_000_000)
	source := rand.New(rand.NewPCG(3, 4))
	b.Run("hit", func(b *testing.B) {
		for b.Loop() {
			start := source.IntN(len(keys) - benchRun)
			for i := range keys[start : start+benchRun] {
				if _, _, ok := x.Find(1, 0, &keys[start+i]); !ok {
					b.Fatal("a page was not found")
				}
			}
		}
	})
	b.Run("hold and drop", func(b *testing.B) {
		handles := make([]Handle, benchRun)
		for b.Loop() {
			start := source.IntN(len(keys) - benchRun)
			for i := range handles {
				handles[i], _, _ = x.Find(1, 0, &keys[start+i])
				x.Hold(handles[i])
			}
			for i := len(handles) - 1; i >= 0; i-- {
				x.Drop(handles[i])
			}
		}
	})
}
