package metrics

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"orbitkv/internal/cache"
)

// filled is a snapshot in which every number differs from zero.
func filled() cache.Stats {
	var s cache.Stats
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(uint64(i) + 1)
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]uint64{"x": uint64(i) + 1}))
		}
	}
	return s
}

func TestEveryMetricIsServedWithItsHelp(t *testing.T) {
	registry := New(filled, "test")
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

// unserved are numbers of the cache that have no metric of their own: read-ahead enters with the tiers that read ahead.
var unserved = []string{"WarmupPreparedBytesTotal", "WarmupRestoredBytesTotal", "WarmupUnusedBytesTotal", "WarmupPendingBytes"}

func TestEveryNumberOfTheCacheIsServed(t *testing.T) {
	read := func(s cache.Stats) (samples []sample) {
		for _, r := range table {
			if r.read != nil {
				samples = append(samples, r.read(s)...)
			}
		}
		return samples
	}
	all := reflect.ValueOf(filled())
	for i := range all.NumField() {
		name := all.Type().Field(i).Name
		without := filled()
		reflect.ValueOf(&without).Elem().Field(i).SetZero()
		if same := reflect.DeepEqual(read(filled()), read(without)); same != slices.Contains(unserved, name) {
			t.Errorf("cache.Stats.%s: no metric changes with it: %v", name, same)
		}
	}
}

func TestTiersSumToTheKeysAskedFor(t *testing.T) {
	s := cache.Stats{PageHitsTotal: 3, PageMissesTotal: 4}
	for _, r := range table {
		if r.name == "orbitkv_cache_tier_block_requests_total" {
			sum := 0.0
			for _, v := range r.read(s) {
				sum += v.value
			}
			if sum != 7 {
				t.Errorf("the tiers sum to %v, want 7", sum)
			}
		}
	}
}
