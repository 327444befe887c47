// Package stat is the arithmetic of small samples: quantiles, medians with bootstrap intervals, paired differences and differences of medians.
//
// Invariant: the same values and the same seed give the same figures; an interval is given only where the sample is large enough
// for it to mean what it says (IntervalMin). A ratio is a ratio of two medians; there is no mean of ratios here.
//
// Concurrency: pure functions, safe from any goroutine. It must not know what the values measure.
package stat
