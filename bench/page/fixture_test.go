package page

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// hostile is what an engine or a log might print to leave its place in the page.
const hostile = `</pre><script>alert(1)</script><img src=http://x.example/a onerror=alert(2)>"'><style>@import url(//x.example)</style>` + "\x1b[31mred\x1b[0m\u202e"

var began = time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)

// fixture writes a run by the product's own writer.
type fixture struct {
	t      *testing.T
	dir    *record.Dir
	random *rand.Rand
	asked  int
}

func newFixture(t *testing.T, options record.Options, machine record.Machine) *fixture {
	t.Helper()
	options.Engine, options.Model, options.Seed, options.Order = "vllm", "/models/"+hostile, 20260920, "forward"
	m := record.Manifest{
		Format: record.Format, Version: "0.9.0", Started: began, Options: options, Machine: machine,
		Model: record.Model{
			Path: options.Model, Type: "qwen3", Layers: 36, KVHeads: 8, HeadDim: 128, Vocabulary: 151936, Positions: 40960,
			BytesPerToken: 147456, ConfigSHA256: "5f2c7a30c4e4b9c7a9e3b6d3c1f0a8e7d6c5b4a39281706f5e4d3c2b1a09f8e7",
		},
		Probe: record.Probe{
			Python: "3.11.2", Packages: map[string]string{"vllm": "0.29.0", "torch": "2.13.0+cu130", "transformers": "5.12.1", "orbitkv": "0.9.0"},
			LinkBytesPerS: 55.3e9, LinkHow: "pinned host memory to device, 256 MiB, best of 5",
		},
		Storage: []record.Storage{
			{Use: "output", Path: "/data/run", Mount: "/data", Filesystem: "ext4", Device: "/dev/nvme0n1p1", Direct: "not used"},
			{Use: "model", Path: options.Model, Mount: "/", Filesystem: "overlay", Device: "overlay", Direct: "refused: EINVAL"},
		},
		Plan: map[string]int{},
	}
	dir, err := record.Create(filepath.Join(t.TempDir(), "run"), m, []string{"orbitkv", "bench", "single-node", "--model", options.Model})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, dir: dir, random: rand.New(rand.NewPCG(7, 11))}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// sample returns a whole answer with a first text after about ttft milliseconds.
func (f *fixture) sample(p record.Place, phase record.Phase, source record.Source, ttft float64) record.Sample {
	f.asked++
	ttft *= 1 + 0.08*f.random.Float64() + 0.02*f.random.NormFloat64()*f.random.Float64()
	tpot := 6 + 2*f.random.Float64()
	s := record.Sample{
		Place: p, Phase: phase, Measured: true, Request: fmt.Sprintf("%s-%d", phase, f.asked), Started: began.Add(time.Duration(f.asked) * time.Second),
		PromptTokens: p.Length, TTFTms: ttft, E2Ems: ttft + 15*tpot, OutputTokens: 16, FirstTextTokens: 1, Text: " the cache",
	}
	s.Source = source
	switch source {
	case record.FromHBM:
		s.DeviceTokens, s.CachedTokens = p.Length, p.Length
	case record.FromExternal:
		s.ExternalTokens, s.CachedTokens, s.LoadBytes = p.Length, p.Length, float64(p.Length)*147456
	}
	if phase != record.Cold {
		same := true
		s.MatchesCold = &same
	}
	return s
}

func (f *fixture) load(outcome string) (*record.Run, *report.Summary) {
	f.t.Helper()
	path := f.dir.Path()
	f.must(f.dir.Close(outcome))
	run, err := record.Load(path)
	f.must(err)
	s, err := report.Summarise(run)
	f.must(err)
	return run, s
}

var h200 = record.Machine{
	CPU: "AMD EPYC 9654", CPUs: 16, NUMANodes: 2, MemoryBytes: 128 << 30, Kernel: "6.1.0-28-amd64",
	GPUs: []record.GPU{{Name: "NVIDIA H200", MemoryMiB: 143771, Driver: "580.82", PCIe: "gen 5 x16", SMClock: "1980 MHz", PowerCap: "700 W", OtherUses: 1}},
}

// latencyRun has three backends that were measured and one that broke in its first cell, an odd source, a differing output and a timeline.
func latencyRun(t *testing.T) (*record.Run, *report.Summary) {
	f := newFixture(t, record.Options{
		Backends: []string{"native", "cpu", "orbitkv", "flexkv"}, Workload: "latency", Lengths: []int{1024, 4096, 8192}, Repeats: 5, TraceTransfers: true,
		GPUTokens: 16384, PressureTokens: 12288, PressureCount: 2, OutputTokens: 16, PageSize: 64, HostGiB: 16, Device: "cuda",
	}, h200)
	ttft := map[string][3]float64{"native": {219, 17.5, 222}, "cpu": {218, 37, 61}, "orbitkv": {215, 20, 35}}
	for _, backend := range []string{"native", "cpu", "orbitkv"} {
		for _, length := range []int{1024, 4096, 8192} {
			for prefix := range 5 {
				f.latencyCell(backend, length, prefix, ttft[backend])
			}
		}
		f.must(f.dir.Drain(record.Drain{
			Place: record.Place{Backend: backend, Attempt: 1}, Drained: backend != "cpu", Checked: backend != "native", WaitMs: 310,
			Values: map[string]float64{"orbitkv_leases": 0, "orbitkv_pending_bytes": map[string]float64{"cpu": 8192}[backend]}, Why: map[string]string{"cpu": "pending bytes stayed at 8192"}[backend],
		}))
	}
	f.must(os.MkdirAll(f.dir.Path("logs"), 0o700))
	f.must(os.WriteFile(f.dir.Path("logs", "flexkv-p0-a1-engine.log"), []byte("INFO start\n"+hostile+"\nAttributeError: get_kv_cache_shape\n"), 0o600))
	f.must(f.dir.Failure(record.Failure{
		Place: record.Place{Cell: "flexkv/p0", Backend: "flexkv", Attempt: 1}, Stage: "start", Part: "engine", At: began,
		Reason: "the engine ended before it was ready: AttributeError: FlashAttentionBackend has no get_kv_cache_shape " + hostile, Log: "logs/flexkv-p0-a1-engine.log",
	}))
	cut := record.Place{Cell: "flexkv/p0/latency/1024/0", Attempt: 1, Backend: "flexkv", Workload: "latency", Concurrency: 1, Length: 1024}
	f.must(f.dir.Sample(f.sample(cut, record.Cold, record.Miss, 9999)))
	f.timeline()
	f.must(f.dir.Update(func(m *record.Manifest) {
		for _, backend := range m.Options.Backends {
			m.Plan[backend] = 15
			m.Launches = append(m.Launches, record.Launch{
				Backend: backend, Attempt: 1, Part: "engine", Command: []string{"python3", "-m", "vllm.entrypoints.openai.api_server", "--kv-transfer-config", `{"kv_connector": "X"}`},
				Environment: map[string]string{"PYTHONHASHSEED": "0"}, Log: "logs/" + backend + "-p0-a1-engine.log", Started: began, ReadySeconds: 48.3, Exit: "terminated by SIGTERM",
			})
		}
		m.Notes = append(m.Notes, "the engine said: "+hostile)
	}))
	return f.load("part")
}

func (f *fixture) latencyCell(backend string, length, prefix int, ttft [3]float64) {
	p := record.Place{
		Cell: fmt.Sprintf("%s/p0/latency/%d/%d", backend, length, prefix), Attempt: 1, Backend: backend, Workload: "latency", Concurrency: 1, Length: length, Prefix: prefix,
	}
	share := math.Pow(float64(length)/8192, 0.8)
	f.must(f.dir.Sample(f.sample(p, record.Cold, record.Miss, ttft[0]*share)))
	f.must(f.dir.Sample(f.sample(p, record.HBMHit, record.FromHBM, ttft[1]*share)))
	source := record.FromExternal
	if backend == "native" || backend == "cpu" && length == 4096 && prefix == 2 {
		source = record.Miss
	}
	after := f.sample(p, record.AfterPressure, source, ttft[2]*share)
	if backend == "orbitkv" && length == 8192 && prefix == 0 {
		after.Source, after.Why = record.Unverified, "the answer claims tokens that no counter shows"
	}
	if backend == "orbitkv" && length == 1024 && prefix == 3 {
		differs := false
		after.Text, after.MatchesCold = hostile, &differs
		f.must(f.dir.Attribution(record.Attribution{
			Place: p, Request: after.Request, Phase: after.Phase, Verdict: record.EngineReproduces, ColdText: " the cache", Differing: hostile, ControlCold: " the cache", ControlHit: hostile,
		}))
	}
	f.must(f.dir.Sample(after))
	f.must(f.dir.Finish(record.Finished{Place: p, Ended: began}))
}

// timeline writes one request that restored 36 layers, in two processes whose clocks do not compare.
func (f *fixture) timeline() {
	write := func(pid int, stage string, at float64, fields map[string]any) {
		r := map[string]any{"stage": stage, "request_id": "lat-" + hostile, "engine": "vllm", "backend": "orbitkv", "pid": pid, "monotonic_ns": int64(1e15*float64(pid) + at*1e6)}
		for name, value := range fields {
			r[name] = value
		}
		f.must(f.dir.Timeline(r))
	}
	write(1, "queued", 0, nil)
	write(1, "first_use", 1.9, map[string]any{"elapsed_us": 1900})
	write(2, "restore_submit", 0, map[string]any{"pages": 128})
	for layer := range 36 {
		write(2, "layer_ready", 1.5+0.55*float64(layer), map[string]any{"layer": layer})
		write(2, "layer_used", max(1.5+0.55*float64(layer), 4+0.35*float64(layer))+0.1, map[string]any{"layer": layer})
	}
	write(2, "gpu_ready", 21.4, map[string]any{"success": true})
}

// loadRun has windows of two backends at four concurrencies.
func loadRun(t *testing.T) (*record.Run, *report.Summary) {
	f := newFixture(t, record.Options{
		Backends: []string{"native", "orbitkv"}, Workload: "sustained", Lengths: []int{1024, 4096}, Concurrencies: []int{1, 4, 8, 16}, DurationSeconds: 60, MaxRequests: 10000,
		WorkingSet: 12, ReuseRatio: 0.75, SLOTTFTms: 150, SLOTPOTms: 20, Device: "cpu",
	}, record.Machine{CPU: "AMD EPYC 9654", CPUs: 2, NUMANodes: 1, MemoryBytes: 24 << 30, Kernel: "6.1.0"})
	for _, backend := range []string{"native", "orbitkv"} {
		for _, c := range []int{1, 4, 8, 16} {
			p := record.Place{Cell: fmt.Sprintf("%s/p0/sustained/%d", backend, c), Attempt: 1, Backend: backend, Workload: "sustained", Concurrency: c, Prefix: -1}
			n := 8 * c
			for i := range n {
				p.Length = []int{1024, 4096}[i%2]
				source, ttft := record.Miss, 110.0
				if backend == "orbitkv" && i%4 != 0 {
					source, ttft = record.FromExternal, 30
				}
				s := f.sample(p, record.Sustained, source, ttft*math.Sqrt(float64(c)))
				s.PromptIndex, s.Shared, s.MatchesCold = i, true, nil
				f.must(f.dir.Sample(s))
			}
			p.Length = 0
			f.must(f.dir.Window(record.Window{
				Place: p, Phase: record.Sustained, Requests: n, Stop: "window", AdmitSeconds: 60, DrainSeconds: 0.4 * float64(c), WallSeconds: 60 + 0.4*float64(c), Started: began,
				Before: map[string]float64{"orbitkv_pending_bytes": 0, "orbitkv_leases": 0}, After: map[string]float64{"orbitkv_pending_bytes": 0, "orbitkv_leases": 0},
				Peak: map[string]float64{"orbitkv_pending_bytes": float64(c * 37 << 20), "orbitkv_leases": 0}, PeakSamples: 2410,
			}))
			f.must(f.dir.Finish(record.Finished{Place: p, Ended: began}))
		}
	}
	f.must(f.dir.Update(func(m *record.Manifest) { m.Plan = map[string]int{"native": 4, "orbitkv": 4} }))
	return f.load("complete")
}
