package policy

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// counts is what a sketch without shared counters would know.
type counts map[int]*count

type count struct {
	door    bool
	counter int
}

func (m counts) use(n int) {
	c := m[n]
	if c == nil {
		c = &count{}
		m[n] = c
	}
	if c.door {
		c.counter = min(c.counter+1, counterMax)
	}
	c.door = true
}

func (m counts) age() {
	for _, c := range m {
		c.door, c.counter = false, c.counter/2
	}
}

func (m counts) estimate(n int) int {
	c := m[n]
	switch {
	case c == nil:
		return 0
	case c.door:
		return c.counter + 1
	}
	return c.counter
}

// zipf draws pages of which few are used often and most once.
func zipf(random *rand.Rand, pages int) func() int {
	z := rand.NewZipf(random, 1.1, 4, uint64(pages-1))
	return func() int { return int(z.Uint64()) }
}

func TestSketchNeverCountsLessAndSeldomMore(t *testing.T) {
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 3))
		const pages = 4000
		s := NewSketch(pages*pageBytesLow, seed)
		resident := uint64(800)
		draw, model, ages := zipf(random, pages), counts{}, s.age
		for range 60_000 {
			n := draw()
			s.Use(pageOf(n), resident)
			model.use(n)
			if s.age != ages {
				model.age()
				ages = s.age
			}
		}
		if ages < 6 {
			t.Fatalf("seed %d: the counts aged %d times", seed, ages)
		}
		more := 0
		for n := range pages {
			got, want := s.Estimate(pageOf(n)), model.estimate(n)
			if got < want {
				t.Errorf("seed %d: page %d is estimated %d, it counts %d", seed, n, got, want)
			}
			if got > want {
				more++
			}
		}
		if more > pages/50 {
			t.Errorf("seed %d: %d of %d pages are estimated too high", seed, more, pages)
		}
	}
}

func TestSketchCountsUpToItsBoundAndForgets(t *testing.T) {
	s := NewSketch(0, 1)
	for n := 1; n <= EstimateMax+5; n++ {
		s.Use(pageOf(1), 1<<20)
		if got := s.Estimate(pageOf(1)); got != min(n, EstimateMax) {
			t.Fatalf("after %d uses the estimate is %d", n, got)
		}
	}
	for _, want := range []int{7, 3, 1, 0, 0} {
		s.age++
		if got := s.Estimate(pageOf(1)); got != want {
			t.Fatalf("after %d ageings the estimate is %d, want %d", s.age, got, want)
		}
	}
	for range EstimateMax {
		s.Use(pageOf(2), 1<<20)
	}
	s.age += 1 << 40
	if got := s.Estimate(pageOf(2)); got != 0 {
		t.Errorf("after a long absence the estimate is %d", got)
	}
}

// A block that missed two ageings quarters each of its counters, whatever lies beside it.
func TestSketchCatchesUp(t *testing.T) {
	s := NewSketch(0, 1)
	for range EstimateMax + 1 {
		for n := range 4 * rowCounters * blocksMin {
			b, at := s.find(pageOf(n))
			b.knock(at)
			b.increment(at)
		}
	}
	s.age += 2
	for n := range 1000 {
		if got := s.Estimate(pageOf(n)); got != counterMax/4 {
			t.Fatalf("page %d is estimated %d two ageings after %d", n, got, EstimateMax)
		}
	}
}

// The period follows the pages that are there: an estimate of 1 TiB must not outlive ten times what a small pool holds.
func TestSketchAgesAfterTenTimesTheResidentPages(t *testing.T) {
	for _, c := range []struct {
		pool, resident, uses uint64
	}{{1 << 40, 300, 3000}, {1 << 40, 0, periodMin}, {0, 1 << 40, periodOfRow * rowCounters * blocksMin}} {
		s := NewSketch(c.pool, 1)
		for age, want := range []uint64{c.uses, c.uses - c.uses/2} { // half of the uses before still count
			got := uint64(0)
			for ; s.age == uint64(age) && got <= want; got++ {
				s.Use(pageOf(1), c.resident)
			}
			if got != want {
				t.Errorf("pool of %d bytes, %d pages: %d uses from ageing %d to the next, want %d", c.pool, c.resident, got, age, want)
			}
		}
	}
}

func TestSketchFollowsItsSeed(t *testing.T) {
	estimates := func(seed uint64) (got []int) {
		s := NewSketch(0, seed)
		for n := range 30_000 {
			s.Use(pageOf(n), 1<<20)
		}
		for n := range 1000 {
			got = append(got, s.Estimate(pageOf(n)))
		}
		return got
	}
	if !reflect.DeepEqual(estimates(1), estimates(1)) {
		t.Error("one seed gives two results")
	}
	if reflect.DeepEqual(estimates(1), estimates(2)) {
		t.Error("the seed changes nothing: whoever chooses keys knows which share their counters")
	}
}

func TestSketchKeepsIdentitiesApart(t *testing.T) {
	s := NewSketch(0, 1)
	p := Page{Namespace: 1, Group: 1, Key: [32]byte{31: 1}}
	s.Use(p, 1)
	for _, other := range []Page{{2, 1, p.Key}, {1, 2, p.Key}, {1, 1, [32]byte{31: 2}}} {
		if got := s.Estimate(other); got != 0 {
			t.Errorf("%+v is estimated %d, only %+v was used", other, got, p)
		}
	}
}

func TestSketchMemoryFollowsThePool(t *testing.T) {
	if size := uint64(reflect.TypeFor[block]().Size()); size != 128 || NewSketch(0, 1).Bytes() != blocksMin*size {
		t.Fatalf("a block has %d bytes, an empty sketch %d", size, NewSketch(0, 1).Bytes())
	}
	for _, pool := range []uint64{1 << 30, 30 << 30, 31 << 30, 1 << 40} {
		bytes, mib := NewSketch(pool, 1).Bytes(), pool>>20
		if bytes < 16*mib || bytes > 32*mib {
			t.Errorf("a pool of %d MiB has a sketch of %d bytes", mib, bytes)
		}
	}
}

func BenchmarkSketch(b *testing.B) {
	s := NewSketch(64<<30, 1)
	pages := make([]Page, 1<<16)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range pages {
		pages[i] = pageOf(random.IntN(1 << 20))
	}
	b.Run("use", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			s.Use(pages[i%len(pages)], 1<<15)
		}
	})
	b.Run("estimate", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			s.Estimate(pages[i%len(pages)])
		}
	})
}
