package report_test

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

const (
	length = 256
	token  = 100_000 // bytes of KV
	link   = 10e9    // bytes/s: 256 tokens need 2.56 ms
)

// TTFT by backend and phase, one a prefix.
var known = map[string]map[record.Phase][]float64{
	"native": {
		record.Cold:          {100, 101, 102, 103, 104},
		record.HBMHit:        {20, 21, 22, 23, 24},
		record.AfterPressure: {105, 106, 107, 108, 109},
	},
	"orbitkv": {
		record.Cold:          {101, 102, 103, 104, 105},
		record.HBMHit:        {21, 22, 23, 24, 25},
		record.AfterPressure: {30, 31, 32, 90, 110}, // the last one is a miss
	},
}

func latencyManifest(backends ...string) record.Manifest {
	m := record.Manifest{
		Format: record.Format, Version: "1.2.3", Attempts: []record.Attempt{{Outcome: "complete"}}, Plan: map[string]int{},
		Options: record.Options{Engine: "vllm", Device: "cpu", Backends: backends, Workload: "latency", Lengths: []int{length}, Repeats: 5, Seed: 20260920},
		Model:   record.Model{Path: "/models/tiny", Layers: 4, BytesPerToken: token, ConfigSHA256: "abc"},
		Probe:   record.Probe{Packages: map[string]string{"vllm": "0.29.0"}, LinkBytesPerS: link, LinkHow: "host memory to host memory"},
	}
	for _, backend := range backends {
		m.Plan[backend] = 5
	}
	return m
}

// latencyRun is a run of the latency workload whose figures can be worked out by hand.
func latencyRun(backends ...string) *record.Run {
	run := &record.Run{Path: "runs/one", Manifest: latencyManifest(backends...)}
	for _, backend := range backends {
		for prefix := range 5 {
			addCell(run, backend, prefix)
		}
	}
	return run
}

func addCell(run *record.Run, backend string, prefix int) {
	place := record.Place{
		Cell: fmt.Sprintf("%s/p0/latency/%d/%d", backend, length, prefix), Attempt: 1, Backend: backend, Workload: "latency", Concurrency: 1, Length: length, Prefix: prefix,
	}
	for _, phase := range []record.Phase{record.Cold, record.HBMHit, record.AfterPressure} {
		ttft := known[backend][phase][prefix]
		s := record.Sample{
			Place: place, Phase: phase, Measured: true, Request: fmt.Sprintf("%s-%d-%s", backend, prefix, phase), Started: time.Unix(0, 0).UTC(),
			PromptTokens: length, TTFTms: ttft, E2Ems: ttft + 30, ChunkMs: []float64{ttft, ttft + 15, ttft + 30}, OutputTokens: 16, FirstTextTokens: 1, Text: "as cold",
			Evidence: record.Evidence{Source: record.Miss},
		}
		same := true
		if phase != record.Cold {
			s.MatchesCold = &same
		}
		switch {
		case phase == record.HBMHit:
			s.Source, s.DeviceTokens = record.FromHBM, length
		case phase == record.AfterPressure && backend != "native" && prefix < 4:
			s.Source, s.ExternalTokens, s.LoadBytes = record.FromExternal, length, length*token
		}
		s.CachedTokens = s.DeviceTokens + s.ExternalTokens
		run.Samples = append(run.Samples, s)
	}
	run.Finished = append(run.Finished, record.Finished{Place: place})
}

// sampleOf finds a row by its request.
func sampleOf(t *testing.T, run *record.Run, request string) *record.Sample {
	t.Helper()
	for i := range run.Samples {
		if run.Samples[i].Request == request {
			return &run.Samples[i]
		}
	}
	t.Fatalf("there is no request %s", request)
	return nil
}

// windowRun is a sustained run of one window: 10 s of wall time with 8 s of admission, 21 requests of which one failed.
func windowRun(backend string) *record.Run {
	m := latencyManifest(backend)
	m.Options.Workload, m.Options.Repeats, m.Options.SLOTTFTms, m.Options.SLOTPOTms = "sustained", 1, 50, 3
	m.Plan[backend] = 1
	run := &record.Run{Path: "runs/" + backend, Manifest: m}
	place := record.Place{Cell: backend + "/p0/sustained/4", Attempt: 1, Backend: backend, Workload: "sustained", Concurrency: 4, Prefix: -1}
	for i := range 21 {
		s := record.Sample{
			Place: place, Phase: record.Sustained, Measured: true, Request: fmt.Sprintf("%s-%d", backend, i), PromptIndex: i % 3, PromptTokens: length,
			TTFTms: float64(41 + i), E2Ems: float64(41 + i + 20), OutputTokens: 11, FirstTextTokens: 1, Evidence: record.Evidence{Source: record.FromExternal, ExternalTokens: length, Shared: true},
		}
		if i == 20 {
			s.Error = "broke off after 2 chunks"
		}
		s.Length = length
		for token := range s.OutputTokens {
			s.ChunkMs = append(s.ChunkMs, s.TTFTms+2*float64(token))
		}
		s.ChunkMs[5]++ // one token is late
		run.Samples = append(run.Samples, s)
	}
	run.Windows = []record.Window{{
		Place: place, Phase: record.Sustained, Requests: 21, Failed: 1, Stop: "window", AdmitSeconds: 8, DrainSeconds: 2, WallSeconds: 10,
		Before: map[string]float64{"orbitkv_inflight_bytes": 4096, "quiet": 0}, After: map[string]float64{"orbitkv_inflight_bytes": 0, "quiet": 0},
		Peak: map[string]float64{"orbitkv_inflight_bytes": 8192, "quiet": 0, "unread": 1}, PeakSamples: 400,
	}}
	run.Finished = []record.Finished{{Place: place}}
	return run
}

func summarise(t *testing.T, run *record.Run) *report.Summary {
	t.Helper()
	s, err := report.Summarise(run)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) < 1e-9*max(1, math.Abs(want))) {
		t.Errorf("%s is %v, expected %v", what, got, want)
	}
}

func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; expected one with %q", words)
	}
	says(t, err.Error(), words...)
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("it does not say %q:\n%s", word, text)
		}
	}
}

// stored writes a run into an output directory and loads it again.
func stored(t *testing.T, run *record.Run) *record.Run {
	t.Helper()
	m := run.Manifest
	m.Attempts = nil
	path := filepath.Join(t.TempDir(), "run")
	d, err := record.Create(path, m, []string{"orbitkv", "bench", "single-node"})
	if err != nil {
		t.Fatal(err)
	}
	var errs []error
	for _, s := range run.Samples {
		errs = append(errs, d.Sample(s))
	}
	for _, w := range run.Windows {
		errs = append(errs, d.Window(w))
	}
	for _, f := range run.Finished {
		errs = append(errs, d.Finish(f))
	}
	for _, f := range run.Failures {
		errs = append(errs, d.Failure(f))
	}
	for _, a := range run.Attributions {
		errs = append(errs, d.Attribution(a))
	}
	for _, drain := range run.Drains {
		errs = append(errs, d.Drain(drain))
	}
	errs = append(errs, d.Close("part"))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	loaded, err := record.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Path = run.Path
	return loaded
}
