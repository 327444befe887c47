package evidence

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"orbitkv/bench/record"
)

// TiersOf says what the tiers of OrbitKV's Manager did between two looks; nil where no Manager was looked at, or another one than before.
func TiersOf(before, after Snapshot) *record.Tiers {
	known := true
	moved := func(name string) float64 {
		was, then := before.Values[name]
		is, now := after.Values[name]
		known = known && then && now && is >= was
		return is - was
	}
	tier := func(name string) float64 { return moved(series(managerTiers, "tier", name)) }
	t := &record.Tiers{
		AskedPages: moved(managerHits) + moved(managerMisses),
		RAMPages:   tier("ram"), RemotePages: tier("remote"), SSDPages: tier("ssd"), MissPages: tier("miss"),
		RestoredBytes: moved(managerLoadBytes), SSDReadBytes: moved(managerSSDRead), SSDWriteBytes: moved(managerSSDWritten), SSDReads: bucketsOf(before, after, managerSSDReadTime),
	}
	if !known {
		return nil
	}
	return t
}

// bucketsOf returns what a histogram of seconds observed between two looks, the shortest first, without its empty buckets.
func bucketsOf(before, after Snapshot, histogram string) []record.Bucket {
	var bounds []float64
	for name := range after.Values {
		if bound, ok := boundOf(name, histogram); ok {
			bounds = append(bounds, bound)
		}
	}
	slices.Sort(bounds)
	grown := func(name string) float64 { return after.Values[name] - before.Values[name] }
	var all []record.Bucket
	below := 0.0 // observations that the buckets before hold
	add := func(upToMs, most float64) {
		if most > below {
			all = append(all, record.Bucket{UpToMs: upToMs, N: most - below})
			below = most
		}
	}
	for _, bound := range bounds {
		add(bound*1000, grown(bucketKey(histogram, bound)))
	}
	add(0, grown(histogram+"_count"))
	return all
}

// boundOf reads the bound out of the name of a histogram's bucket, seconds; the bucket without one is none.
func boundOf(name, histogram string) (bound float64, ok bool) {
	text, ok := strings.CutPrefix(name, histogram+`_bucket{le="`)
	if !ok {
		return 0, false
	}
	bound, err := strconv.ParseFloat(strings.TrimSuffix(text, `"}`), 64)
	return bound, err == nil && !math.IsInf(bound, 1)
}
