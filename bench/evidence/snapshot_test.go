package evidence

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"orbitkv/bench/record"
)

// TestCollect reads pages as the sources write them.
func TestCollect(t *testing.T) {
	t.Parallel()
	text := `# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="tiny"} 536.0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 5
vllm:prompt_tokens_by_source_total{engine="1",source="local_cache_hit"} 6
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 7
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 2
# TYPE vllm:ttft histogram
vllm:ttft_bucket{le="+Inf"} 1
vllm:ttft_sum 1
vllm:ttft_count 1
`
	values := map[string]float64{}
	if err := collect(strings.NewReader(text), vllmWatched, values); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{vllmPrompt: 1536, vllmLocal: 11, series(vllmBySource, "source", "local_compute"): 7, "vllm:num_requests_running": 2}
	if !maps.Equal(values, want) {
		t.Errorf("values %v, want %v", values, want)
	}
}

// TestCountersOfAnotherServerAreNoEvidence lets a source point to another page of counters.
func TestCountersOfAnotherServerAreNoEvidence(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(vllmPrompt + " 1\n")) }))
	defer other.Close()
	engine := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer engine.Close()
	s := NewScraper(record.VLLM, engine.URL, "", "")
	if look, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "status 302") {
		t.Errorf("%v, %v", look, err)
	}
}

// TestFirstUse tells a counter that its owner has not made yet from one that nobody serves.
func TestFirstUse(t *testing.T) {
	t.Parallel()
	cases := []struct {
		engine, page, name string
		value              float64
		known              bool
	}{
		{record.SGLang, "", sglangFinished, 0, false},
		{record.SGLang, sglangUp + " 2048\n", sglangFinished, 0, true},
		{record.SGLang, sglangUp + " 2048\n" + sglangFinished + " 3\n", sglangFinished, 3, true},
		{record.SGLang, sglangUp + " 2048\n", series(sglangPrefill, "mode", "host_hit"), 0, false},
		{record.SGLang, sglangUp + " 2048\n" + sglangCached + "{cache_source=\"device\"} 4\n", series(sglangCached, "cache_source", "host"), 0, true},
		{record.SGLang, sglangUp + " 2048\n", sglangLoadBytes, 0, false},
		{record.SGLang, sglangHiCache + " 9\n", sglangLoadBytes, 0, true},
		{record.VLLM, vllmPrompt + " 1\n", vllmHits, 0, false},
		{record.VLLM, vllmPrompt + " 1\n", vllmLoadBytes, 0, false},
		{record.VLLM, vllmOffload + "{transfer_type=\"CPU_to_GPU\"} 0\n", vllmLoadBytes, 0, true},
	}
	for _, c := range cases {
		values := map[string]float64{}
		if err := collect(strings.NewReader(c.page), engineWatched(c.engine), values); err != nil {
			t.Fatal(err)
		}
		if value, known := values[c.name]; value != c.value || known != c.known {
			t.Errorf("%q: %s is %g, %t; want %g, %t", c.page, c.name, value, known, c.value, c.known)
		}
	}
}

func TestPagesThatAreNone(t *testing.T) {
	t.Parallel()
	holds(t, collect(strings.NewReader("<html>"), vllmWatched, map[string]float64{}), "not understood")
	holds(t, collect(strings.NewReader(vllmPrompt+" NaN\n"), vllmWatched, map[string]float64{}), vllmPrompt+" is NaN")
	holds(t, collect(strings.NewReader(vllmPrompt+" -1e308\n"), vllmWatched, map[string]float64{}), vllmPrompt+" is -1e+308")
	endless := strings.NewReader(strings.Repeat("# a comment\n", metricsMax/10))
	holds(t, collect(endless, vllmWatched, map[string]float64{}), "longer than 8388608 bytes")
}

func TestDeltas(t *testing.T) {
	t.Parallel()
	before := Snapshot{Values: map[string]float64{"a": 1, "b": 2, "c": 3}}
	now := Snapshot{Values: map[string]float64{"a": 1, "b": 5, "d": 7}}
	if got := now.Deltas(before); !maps.Equal(got, map[string]float64{"b": 3}) {
		t.Errorf("deltas %v", got)
	}
}

func FuzzCollect(f *testing.F) {
	f.Add([]byte("vllm:prompt_tokens_total{engine=\"0\"} 1\n"))
	f.Add([]byte("# TYPE orbitkv_leases gauge\norbitkv_leases NaN\n"))
	f.Fuzz(func(_ *testing.T, page []byte) {
		for _, watched := range [][]watch{vllmWatched, sglangWatched, managerWatched, daemonWatched} {
			_ = collect(strings.NewReader(string(page)), watched, map[string]float64{})
		}
	})
}
