package ssd

import "time"

// DurationBounds are the upper bounds of the buckets of every Histogram, in seconds.
var DurationBounds = [...]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// Histogram counts durations. Counts has one more bucket than there are bounds: what is longer than the last.
type Histogram struct {
	Counts [len(DurationBounds) + 1]uint64 `json:"counts"`
	Sum    float64                         `json:"sum_seconds"`
	Count  uint64                          `json:"count"`
}

func (h *Histogram) observe(d time.Duration) {
	seconds := d.Seconds()
	bucket := 0
	for bucket < len(DurationBounds) && seconds > DurationBounds[bucket] {
		bucket++
	}
	h.Counts[bucket]++
	h.Sum += seconds
	h.Count++
}
