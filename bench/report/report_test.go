package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

var update = flag.Bool("update", false, "write the golden texts anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the text differs from %s (-update writes it anew):\n%s", path, got)
	}
}

func group(t *testing.T, s *report.Summary, backend string, phase record.Phase) report.Group {
	t.Helper()
	i := slices.IndexFunc(s.Groups, func(g report.Group) bool { return g.Backend == backend && g.Phase == phase })
	if i < 0 {
		t.Fatalf("there is no group of %s, %s", backend, phase)
	}
	return s.Groups[i]
}

func pairing(t *testing.T, rows []report.Pairing, phase record.Phase) report.Pairing {
	t.Helper()
	i := slices.IndexFunc(rows, func(p report.Pairing) bool { return p.Phase == phase })
	if i < 0 {
		t.Fatalf("there is no difference of %s", phase)
	}
	return rows[i]
}

// fullRun has everything that a table can show: a backend that did not start, a differing output, a drain that did not drain.
func fullRun() *record.Run {
	run := latencyRun("native", "orbitkv")
	run.Manifest.Options.Backends = append(run.Manifest.Options.Backends, "lmcache")
	run.Manifest.Plan["lmcache"] = 5
	run.Failures = []record.Failure{{
		Place: record.Place{Cell: "lmcache/p0", Attempt: 1, Backend: "lmcache"}, Stage: "start", Part: "engine",
		Reason: "it ended before it was ready:\nImportError: \x1b[31mno module\x1b[0m named lmcache", Log: "logs/lmcache-p0-a1-engine.log", At: time.Unix(0, 0).UTC(),
	}}
	for i := range run.Samples {
		s := &run.Samples[i]
		if s.Request == "orbitkv-2-hbm_hit" || s.Request == "orbitkv-3-after_pressure" {
			differs := false
			s.Text, s.MatchesCold = "another", &differs
		}
	}
	place := run.Samples[0].Place
	run.Attributions = []record.Attribution{
		{Place: place, Request: "orbitkv-2-hbm_hit", Verdict: record.NotRun},
		{Place: place, Request: "orbitkv-2-hbm_hit", Verdict: record.EngineReproduces},
		{Place: place, Request: "orbitkv-3-after_pressure", Verdict: record.Unexplained, Why: "the engine alone gives one text"},
	}
	run.Drains = []record.Drain{
		{Place: record.Place{Backend: "native", Attempt: 1}, Why: "it has no cache service"},
		{Place: record.Place{Backend: "orbitkv", Attempt: 1}, Checked: true, WaitMs: 30_000, Why: "orbitkv_leases 1"},
	}
	return run
}

func TestKnownFigures(t *testing.T) {
	s := summarise(t, stored(t, fullRun()))
	hit := group(t, s, "orbitkv", record.HBMHit)
	if hit.N != 5 || hit.Unexpected != 0 || len(hit.Rows) != 1 || hit.Outputs.Compared != 5 || hit.Outputs.Differing != 1 || hit.Outputs.Verdicts[record.EngineReproduces] != 1 {
		t.Errorf("%+v", hit)
	}
	near(t, "the median hit", hit.Rows[0].TTFT.Median, 23)
	near(t, "its interval's low end", hit.Rows[0].TTFT.Interval.Low, 21)
	near(t, "its interval's high end", hit.Rows[0].TTFT.Interval.High, 25)
	near(t, "the median end", hit.Rows[0].E2E.Median, 53)
	near(t, "the time per output token", hit.Rows[0].TPOT.Median, 2)
	if hit.Rows[0].TTFTp95 != nil {
		t.Error("five samples have a p95")
	}
	cold := pairing(t, s.Paired, record.Cold)
	near(t, "the cold difference", cold.Difference, 1)
	if cold.N != 5 || !cold.Paired || cold.A.Backend != "native" || cold.Interval == nil || cold.Interval.Low != 1 || cold.Interval.High != 1 {
		t.Errorf("%+v", cold)
	}
	if s.Part.Complete() || s.Part.Finished != 10 || s.Part.Planned != 15 || s.Counts.Measured != 30 {
		t.Errorf("part %+v, counts %+v", s.Part, s.Counts)
	}
	if len(s.Failures) != 1 || s.Failures[0].Recovered || len(s.Differing) != 2 {
		t.Errorf("failures %+v, differing %+v", s.Failures, s.Differing)
	}
}

// TestAMissAfterPressureIsNoRestore is the liar's row: it lies in the phase after pressure and was computed again.
func TestAMissAfterPressureIsNoRestore(t *testing.T) {
	s := summarise(t, latencyRun("native", "orbitkv"))
	after := group(t, s, "orbitkv", record.AfterPressure)
	if after.N != 5 || after.Unexpected != 1 || len(after.Rows) != 2 || after.Rows[0].Source != record.FromExternal || after.Rows[1].Source != record.Miss {
		t.Fatalf("%+v", after)
	}
	near(t, "the median restore", after.Rows[0].TTFT.Median, 31.5)
	near(t, "the restored bytes", after.Rows[0].SumRestoredBytes, 4*length*token)
	near(t, "the miss", after.Rows[1].TTFT.Median, 110)
	if after.Rows[0].N != 4 || after.Rows[1].N != 1 {
		t.Errorf("%+v", after.Rows)
	}

	p := pairing(t, s.Paired, record.AfterPressure)
	near(t, "the paired difference", p.Difference, -75)
	if p.N != 4 || p.Without != 1 || len(p.B.LeftOut) != 1 || p.B.LeftOut[0] != (report.SourceCount{Source: record.Miss, N: 1}) {
		t.Errorf("%+v", p)
	}
	if !slices.Equal(p.A.Sources, []report.SourceCount{{Source: record.Miss, N: 4}}) || !slices.Equal(p.B.Sources, []report.SourceCount{{Source: record.FromExternal, N: 4}}) {
		t.Errorf("sources %+v and %+v", p.A.Sources, p.B.Sources)
	}

	if len(s.Exposed) != 1 {
		t.Fatalf("%+v", s.Exposed)
	}
	e := s.Exposed[0]
	near(t, "the exposed time", e.Difference.Median, 9.5)
	near(t, "the time on the link", e.LinkMs, 2.56)
	near(t, "the link's share", *e.LinkShare, 2.56/9.5)
	if e.AfterPressure.N != 4 || e.Hit.N != 5 || e.HitBackend != "native" || e.Note != "" {
		t.Errorf("%+v", e)
	}
}

// TestRatiosAreOfMedians has pairs whose mean of ratios is far from the ratio of their medians, and looks for it in everything that is written.
func TestRatiosAreOfMedians(t *testing.T) {
	s := summarise(t, latencyRun("native", "orbitkv"))
	near(t, "the ratio", pairing(t, s.Paired, record.AfterPressure).Ratio, 31.5/106.5)
	mean := (30.0/105 + 31.0/106 + 32.0/107 + 90.0/108) / 4
	var text bytes.Buffer
	if err := report.WriteJSON(&text, s); err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(&text)
	for {
		token, err := decoder.Token()
		if err != nil {
			break
		}
		if number, ok := token.(float64); ok && math.Abs(number-mean) < 1e-3 {
			t.Errorf("summary.json holds %v, the mean of the ratios", number)
		}
	}
}

// TestExposedTimeWithoutNative takes the backend's own hits and says so; without a link there is no share.
func TestExposedTimeWithoutNative(t *testing.T) {
	run := latencyRun("orbitkv")
	run.Manifest.Probe.LinkBytesPerS = 0
	for i := range run.Samples {
		run.Samples[i].LoadBytes = 0
	}
	e := summarise(t, run).Exposed[0]
	near(t, "the exposed time", e.Difference.Median, 31.5-23)
	near(t, "the computed bytes", e.MedianRestoredBytes, length*token)
	if e.HitBackend != "orbitkv" || e.Note == "" || e.LinkShare != nil || !strings.Contains(e.RestoredHow, "tokens times") {
		t.Errorf("%+v", e)
	}
}

func TestFailedAndSupersededRowsAreCountedAndHaveNoLatency(t *testing.T) {
	run := latencyRun("native", "orbitkv")
	failed := sampleOf(t, run, "native-4-after_pressure")
	failed.Error, failed.TTFTms, failed.MatchesCold, failed.Source = "broke off", 1, nil, record.Unverified
	run.Manifest.Attempts = append(run.Manifest.Attempts, record.Attempt{})
	again := *sampleOf(t, run, "native-0-cold")
	again.Attempt, again.Request, again.TTFTms = 2, "again", 1
	warm := again
	warm.Measured, warm.Request, warm.Error = false, "warm", "refused"
	run.Samples = append(run.Samples, again, warm)
	s := summarise(t, run)
	g := group(t, s, "native", record.AfterPressure)
	if g.N != 5 || g.Failed != 1 || g.Rows[0].N != 4 {
		t.Errorf("%+v", g)
	}
	if cold := group(t, s, "native", record.Cold); cold.N != 5 || cold.Rows[0].TTFT.Median != 102 {
		t.Errorf("%+v", cold)
	}
	if c := s.Counts; c.Failed != 1 || c.Superseded != 1 || c.Unmeasured != 1 || c.UnmeasuredFailed != 1 || c.Samples != 32 {
		t.Errorf("%+v", c)
	}
	says(t, strings.Join(s.Notes, "\n"), "1 measured requests belong to cells", "1 requests that warm", "attempt 2 is still running")
}

func TestWindowsCountTheDrain(t *testing.T) {
	s := summarise(t, stored(t, windowRun("orbitkv")))
	w := s.Windows[0]
	near(t, "requests/s", w.RequestsPerS, 2)
	near(t, "tokens/s", w.OutputTokensPerS, 22)
	near(t, "goodput", *w.GoodputPerS, 1) // the TTFT of 10 of the 20 is at most 50 ms
	near(t, "the median TTFT", w.TTFT.Median, 50.5)
	near(t, "the median TPOT", w.TPOT.Median, 2)
	near(t, "the median gap", w.ITL.Median, 2)
	near(t, "the 99th percentile of the gaps", *w.ITLp99, 3) // a tenth of the gaps is 1 ms longer
	if w.ITL.N != 200 || w.ITL.Interval != nil {
		t.Errorf("the gaps are %+v: 20 whole answers have 10 each, and pooled gaps no interval", w.ITL)
	}
	if w.Requests != 21 || w.Failed != 1 || w.TTFT.N != 20 || w.Spans != 1 {
		t.Errorf("%+v", w)
	}
	if len(w.Gauges) != 3 || *w.Gauges[0].Start != 4096 || *w.Gauges[0].End != 0 || *w.Gauges[0].Peak != 8192 || w.Gauges[2].Start != nil {
		t.Errorf("%+v", w.Gauges)
	}
	if len(s.Groups) != 1 || s.Groups[0].Expected != nil || s.Groups[0].Rows[0].TTFTp95 == nil || s.Groups[0].Rows[0].TTFTp99 != nil {
		t.Errorf("%+v", s.Groups)
	}
	if len(s.Paired) != 0 {
		t.Errorf("requests of a closed loop are no pairs: %+v", s.Paired)
	}
	run := windowRun("orbitkv")
	run.Manifest.Options.SLOTTFTms, run.Manifest.Options.SLOTPOTms = 0, 0
	if summarise(t, run).Windows[0].GoodputPerS != nil {
		t.Error("there is a goodput without an objective")
	}
}

// TestGoodputNeedsAKnownTPOT: nothing came after the first text of the first answer, and nobody counted the tokens of the second one's.
func TestGoodputNeedsAKnownTPOT(t *testing.T) {
	run := windowRun("orbitkv")
	before := summarise(t, run).Windows[0].Good
	run.Samples[0].FirstTextTokens = run.Samples[0].OutputTokens
	run.Samples[1].FirstTextTokens = 0
	w := summarise(t, run).Windows[0]
	if *w.Good != *before-1 || w.TPOT.N != 18 {
		t.Errorf("%d of %d are good still, and %d have a TPOT", *w.Good, *before, w.TPOT.N)
	}
}

// TestGaugesStandWithoutAMonitor keeps what the looks around a window saw where nothing was sampled inside it; counters are no gauges.
func TestGaugesStandWithoutAMonitor(t *testing.T) {
	run := windowRun("native")
	w := &run.Windows[0]
	w.Before = map[string]float64{"sglang:num_running_reqs": 0, "sglang:prompt_tokens_total": 64, `vllm:prompt_tokens_by_source_total{source="local_compute"}`: 64}
	w.After = map[string]float64{"sglang:num_running_reqs": 0, "sglang:hicache_host_used_tokens": 512, "sglang:prompt_tokens_total": 128}
	w.Peak, w.PeakSamples = nil, 0
	gauges := summarise(t, run).Windows[0].Gauges
	if len(gauges) != 2 || gauges[0].Name != "sglang:hicache_host_used_tokens" || gauges[1].Name != "sglang:num_running_reqs" {
		t.Fatalf("%+v", gauges)
	}
	if host := gauges[0]; host.Start != nil || host.End == nil || *host.End != 512 || host.Peak != nil {
		t.Errorf("%+v", host)
	}
}

// TestBurstsOfACellAreOneWindow adds up the spans of a phase.
func TestBurstsOfACellAreOneWindow(t *testing.T) {
	run := windowRun("orbitkv")
	second := run.Windows[0]
	run.Windows[0].Requests, second.Requests, second.Failed, second.WallSeconds, second.Started = 15, 6, 0, 30, time.Unix(9, 0)
	second.After = map[string]float64{"orbitkv_inflight_bytes": 7}
	run.Windows = append([]record.Window{second}, run.Windows...)
	w := summarise(t, run).Windows[0]
	near(t, "requests/s", w.RequestsPerS, 0.5)
	if w.Spans != 2 || w.Requests != 21 || *w.Gauges[0].Start != 4096 || *w.Gauges[0].End != 7 {
		t.Errorf("%+v", w)
	}
}

func TestTables(t *testing.T) {
	for name, run := range map[string]*record.Run{"latency.txt": stored(t, fullRun()), "sustained.txt": windowRun("orbitkv")} {
		var text bytes.Buffer
		if err := report.WriteTables(&text, summarise(t, run)); err != nil {
			t.Fatal(err)
		}
		golden(t, name, text.String())
		if strings.ContainsRune(text.String(), '\x1b') {
			t.Error("a log's escape reaches the terminal")
		}
	}
}

func TestARunWithoutRowsIsSummarised(t *testing.T) {
	run := &record.Run{Manifest: latencyManifest("native")}
	var text bytes.Buffer
	if err := report.WriteTables(&text, summarise(t, run)); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "part: 0 of 5 cells")
}

func TestAnEngineWithoutAKnownVersionIsNamedWithoutAGap(t *testing.T) {
	run := &record.Run{Manifest: latencyManifest("native")}
	run.Manifest.Probe.Packages = nil
	var text bytes.Buffer
	if err := report.WriteTables(&text, summarise(t, run)); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "vllm on ")
}

func TestBytesOfABurstAreNotCountedOnceForEachOfItsSamples(t *testing.T) {
	run := windowRun("orbitkv")
	for i := range run.Samples {
		run.Samples[i].LoadBytes = 21 * length * token
	}
	for _, r := range group(t, summarise(t, run), "orbitkv", record.Sustained).Rows {
		near(t, "the bytes of a row whose samples share their counters", r.SumRestoredBytes, 0)
	}
}

func TestStateWords(t *testing.T) {
	for _, c := range []struct {
		workload, variant string
		phase             record.Phase
		want              string
	}{
		{record.WorkloadLatency, "", record.HBMHit, "HBM hit"},
		{record.WorkloadLatency, "", record.AfterPressure, "after pressure"},
		{record.WorkloadPartial, "25", record.Partial, "partial, 25 % seen before"},
		{record.WorkloadPartial, "25", record.Cold, "cold, beside 25 % seen before"},
		{record.WorkloadConcurrent, record.Shared, record.AfterPressure, "after pressure, shared"},
	} {
		if got := report.StateWords(c.workload, c.variant, c.phase); got != c.want {
			t.Errorf("%s %s %s is %q, want %q", c.workload, c.variant, c.phase, got, c.want)
		}
	}
}
