package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestResampledMediansAreThoseOfPlainResampling draws whole resamples the long way and compares the two distributions of medians.
func TestResampledMediansAreThoseOfPlainResampling(t *testing.T) {
	const seed, plain, apart = 11, 40_000, 0.025
	source := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{1, 2, 5, 6, 20, 41} {
		values := make([]float64, n)
		for i := range values {
			values[i] = 20 + 3*source.NormFloat64()
		}
		medians := make([]float64, plain)
		resample := make([]float64, n)
		for i := range medians {
			for j := range resample {
				resample[j] = values[source.IntN(n)]
			}
			medians[i] = Median(resample)
		}
		if d := distance(medians, resampledMedians(values, random(seed))); d > apart {
			t.Errorf("n %d: the distributions are %.3f apart, expected at most %.3f", n, d, apart)
		}
	}
}

// distance is the largest difference between two empirical distributions.
func distance(a, b []float64) float64 {
	slices.Sort(a)
	slices.Sort(b)
	largest := 0.0
	for _, x := range slices.Concat(a, b) {
		largest = max(largest, math.Abs(share(a, x)-share(b, x)))
	}
	return largest
}

// share is the part of sorted values that are at most x. Sums of the same values may differ in their last bit.
func share(sorted []float64, x float64) float64 {
	at, _ := slices.BinarySearch(sorted, x+1e-9)
	return float64(at) / float64(len(sorted))
}
