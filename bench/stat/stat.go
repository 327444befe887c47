package stat

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// Resamples is how often a sample is drawn again for an interval.
	Resamples = 10_000
	// Confidence is the share of repeated experiments whose interval would hold the true value.
	Confidence = 0.95
	// IntervalMin is the smallest n with an interval. The widest interval that resampling can give reaches from the smallest to the largest value,
	// and it holds the true median with probability 1 - 2^(1-n): 94 % of the time for 5 values, but only 88 % for 4.
	IntervalMin = 5
	// P95Min and P99Min are the smallest n with the quantile: below them it would be interpolated from the largest value alone.
	P95Min = 20
	P99Min = 100
)

// Interval is a bootstrap confidence interval, in the unit of its values.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Estimate is a median with its sample size.
type Estimate struct {
	N        int       `json:"n"`
	Median   float64   `json:"median"`
	Interval *Interval `json:"interval,omitempty"` // nil for fewer than IntervalMin values
}

// Difference is median(B) - median(A) of two samples that are not paired.
type Difference struct {
	NA       int       `json:"n_a"`
	NB       int       `json:"n_b"`
	Median   float64   `json:"difference"`
	Interval *Interval `json:"interval,omitempty"` // nil when either sample has fewer than IntervalMin values
}

// Quantile returns the p-quantile of the values, interpolated linearly between the two nearest order statistics (the definition of R's type 7 and
// of NumPy), and NaN for no values. The values stay in their order.
func Quantile(values []float64, p float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), p)
}

func quantile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := p * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

// Median returns the middle of the values, the mean of the middle two for an even number, and NaN for none.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Rare returns the p95 or p99 where the sample is large enough for one, and nil otherwise.
func Rare(values []float64, p float64) *float64 {
	least := P99Min
	if p <= 0.95 {
		least = P95Min
	}
	if len(values) < least {
		return nil
	}
	q := Quantile(values, p)
	return &q
}

// OfMedian returns the median of the values and its percentile bootstrap interval.
//
// Percentile and not BCa: BCa takes its acceleration from the jackknife, which is inconsistent for a median (leaving out one value moves the median to
// one of two neighbours, whatever the value was), while percentile intervals of a median are close to the exact intervals of order statistics.
// No values give the zero Estimate.
func OfMedian(values []float64, seed uint64) Estimate {
	if len(values) == 0 {
		return Estimate{}
	}
	e := Estimate{N: len(values), Median: Median(values)}
	if len(values) >= IntervalMin {
		e.Interval = middle(resampledMedians(values, random(seed)))
	}
	return e
}

// OfPairs returns the median of b[i] - a[i] with its interval. Both slices have one length.
func OfPairs(a, b []float64, seed uint64) Estimate {
	differences := make([]float64, len(a))
	for i := range a {
		differences[i] = b[i] - a[i]
	}
	return OfMedian(differences, seed)
}

// OfDifference returns median(b) - median(a) with an interval from resampling both independently. Without values on both sides the difference is 0.
func OfDifference(a, b []float64, seed uint64) Difference {
	d := Difference{NA: len(a), NB: len(b)}
	if d.NA == 0 || d.NB == 0 {
		return d
	}
	d.Median = Median(b) - Median(a)
	if min(len(a), len(b)) < IntervalMin {
		return d
	}
	source := random(seed)
	left, right := resampledMedians(a, source), resampledMedians(b, source)
	for i := range right {
		right[i] -= left[i]
	}
	d.Interval = middle(right)
	return d
}

// random is the generator of one statistic. The second word keeps small seeds apart from the generators of workloads.
func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6f726269746b76)) }

// middle is the range that holds the Confidence share of the values; it sorts them.
func middle(values []float64) *Interval {
	slices.Sort(values)
	return &Interval{quantile(values, (1-Confidence)/2), quantile(values, (1+Confidence)/2)}
}

// resampledMedians returns the medians of Resamples samples of n drawn with replacement from n values, in constant time each.
//
// A value drawn with replacement is values[floor(n*U)] with U uniform, so the k-th smallest of a resample is values[floor(n*U(k))] with U(k) the k-th
// smallest of n uniform numbers. That one is drawn directly: it follows Beta(k, n-k+1), and the next one is the smallest of the n-k numbers that lie
// evenly above it. The medians have exactly the distribution that drawing all n would give.
func resampledMedians(values []float64, source *rand.Rand) []float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	k := (n + 1) / 2
	at := func(u float64) float64 { return sorted[min(int(u*float64(n)), n-1)] }
	medians := make([]float64, Resamples)
	for i := range medians {
		left, right := gamma(source, float64(k)), gamma(source, float64(n-k+1))
		u := left / (left + right)
		medians[i] = at(u)
		if n%2 == 0 {
			next := u + (1-u)*(1-math.Pow(source.Float64(), 1/float64(n-k)))
			medians[i] = (at(u) + at(next)) / 2
		}
	}
	return medians
}

// gamma draws from the gamma distribution of a shape of at least 1 and scale 1, by Marsaglia and Tsang's rejection from a transformed normal.
func gamma(source *rand.Rand, shape float64) float64 {
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := source.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-source.Float64()) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
