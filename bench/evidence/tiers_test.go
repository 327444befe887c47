package evidence

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// tieredText is a page of a Manager that read so many pages from its SSD, of which one took more than a second.
const tieredText = `orbitkv_cache_block_hits_total 7
orbitkv_cache_block_misses_total 2
orbitkv_cache_tier_block_requests_total{tier="ram"} 3
orbitkv_cache_tier_block_requests_total{tier="ssd"} 4
orbitkv_cache_tier_block_requests_total{tier="miss"} 2
orbitkv_load_bytes_total 7000
orbitkv_ssd_prefetch_bytes_total 4096
orbitkv_ssd_write_bytes_total 8192
# TYPE orbitkv_ssd_prefetch_duration_seconds histogram
orbitkv_ssd_prefetch_duration_seconds_bucket{le="0.001"} 0
orbitkv_ssd_prefetch_duration_seconds_bucket{le="0.002"} 2
orbitkv_ssd_prefetch_duration_seconds_bucket{le="0.5"} 2
orbitkv_ssd_prefetch_duration_seconds_bucket{le="1"} 3
orbitkv_ssd_prefetch_duration_seconds_bucket{le="+Inf"} 4
orbitkv_ssd_prefetch_duration_seconds_sum 3
orbitkv_ssd_prefetch_duration_seconds_count 4
`

// look collects what a Manager's page says.
func look(t *testing.T, text string) Snapshot {
	t.Helper()
	values := map[string]float64{}
	if err := collect(strings.NewReader(text), managerWatched, values); err != nil {
		t.Fatal(err)
	}
	return Snapshot{Values: values}
}

func TestTiersAreReadWithTheTimesOfTheirReads(t *testing.T) {
	t.Parallel()
	zero := look(t, "orbitkv_cache_block_hits_total 0\norbitkv_cache_block_misses_total 0\norbitkv_cache_tier_block_requests_total{tier=\"ram\"} 0\n"+
		"orbitkv_cache_tier_block_requests_total{tier=\"miss\"} 0\norbitkv_load_bytes_total 0\n")
	got := TiersOf(zero, look(t, tieredText))
	want := &record.Tiers{
		AskedPages: 9, RAMPages: 3, SSDPages: 4, MissPages: 2, RestoredBytes: 7000, SSDReadBytes: 4096, SSDWriteBytes: 8192,
		SSDReads: []record.Bucket{{UpToMs: 2, N: 2}, {UpToMs: 1000, N: 1}, {N: 1}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the tiers are %+v, want %+v", got, want)
	}
	later := look(t, strings.NewReplacer(`{le="1"} 3`, `{le="1"} 5`, `"+Inf"} 4`, `"+Inf"} 6`, "count 4", "count 6").Replace(tieredText))
	if got := TiersOf(look(t, tieredText), later); !slices.Equal(got.SSDReads, []record.Bucket{{UpToMs: 1000, N: 2}}) || got.AskedPages != 0 {
		t.Errorf("between two looks the tiers are %+v", got)
	}
	if got := TiersOf(later, zero); got != nil {
		t.Errorf("a Manager that was started anew has the tiers %+v", got)
	}
	if got := TiersOf(look(t, ""), look(t, "")); got != nil {
		t.Errorf("without a Manager there are the tiers %+v", got)
	}
}

// TestTiersMustAgree changes one fact at a time of a request that came from the SSD.
func TestTiersMustAgree(t *testing.T) {
	t.Parallel()
	const pages = testMost / testPage
	whole := func() Case {
		c := truthful(facts{record.VLLM, record.OrbitKV, 0, testMost})
		c.Evicted = true
		c.After.Values[managerHits] += pages
		c.After.Values[series(managerTiers, "tier", "ssd")] += pages
		c.After.Values[managerSSDRead] += testMost * testBytes
		return c
	}
	for name, test := range map[string]struct {
		change func(*Case)
		why    string
	}{
		"nothing":             {func(*Case) {}, ""},
		"pages are lost":      {func(c *Case) { c.After.Values[managerMisses]++ }, "asked the Manager for 8 pages, and its tiers and its misses are 7"},
		"less was read":       {func(c *Case) { c.After.Values[managerSSDRead]-- }, "which are 917504 bytes, and it read 917503 from the SSD"},
		"a tier is not told":  {func(c *Case) { delete(c.After.Values, series(managerTiers, "tier", "ram")) }, "the Manager's tiers are not told of"},
		"a tier fell":         {func(c *Case) { c.After.Values[managerSSDRead] = 1 }, "started anew"},
		"memory was not left": {func(c *Case) { c.Evicted, c.After.Values[managerSSDRead] = false, c.Before.Values[managerSSDRead] }, ""},
	} {
		c := whole()
		test.change(&c)
		e := Classify(c)
		if (e.Source == record.FromExternal) != (test.why == "") || !strings.Contains(e.Why, test.why) {
			t.Errorf("%s: %s (%s), want %q", name, e.Source, e.Why, test.why)
		}
	}
	c := whole()
	answer := c.Answer
	if all := ClassifyBurst(c, []load.Answer{answer}); all[0].Source != record.FromExternal || all[0].Tiers == nil || all[0].Tiers.SSDPages != pages {
		t.Errorf("a burst is %+v", all[0])
	}
	c.After.Values[managerSSDRead] = c.Before.Values[managerSSDRead]
	if all := ClassifyBurst(c, []load.Answer{answer}); all[0].Source != record.Unverified {
		t.Errorf("a burst that read nothing from the SSD is %s", all[0].Source)
	}
	if e := Classify(truthful(facts{record.VLLM, record.CPU, 0, testMost})); e.Tiers != nil {
		t.Errorf("another backend has the tiers %+v", e.Tiers)
	}
}

// TestEveryWatchedMetricOfTheManagerExists keeps the names in step with the page of metrics, which is generated from the Manager's own table: what a Manager
// without an SSD tier does not serve counts as zero, and so would a name that nobody has.
func TestEveryWatchedMetricOfTheManagerExists(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, w := range managerWatched {
		name := w.name
		if w.histogram != "" {
			name = w.histogram
		}
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("%s is no metric of the Manager", name)
		}
	}
}
