package stat_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"orbitkv/bench/stat"
)

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s is %v, expected %v within %v", what, got, want, within)
	}
}

// TestQuantilesOfKnownValues compares with numpy.quantile's figures.
func TestQuantilesOfKnownValues(t *testing.T) {
	values := []float64{40, 10, 30, 20}
	for p, want := range map[float64]float64{0: 10, 0.1: 13, 0.25: 17.5, 0.5: 25, 0.9: 37, 0.95: 38.5, 1: 40} {
		near(t, "a quantile", stat.Quantile(values, p), want, 1e-12)
	}
	if !slices.Equal(values, []float64{40, 10, 30, 20}) {
		t.Error("the values were moved")
	}
	near(t, "the median of five", stat.Median([]float64{5, 1, 4, 2, 3}), 3, 0)
	near(t, "the median of one", stat.Median([]float64{7}), 7, 0)
	if !math.IsNaN(stat.Median(nil)) {
		t.Error("no values have a median")
	}
}

func TestRareQuantilesNeedEnoughValues(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(i)
	}
	if stat.Rare(values[:19], 0.95) != nil || stat.Rare(values[:99], 0.99) != nil {
		t.Error("too few values have a rare quantile")
	}
	near(t, "p95 of 0..99", *stat.Rare(values, 0.95), 94.05, 1e-9)
	near(t, "p99 of 0..99", *stat.Rare(values, 0.99), 98.01, 1e-9)
}

func TestFewValuesHaveNoInterval(t *testing.T) {
	few, enough := []float64{1, 2, 3, 4}, []float64{1, 2, 3, 4, 5}
	if e := stat.OfMedian(few, 1); e.Interval != nil || e.N != 4 || e.Median != 2.5 {
		t.Errorf("%+v", e)
	}
	if d := stat.OfDifference(few, enough, 1); d.Interval != nil || d.Median != 0.5 || d.NA != 4 || d.NB != 5 {
		t.Errorf("%+v", d)
	}
	if e, d := stat.OfMedian(nil, 1), stat.OfDifference(nil, enough, 1); e != (stat.Estimate{}) || d.Median != 0 || d.NB != 5 {
		t.Errorf("%+v and %+v of no values", e, d)
	}
	// The median of a resample of five is the smallest value in 5.8 % of the resamples, so the interval reaches from end to end.
	e := stat.OfMedian(enough, 1)
	near(t, "low", e.Interval.Low, 1, 0)
	near(t, "high", e.Interval.High, 5, 0)
}

func TestPairsAreDifferencesOfTheSameThing(t *testing.T) {
	a := []float64{100, 200, 300, 400, 500, 600}
	b := []float64{110, 211, 309, 410, 512, 608}
	e := stat.OfPairs(a, b, 3)
	near(t, "the median difference", e.Median, 10, 0)
	if e.Interval.Low < 8 || e.Interval.High > 12 {
		t.Errorf("the interval %+v is wider than the differences", *e.Interval)
	}
	unpaired := stat.OfDifference(a, b, 3)
	near(t, "the difference of medians", unpaired.Median, 9.5, 1e-9)
	if unpaired.Interval.Low > -100 || unpaired.Interval.High < 100 {
		t.Errorf("the interval %+v does not hold the spread between the values", *unpaired.Interval)
	}
}

// TestIntervalsCoverTheTruth repeats seeded experiments of a skewed distribution whose median is known, and counts how often the interval holds it.
func TestIntervalsCoverTheTruth(t *testing.T) {
	const experiments, truth, shift = 150, 30.0, 4.0
	source := rand.New(rand.NewPCG(20260920, 5))
	draw := func(n int, median float64) []float64 {
		values := make([]float64, n)
		for i := range values {
			values[i] = median * math.Exp(0.3*source.NormFloat64())
		}
		return values
	}
	for _, n := range []int{5, 25} {
		single, paired, unpaired := 0, 0, 0
		for experiment := range experiments {
			seed := uint64(experiment)
			a := draw(n, truth)
			if i := stat.OfMedian(a, seed).Interval; i.Low <= truth && truth <= i.High {
				single++
			}
			b := make([]float64, n)
			for i := range b {
				b[i] = a[i] + shift + source.NormFloat64()
			}
			if i := stat.OfPairs(a, b, seed).Interval; i.Low <= shift && shift <= i.High {
				paired++
			}
			if i := stat.OfDifference(a, draw(n, truth+shift), seed).Interval; i.Low <= shift && shift <= i.High {
				unpaired++
			}
		}
		for what, held := range map[string]int{"median": single, "paired difference": paired, "difference of medians": unpaired} {
			got := float64(held) / experiments
			if got < 0.88 || got == 1 {
				t.Errorf("n %d: the 95 %% interval of a %s holds the truth in %.3f of the experiments", n, what, got)
			}
			t.Logf("n %d: %s %.3f", n, what, got)
		}
	}
}

func TestTheSameSeedGivesTheSameFigures(t *testing.T) {
	values := []float64{3, 1, 4, 1, 5, 9, 2, 6, 5, 3}
	if a, b := stat.OfMedian(values, 9), stat.OfMedian(values, 9); *a.Interval != *b.Interval {
		t.Errorf("%+v and %+v", a, b)
	}
}
