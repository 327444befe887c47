package journal

import (
	"math/rand/v2"
	"slices"
	"testing"

	"orbitkv/internal/ssd/format"
)

// TestPagesThatWereWrittenOverEnd compares with the rule itself, each page with each other one.
func TestPagesThatWereWrittenOverEnd(t *testing.T) {
	for seed := range uint64(2000) {
		draw := rand.New(rand.NewPCG(seed, 1))
		puts := make([]Put, draw.IntN(40))
		places := 1 + draw.IntN(200)
		for i := range puts {
			puts[i] = Put{
				Offset: uint64(draw.IntN(places)) * format.Granule, Bytes: uint64(1+draw.IntN(6)) * format.Granule,
				Sequence: uint64(1 + draw.IntN(60)),
			}
		}
		want, ended := slices.Clone(puts), uint64(0)
		for i, p := range puts {
			for k, q := range puts {
				later := q.Sequence > p.Sequence || q.Sequence == p.Sequence && k > i
				if later && q.Offset < p.span().end && p.Offset < q.span().end {
					want[i].Bytes = 0
				}
			}
			if want[i].Bytes == 0 {
				ended++
			}
		}
		got := endOverlapping(puts)
		if got != ended || !slices.Equal(puts, want) {
			t.Fatalf("seed %d: %d ended of %+v, want %d of %+v", seed, got, puts, ended, want)
		}
	}
}

// TestPagesUnderOneKeyEnd draws keys that differ in their later bytes alone, and others that do not differ.
func TestPagesUnderOneKeyEnd(t *testing.T) {
	for seed := range uint64(200) {
		draw := rand.New(rand.NewPCG(seed, 3))
		puts := make([]Put, draw.IntN(40))
		for i := range puts {
			puts[i] = Put{Bytes: uint64(draw.IntN(5)) * format.Granule, Sequence: uint64(i), Group: uint16(draw.IntN(2)), Namespace: uint32(draw.IntN(2))}
			puts[i].Key[draw.IntN(2)*20] = byte(draw.IntN(3))
		}
		want, ended := slices.Clone(puts), uint64(0)
		for i, p := range puts {
			replaced := func(q Put) bool { return q.Bytes > 0 && q.pageKey() == p.pageKey() }
			if p.Bytes > 0 && slices.ContainsFunc(puts[i+1:], replaced) {
				want[i].Bytes = 0
				ended++
			}
		}
		if got := endDuplicates(puts); got != ended || !slices.Equal(puts, want) {
			t.Fatalf("seed %d: %d ended of %+v, want %d of %+v", seed, got, puts, ended, want)
		}
	}
}
