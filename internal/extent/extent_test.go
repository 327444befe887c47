package extent

import (
	"testing"

	"pgregory.net/rapid"
)

func TestBestFitTakesTheSmallestRegionThenTheLowestAddress(t *testing.T) {
	a := New(16 * Granule)
	for range 16 {
		if _, ok := a.Alloc(Granule); !ok {
			t.Fatal("a free arena refused a granule")
		}
	}
	a.Free(2*Granule, 3*Granule)
	a.Free(8*Granule, Granule)
	a.Free(12*Granule, Granule)
	if offset, ok := a.Alloc(Granule); !ok || offset != 8*Granule {
		t.Fatalf("got %d, want the lowest of the smallest regions, %d", offset, 8*Granule)
	}
	if offset, ok := a.Alloc(2 * Granule); !ok || offset != 2*Granule {
		t.Fatalf("got %d, want %d", offset, 2*Granule)
	}
}

func TestLargestFreeIsContiguousNotTheSum(t *testing.T) {
	a := New(8 * Granule)
	for range 8 {
		a.Alloc(Granule)
	}
	for i := uint64(0); i < 8; i += 2 {
		a.Free(i*Granule, Granule)
	}
	if a.FreeBytes() != 4*Granule || a.LargestFree() != Granule {
		t.Fatalf("free %d, largest %d", a.FreeBytes(), a.LargestFree())
	}
	if _, ok := a.Alloc(2 * Granule); ok {
		t.Fatal("two granules were lent from single free ones")
	}
	a.Free(Granule, Granule)
	if a.LargestFree() != 3*Granule {
		t.Fatalf("neighbours did not merge: largest %d", a.LargestFree())
	}
}

func TestRunIsOneRegionOrThePartThatFits(t *testing.T) {
	a := New(10 * Granule)
	offset, units := a.AllocRun(2*Granule, 4)
	if offset != 0 || units != 4 {
		t.Fatalf("run at %d of %d units", offset, units)
	}
	if offset, units = a.AllocRun(2*Granule, 4); offset != 8*Granule || units != 1 {
		t.Fatalf("rest at %d of %d units", offset, units)
	}
	if _, units = a.AllocRun(2*Granule, 4); units != 0 {
		t.Fatalf("a full arena lent %d units", units)
	}
	a.Free(2*Granule, 2*Granule)
	if a.LargestFree() != 2*Granule {
		t.Fatal("a unit of a run was not freed alone")
	}
}

func TestProgrammerErrorsPanic(t *testing.T) {
	for name, act := range map[string]func(a *Allocator){
		"double free":      func(a *Allocator) { a.Free(0, Granule); a.Free(0, Granule) },
		"free inside free": func(a *Allocator) { a.Free(0, 4*Granule); a.Free(Granule, Granule) },
		"free over free":   func(a *Allocator) { a.Free(Granule, Granule); a.Free(0, 4*Granule) },
		"outside":          func(a *Allocator) { a.Free(7*Granule, 2*Granule) },
		"not whole":        func(a *Allocator) { a.Free(0, Granule-1) },
		"nothing":          func(a *Allocator) { a.Alloc(0) },
		"wrap":             func(a *Allocator) { a.Free(1<<64-Granule, 2*Granule) },
	} {
		t.Run(name, func(t *testing.T) {
			a := New(8 * Granule)
			a.AllocRun(Granule, 8)
			defer func() {
				if recover() == nil {
					t.Fatal("no panic")
				}
			}()
			act(a)
		})
	}
}

// TestModel compares the allocator with an array of one owner a granule.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const granules = 48
		a := New(granules*Granule + 100)
		var owned [granules]bool
		largest := func() int {
			best, run := 0, 0
			for _, o := range owned {
				if run++; o {
					run = 0
				}
				best = max(best, run)
			}
			return best
		}
		lend := func(offset uint64, n int) {
			for i := int(offset / Granule); i < int(offset/Granule)+n; i++ {
				if owned[i] {
					t.Fatalf("granule %d was lent twice", i)
				}
				owned[i] = true
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(1, 12).Draw(t, "n")
				fits := largest() >= n
				offset, ok := a.Alloc(uint64(n) * Granule)
				if ok != fits {
					t.Fatalf("alloc of %d: ok=%v, largest free is %d", n, ok, largest())
				}
				if ok {
					lend(offset, n)
				}
			},
			"run": func(t *rapid.T) {
				unit, count := rapid.IntRange(1, 4).Draw(t, "unit"), rapid.IntRange(1, 8).Draw(t, "count")
				want := min(count, largest()/unit)
				offset, units := a.AllocRun(uint64(unit)*Granule, count)
				if units != want {
					t.Fatalf("run of %d x %d: %d units, want %d", count, unit, units, want)
				}
				lend(offset, units*unit)
			},
			"free": func(t *rapid.T) {
				from, n := rapid.IntRange(0, granules-1).Draw(t, "from"), rapid.IntRange(1, 12).Draw(t, "n")
				end := from
				for end < granules && end < from+n && owned[end] {
					owned[end] = false
					end++
				}
				if end > from {
					a.Free(uint64(from)*Granule, uint64(end-from)*Granule)
				}
			},
			"": func(t *rapid.T) {
				free := 0
				for _, o := range owned {
					if !o {
						free++
					}
				}
				if a.FreeBytes() != uint64(free)*Granule || a.LargestFree() != uint64(largest())*Granule {
					t.Fatalf("free %d largest %d, want %d and %d granules", a.FreeBytes(), a.LargestFree(), free, largest())
				}
				for unit := 1; unit <= 3; unit++ {
					fit := 0
					for _, e := range extents(a) {
						fit += int(e.Bytes / (uint64(unit) * Granule))
					}
					for _, most := range []int{0, 1, fit, fit + 5} {
						if got := a.Fits(uint64(unit)*Granule, most); got != min(fit, most) {
							t.Fatalf("%d units of %d granules fit, at most %d asked: %d", fit, unit, most, got)
						}
					}
				}
				if err := a.Check(); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func extents(a *Allocator) (found []Extent) {
	a.Ascend(func(e Extent) bool {
		found = append(found, e)
		return true
	})
	return found
}

// BenchmarkReserveAndFree is 128 pages of 9 MiB lent as runs and freed one by one.
func BenchmarkReserveAndFree(b *testing.B) {
	const page = 9 << 20
	a := New(4 << 30)
	for b.Loop() {
		left := 128
		var starts []Extent
		for left > 0 {
			offset, units := a.AllocRun(page, left)
			starts = append(starts, Extent{offset, uint64(units) * page})
			left -= units
		}
		for _, s := range starts {
			for o := s.Offset; o < s.End(); o += page {
				a.Free(o, page)
			}
		}
	}
}
