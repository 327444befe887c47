package metrics

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"orbitkv/internal/cache"
	"orbitkv/internal/ssd"
)

// fill gives every number of a struct of statistics a value that differs from zero and from its neighbours'.
func fill(t *testing.T, stats any) {
	t.Helper()
	v := reflect.ValueOf(stats).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Interface().(type) {
		case uint64:
			f.SetUint(uint64(i) + 1)
		case float64:
			f.SetFloat(float64(i) + 0.5)
		case map[string]uint64:
			f.Set(reflect.ValueOf(map[string]uint64{"x": uint64(i) + 1}))
		case map[string]float64:
			f.Set(reflect.ValueOf(map[string]float64{"x": float64(i) + 0.5}))
		case ssd.Histogram:
			f.Set(reflect.ValueOf(ssd.Histogram{Counts: [len(ssd.DurationBounds) + 1]uint64{2: uint64(i)}, Sum: float64(i), Count: uint64(i)}))
		default:
			t.Fatalf("%s is of a kind that no metric shows", v.Type().Field(i).Name)
		}
	}
}

func filled(t *testing.T) snapshot {
	s := snapshot{ssd: &ssd.Stats{}}
	fill(t, &s.cache)
	fill(t, s.ssd)
	return s
}

func TestEveryMetricIsServedWithItsHelp(t *testing.T) {
	now := filled(t)
	tier := &Tier{Stats: func() ssd.Stats { return *now.ssd }, DemandsDropped: func() uint64 { return 0 }}
	registry := New(func() cache.Stats { return now.cache }, tier, "test")
	registry.Channel.Closed.WithLabelValues("x").Inc()
	registry.Channel.Refused.WithLabelValues("x").Inc()
	registry.Channel.Turned.WithLabelValues(ReasonBound).Inc()
	registry.HTTPRefused.WithLabelValues("x").Inc()
	families, err := registry.Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]string{}
	for _, f := range families {
		served[f.GetName()] = f.GetHelp()
	}
	for _, r := range table {
		if help, ok := served[r.name]; !ok || help != r.help || help == "" {
			t.Errorf("%s is served with help %q", r.name, help)
		}
		if counter := strings.HasSuffix(r.name, "_total"); counter != (r.kind == Counter) {
			t.Errorf("%s is a %s", r.name, r.kind)
		}
	}
}

func TestWithoutAnSSDItsMetricsAreAbsent(t *testing.T) {
	now := filled(t)
	families, err := New(func() cache.Stats { return now.cache }, nil, "test").Gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "orbitkv_ssd_") {
			t.Errorf("%s is served", f.GetName())
		}
	}
}

// Whoever watches a rate needs the label before the first event.
func TestKnownLabelsOfTheSSDAreThereFromTheStart(t *testing.T) {
	want := map[string][]string{
		"orbitkv_ssd_evictions_total":         {"reclaimable", "probationary", "retained", "digest", "io", "short"},
		"orbitkv_ssd_recovery_problems_total": {"torn", "crc", "stale", "duplicate", "unknown_namespace", "out_of_bounds", "overlapping"},
	}
	for _, r := range table {
		labels, checked := want[r.name]
		if !checked {
			continue
		}
		delete(want, r.name)
		got := map[string]float64{}
		for _, s := range r.read(snapshot{ssd: &ssd.Stats{}}) {
			got[s.label] = s.value
		}
		for _, label := range labels {
			if value, there := got[label]; !there || value != 0 {
				t.Errorf("%s{%q} is %v, there %v", r.name, label, value, there)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("%v are no metrics", want)
	}
}

func TestBucketsOfAHistogramCountWhatIsBelow(t *testing.T) {
	h := ssd.Histogram{Count: 6, Sum: 20}
	h.Counts[0], h.Counts[2], h.Counts[len(ssd.DurationBounds)] = 1, 3, 2
	counts := buckets(h)
	for i, want := range []uint64{1, 1, 4, 4} {
		if got := counts[ssd.DurationBounds[i]]; got != want {
			t.Errorf("up to %v s: %d, want %d", ssd.DurationBounds[i], got, want)
		}
	}
	if last := counts[ssd.DurationBounds[len(ssd.DurationBounds)-1]]; last != 4 || len(counts) != len(ssd.DurationBounds) {
		t.Errorf("%d buckets, the last of %d: the longest are in none", len(counts), last)
	}
}

func TestEveryNumberIsServed(t *testing.T) {
	read := func(s snapshot) (samples []sample) {
		for _, r := range table {
			if r.read != nil {
				samples = append(samples, r.read(s)...)
			}
		}
		return samples
	}
	all := read(filled(t))
	numbers := func(s *snapshot) []reflect.Value {
		return []reflect.Value{reflect.ValueOf(&s.cache).Elem(), reflect.ValueOf(s.ssd).Elem()}
	}
	for of := range 2 {
		first := filled(t)
		for i := range numbers(&first)[of].NumField() {
			without := filled(t)
			stats := numbers(&without)[of]
			stats.Field(i).SetZero()
			name := stats.Type().Field(i).Name
			if reflect.DeepEqual(all, read(without)) {
				t.Errorf("%s.%s: no metric changes with it", stats.Type(), name)
			}
		}
	}
}

func TestTiersSumToTheKeysAskedFor(t *testing.T) {
	s := snapshot{cache: cache.Stats{PageHitsTotal: 5, PageHitsTierTotal: 2, PageMissesTotal: 4}}
	want := map[string]float64{"ram": 3, "ssd": 2, "miss": 4}
	for _, r := range table {
		if r.name == "orbitkv_cache_tier_block_requests_total" {
			got := map[string]float64{}
			for _, v := range r.read(s) {
				got[v.label] = v.value
			}
			if !maps.Equal(got, want) {
				t.Errorf("%v, want %v: they sum to what was asked for", got, want)
			}
		}
	}
}
