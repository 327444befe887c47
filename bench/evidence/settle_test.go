package evidence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"orbitkv/bench/record"
)

// TestSettle gives the time that a wait takes on a clock of its own, with one look every 100 ms and the first one at once.
func TestSettle(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		atLeast time.Duration
		base    string
		change  func(int, map[string]float64) error
		want    time.Duration
	}{
		{"quiet from the start", 0, engineAt, nil, 200 * time.Millisecond},
		{"quiet, and told to wait", 1200 * time.Millisecond, engineAt, nil, 1200 * time.Millisecond},
		{"between two looks", 250 * time.Millisecond, engineAt, nil, 300 * time.Millisecond},
		{"a counter of the engine moves", 0, engineAt, rising(6, vllmHits), 700 * time.Millisecond},
		{"a counter of the Manager moves", 0, managerAt, rising(4, managerLoadBytes), 500 * time.Millisecond},
		{"a counter appears", 0, engineAt, func(n int, v map[string]float64) error {
			delete(v, vllmQueries)
			if n > 2 {
				v[vllmQueries] = 7
			}
			return nil
		}, 400 * time.Millisecond},
		{"something is restored", 0, managerAt, until(5, `orbitkv_query_reserved_bytes_by_phase{phase="restoring"}`, 4096, 0), 700 * time.Millisecond},
		{"something is stored", 0, managerAt, until(5, "orbitkv_inflight_bytes", 4096, 0), 700 * time.Millisecond},
		{"a request runs", 0, engineAt, until(5, "vllm:num_requests_running", 1, 0), 700 * time.Millisecond},
		{"people's gauges move", 0, engineAt, func(n int, v map[string]float64) error { v["vllm:kv_cache_usage_perc"] = float64(n); return nil }, 200 * time.Millisecond},
		{"bytes stay quarantined", 0, managerAt, until(1000, "orbitkv_quarantined_bytes", 4096, 0), 200 * time.Millisecond},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			p, s := vllmOrbit()
			p.change[c.base] = c.change
			begun := time.Now()
			look, err := s.Settle(t.Context(), c.atLeast)
			if took := time.Since(begun); err != nil || took != c.want {
				t.Errorf("%s: it took %v (%v), want %v", c.name, took, err, c.want)
			}
			if _, known := look.Values[vllmHits]; !known || look.At.IsZero() {
				t.Errorf("%s: the last look is %+v", c.name, look)
			}
		})
	}
}

func TestSettleWaitsForLMCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPages(record.VLLM)
		s := p.scraper(record.VLLM, daemonAt)
		p.change[daemonAt] = func(n int, v map[string]float64) error {
			v[daemonPairs[0].begun] = 3 // All were begun before the first look, and the last one ends at the sixth.
			v[daemonPairs[0].ended] = map[bool]float64{true: 3, false: 2}[n > 5]
			return nil
		}
		begun := time.Now()
		if _, err := s.Settle(t.Context(), 0); err != nil || time.Since(begun) != 700*time.Millisecond {
			t.Errorf("it took %v (%v), want 700ms", time.Since(begun), err)
		}
	})
}

func TestSettleIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := vllmOrbit()
		p.change[engineAt] = func(n int, v map[string]float64) error { v[vllmHits] = float64(n); return nil }
		p.change[managerAt] = func(_ int, v map[string]float64) error { v["orbitkv_reservations"] = 2; return nil }
		begun := time.Now()
		look, err := s.Settle(t.Context(), time.Second)
		holds(t, err, "did not settle within 1m0s", "orbitkv_reservations is 2", vllmHits+" from 600 to 601")
		if took := time.Since(begun); took != settleLimit || look.Values[vllmHits] != 601 {
			t.Errorf("it took %v and ended with %g", took, look.Values[vllmHits])
		}
	})
}

func TestSettleEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := vllmOrbit()
		p.change[managerAt] = func(_ int, v map[string]float64) error { v["orbitkv_reservations"] = 2; return nil }
		if _, err := s.Settle(after(t, 3*time.Second), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestASourceThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := vllmOrbit()
		broken := errors.New("connection refused")
		p.change[managerAt] = func(n int, _ map[string]float64) error {
			if n > 1 {
				return broken
			}
			return nil
		}
		_, err := s.Settle(t.Context(), 0)
		holds(t, err, "the Cache Manager at http://manager/metrics", "connection refused")
		p.change[engineAt] = func(int, map[string]float64) error { return errBusy }
		_, err = s.Read(t.Context())
		holds(t, err, "vLLM at http://engine/metrics", "status 503")
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	stays := func(name string, value float64) func(int, map[string]float64) error {
		return until(1<<30, name, value, value)
	}
	cases := []struct {
		name    string
		bases   []string
		at      string
		change  func(int, map[string]float64) error
		drained bool
		checked bool
		took    time.Duration
		why     string
	}{
		{"all is given back", []string{managerAt}, managerAt, nil, true, true, 200 * time.Millisecond, ""},
		{"a lease ends late", []string{managerAt}, managerAt, until(9, "orbitkv_leases", 1, 0), true, true, 1100 * time.Millisecond, ""},
		{"a lease stays", []string{managerAt}, managerAt, stays("orbitkv_leases", 1), false, true, DrainLimit, "orbitkv_leases is 1"},
		{"bytes stay quarantined", []string{managerAt}, managerAt, stays("orbitkv_quarantined_bytes", 64), false, true, DrainLimit, "orbitkv_quarantined_bytes is 64"},
		{"a query waits", []string{managerAt}, managerAt, stays(`orbitkv_operations{state="waiting"}`, 1), false, true, DrainLimit, `state="waiting"} is 1`},
		{"a reservation stays", []string{managerAt}, managerAt, stays("orbitkv_reservations", 1), false, true, DrainLimit, "orbitkv_reservations is 1"},
		{"a request runs", []string{managerAt}, engineAt, stays("vllm:num_requests_running", 1), false, true, DrainLimit, "vllm:num_requests_running is 1"},
		{"a gauge is gone", []string{managerAt}, managerAt, func(_ int, v map[string]float64) error { delete(v, "orbitkv_leases"); return nil }, false, true, DrainLimit, "orbitkv_leases is not served"},
		{"a store does not end", []string{daemonAt}, daemonAt, stays(daemonPairs[0].begun, 1), false, true, DrainLimit, "lmcache_mp_stores_in_flight is 1"},
		{"LMCache is done", []string{daemonAt}, daemonAt, nil, true, true, 200 * time.Millisecond, ""},
		{"no cache tells", nil, engineAt, nil, true, false, 200 * time.Millisecond, "tells nothing"},
		{"no cache tells, and a request runs", nil, engineAt, stays("vllm:num_requests_waiting", 1), false, false, DrainLimit, "vllm:num_requests_waiting is 1"},
		{"the Manager is gone", []string{managerAt}, managerAt, func(int, map[string]float64) error { return errBusy }, false, false, 0, "could not be looked at"},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			p := newPages(record.VLLM)
			s := p.scraper(record.VLLM, c.bases...)
			p.change[c.at] = c.change
			begun := time.Now()
			d := s.Drain(t.Context())
			if took := time.Since(begun); took != c.took || d.WaitMs != float64(took)/1e6 {
				t.Errorf("%s: it took %v and says %g ms, want %v", c.name, took, d.WaitMs, c.took)
			}
			if d.Drained != c.drained || d.Checked != c.checked || !strings.Contains(d.Why, c.why) || (c.why == "") != (d.Why == "") {
				t.Errorf("%s: %+v", c.name, d)
			}
			if _, known := d.Values["vllm:num_requests_running"]; known == strings.Contains(d.Why, "looked at") {
				t.Errorf("%s: values %v", c.name, d.Values)
			}
		})
	}
}

// TestADrainCheckThatIsBrokenOffSaysWhatWasStillHeld: it neither clears nor accuses the backend.
func TestADrainCheckThatIsBrokenOffSaysWhatWasStillHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPages(record.VLLM)
		s := p.scraper(record.VLLM, managerAt)
		p.change[managerAt] = until(1<<30, "orbitkv_leases", 1, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d := s.Drain(ctx)
		if d.Drained || d.Checked || !strings.Contains(d.Why, "broken off") || !strings.Contains(d.Why, "orbitkv_leases is 1") {
			t.Errorf("%+v", d)
		}
	})
}

func TestMonitor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := vllmOrbit()
		p.change[managerAt] = func(n int, v map[string]float64) error {
			v["orbitkv_inflight_bytes"] = map[int]float64{2: 100, 3: 900, 4: 300}[n]
			v[managerLoadBytes] = float64(n)
			if n == 5 {
				return errBusy // one look fails, and is not counted
			}
			return nil
		}
		m := s.Watch(t.Context(), MonitorEvery)
		<-time.After(10*MonitorEvery + MonitorEvery/2)
		peaks, samples := m.Stop()
		if samples != 10 || peaks["orbitkv_inflight_bytes"] != 900 {
			t.Errorf("%d samples and peaks %v", samples, peaks)
		}
		if _, counted := peaks[managerLoadBytes]; counted || p.looks[engineAt] != 0 {
			t.Errorf("the engine was looked at %d times, or a counter has a peak: %v", p.looks[engineAt], peaks)
		}
		<-time.After(time.Second)
		if p.looks[managerAt] != 11 {
			t.Errorf("%d looks after Stop", p.looks[managerAt])
		}
	})
}

func TestMonitorOfNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPages(record.SGLang)
		m := p.scraper(record.SGLang).Watch(t.Context(), MonitorEvery)
		<-time.After(time.Second)
		if peaks, samples := m.Stop(); samples != 0 || len(peaks) != 0 {
			t.Errorf("%d samples and peaks %v", samples, peaks)
		}
	})
}
