package launch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"orbitkv/bench/record"
)

// goldenSpec has a value of its own for every option that reaches a command line.
func goldenSpec(engine, backend, device string) Spec {
	seqs := 8
	if engine == record.VLLM && device == OnCUDA {
		seqs = 256 // as the measurement asks for
	}
	return Spec{
		Options: record.Options{
			Engine: engine, CPUConnector: OffloadingConnector, Model: "/models/qwen3-8b", Device: device, GPUTokens: 16384, PageSize: 64,
			PrefillTokens: 8192, HostGiB: 16, EnginePython: "/envs/engine/bin/python",
		},
		Backend: backend, Manager: "/opt/orbitkv", MaxModelLen: 12352, MaxSeqs: seqs, LogPath: func(part string) string { return part },
		Model: record.Model{BytesPerToken: 147456},
	}
}

// describe writes the processes of a stack as people read them: a flag a line, then what is set in the environment and the files.
func describe(t *testing.T, s Spec) string {
	t.Helper()
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	processes, err := plan(&s, layout{folder: "/private", engine: 20001, service: 20002, metric: 20003, cores: "0,1,2"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, p := range processes {
		what := "answers 200"
		if p.judge != nil {
			what += " and says so"
		}
		fmt.Fprintf(&out, "%s, ready when %s%s %s\n", p.part, p.url(), p.health, what)
		fmt.Fprintf(&out, "  %s\n", strings.ReplaceAll(strings.Join(p.command, " "), " --", "\n    --"))
		for _, name := range slices.Sorted(maps.Keys(p.environment)) {
			fmt.Fprintf(&out, "  %s=%s\n", name, p.environment[name])
		}
		for _, path := range slices.Sorted(maps.Keys(p.files)) {
			fmt.Fprintf(&out, "  %s:\n    %s\n", path, strings.ReplaceAll(strings.TrimSpace(p.files[path]), "\n", "\n    "))
		}
	}
	return out.String()
}

func TestGoldenCommandLines(t *testing.T) {
	var out strings.Builder
	add := func(title string, s Spec) { fmt.Fprintf(&out, "# %s\n%s\n", title, describe(t, s)) }
	for _, engine := range []string{record.VLLM, record.SGLang} {
		for _, device := range []string{OnCUDA, OnCPU} {
			for _, backend := range []string{record.Native, record.CPU, record.OrbitKV, record.LMCache, record.FlexKV} {
				add(engine+", "+backend+", "+device, goldenSpec(engine, backend, device))
			}
		}
	}
	simple := goldenSpec(record.VLLM, record.CPU, OnCUDA)
	simple.Options.CPUConnector = SimpleConnector
	add("vllm, cpu with the simple connector, cuda", simple)
	tuned := goldenSpec(record.VLLM, record.OrbitKV, OnCUDA)
	tuned.Options.QueryBudgetGiB, tuned.Options.TransferBackend, tuned.Options.TraceTransfers = 4.5, "kernel", true
	tuned.Options.SSDGiB, tuned.Options.SSDWritePolicy, tuned.Options.ProtectedPercent, tuned.SSDFolder = 32, "reuse", 20, "/results/run/ssd/orbitkv-p0-a1"
	tuned.Options.ReadBatchMiB, tuned.Options.StopPolicy, tuned.Options.ReadTimeoutMs = 16, "timeout", 250
	tuned.Options.EngineArguments = []string{"--gpu-memory-utilization", "0.5"}
	add("vllm, orbitkv with every option, cuda", tuned)

	path := filepath.Join("testdata", "commands.golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("the command lines differ from %s (go test ./bench/launch -update writes it anew); they are\n%s", path, out.String())
	}
}

// TestEveryBackendComputesOnTheSameCores: vLLM's own choice depends on whether a connector is configured.
func TestEveryBackendComputesOnTheSameCores(t *testing.T) {
	for want, cpus := range map[string][]int{"": nil, "3": {3}, "0": {0, 1}, "2,3,8": {2, 3, 8, 9}} {
		if got := allButLast(cpus); got != want {
			t.Errorf("of %v vLLM is given %q; want %q", cpus, got, want)
		}
	}
	for _, backend := range []string{record.Native, record.CPU, record.OrbitKV, record.LMCache, record.FlexKV} {
		s := goldenSpec(record.VLLM, backend, OnCPU)
		processes, err := plan(&s, layout{folder: "/private", cores: "0,1"})
		if err != nil {
			t.Fatal(err)
		}
		if got := processes[len(processes)-1].environment[bindVariable]; got != "0,1" {
			t.Errorf("%s: vLLM is given the cores %q", backend, got)
		}
	}
	t.Setenv(bindVariable, "") // so that it is given back at the end
	if err := os.Unsetenv(bindVariable); err != nil {
		t.Fatal(err)
	}
	if got := workerCores(); got == "" {
		t.Error("no core of this machine is given")
	}
	t.Setenv(bindVariable, "nobind")
	if got := workerCores(); got != "" {
		t.Errorf("the caller's choice is overruled by %q", got)
	}
}

func TestSpecsThatCannotBeStarted(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Spec)
	}{
		{"no engine \"trt\"", func(s *Spec) { s.Options.Engine = "trt" }},
		{"no backend \"redis\"", func(s *Spec) { s.Backend = "redis" }},
		{"no device \"tpu\"", func(s *Spec) { s.Options.Device = "tpu" }},
		{"no CPU connector \"fast\"", func(s *Spec) { s.Backend, s.Options.CPUConnector = record.CPU, "fast" }},
		{"not whole pages of 64", func(s *Spec) { s.Options.GPUTokens = 16400 }},
		{"do not fit into device memory for 16384", func(s *Spec) { s.MaxModelLen = 20000 }},
		{"must be above 0", func(s *Spec) { s.MaxSeqs = 0 }},
		{"needs host memory", func(s *Spec) { s.Options.HostGiB = 0 }},
		{"not within the 16 GiB", func(s *Spec) { s.Options.QueryBudgetGiB = 17 }},
		{"an SSD tier needs a folder", func(s *Spec) { s.Options.SSDGiB = 1 }},
		{"must all be named", func(s *Spec) { s.Manager = "" }},
	} {
		s := goldenSpec(record.VLLM, record.OrbitKV, OnCUDA)
		c.change(&s)
		if _, err := Start(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("the error is %v; want it to say %q", err, c.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	inherited := []string{
		"HOME=/home/x", "PYTHONPATH=/src", "PYTHONHASHSEED=7", "HF_TOKEN=secret", "ORBITKV_CONFIG=/etc/other.json", "VLLM_BATCH_INVARIANT=1", "OMP_NUM_THREADS=4",
		"LMCACHE_REDIS_PASSWD=secret", "LMCACHE_http_auth=secret", "HF_ENDPOINT=https://me:secret@mirror.example/hub",
	}
	whole, kept := environmentOf(inherited, map[string]string{"PYTHONHASHSEED": "0", "ORBITKV_SOCKET": "/private/orbitkv.sock"})
	slices.Sort(whole)
	want := []string{
		"HF_ENDPOINT=https://me:secret@mirror.example/hub", "HF_TOKEN=secret", "HOME=/home/x", "LMCACHE_REDIS_PASSWD=secret", "LMCACHE_http_auth=secret", "OMP_NUM_THREADS=4", "ORBITKV_SOCKET=/private/orbitkv.sock", "PYTHONHASHSEED=0", "PYTHONPATH=/src",
	}
	if !slices.Equal(whole, want) {
		t.Errorf("the environment is %q; want %q", whole, want)
	}
	wantKept := map[string]string{"HF_ENDPOINT": "https://(not kept)@mirror.example/hub", "OMP_NUM_THREADS": "4", "ORBITKV_SOCKET": "/private/orbitkv.sock", "PYTHONHASHSEED": "0", "PYTHONPATH": "/src"}
	if !maps.Equal(kept, wantKept) {
		t.Errorf("kept is %q; want %q", kept, wantKept)
	}
}

func TestPortsAreOutsideOfTheKernelsRange(t *testing.T) {
	low, high := ephemeralRange()
	if everything(low, high) {
		t.Skipf("the kernel takes ports from %d to %d, which leaves none beside", low, high)
	}
	ports, err := freePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if len(slices.Compact(slices.Clone(ports))) != 20 {
		t.Errorf("%v are not distinct", ports)
	}
	for _, p := range ports {
		if p < lowestPort || p > highestPort || p >= low && p <= high {
			t.Errorf("port %d is within %d to %d, or out of bounds", p, low, high)
		}
	}
}
