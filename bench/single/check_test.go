package single

import (
	"math"
	"strings"
	"testing"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

// sound is an Ask that nothing is wrong with.
func sound() Ask {
	ask := Defaults()
	ask.Engine, ask.Device, ask.Model, ask.Output = record.VLLM, launch.OnCPU, "model", "out"
	ask.Backends = []string{record.Native, record.OrbitKV}
	ask.Written = map[string]bool{}
	return ask
}

func TestCheckRefusesByNameAndSaysWhatToDo(t *testing.T) {
	written := func(a *Ask, names ...string) {
		for _, name := range names {
			a.Written[name] = true
		}
	}
	for _, test := range []struct {
		name  string
		spoil func(*Ask)
		words []string // empty: nothing is refused
	}{
		{"sound", func(*Ask) {}, nil},
		{"engine", func(a *Ask) { a.Engine = "llama" }, []string{"--engine", `"llama"`, "name vllm or sglang"}},
		{"model", func(a *Ask) { a.Model = "" }, []string{"--model", "give the folder"}},
		{"python", func(a *Ask) { a.EnginePython = "" }, []string{"--engine-python"}},
		{"device", func(a *Ask) { a.Device = "tpu" }, []string{"--device", "cpu or cuda"}},
		{"no backend", func(a *Ask) { a.Backends = nil }, []string{"--backend", "name one or several"}},
		{"unknown backend", func(a *Ask) { a.Backends = []string{"redis"} }, []string{"--backend", `"redis"`}},
		{"backend twice", func(a *Ask) { a.Backends = []string{"native", "native"} }, []string{"--backend", "twice", "--order pairs"}},
		{"every backend on a GPU", func(a *Ask) {
			a.Device, a.Backends = launch.OnCUDA, []string{"native", "cpu", "orbitkv", "lmcache", "flexkv"}
		}, nil},
		{"ssd", func(a *Ask) { a.SSDGiB = 1; written(a, FlagSSDGiB) }, nil},
		{"negative ssd", func(a *Ask) { a.SSDGiB = -1 }, []string{"--ssd-gib", "-1"}},
		{"empty ssd", func(a *Ask) { written(a, FlagSSDGiB) }, []string{"--ssd-gib", "more than 0"}},
		{"ssd that is no number", func(a *Ask) { a.SSDGiB = math.NaN() }, []string{"--ssd-gib"}},
		{"ssd without end", func(a *Ask) { a.SSDGiB = math.Inf(1) }, []string{"--ssd-gib", "at most 1048576"}},
		{"ssd without orbitkv", func(a *Ask) { a.SSDGiB, a.Backends = 1, []string{"native", "cpu"}; written(a, FlagSSDGiB) }, []string{"--ssd-gib", "backend orbitkv", "not measured"}},
		{"ssd of partial", func(a *Ask) { a.SSDGiB, a.Workload = 1, record.WorkloadPartial; written(a, FlagSSDGiB) }, []string{"--ssd-gib", "no use for it", "latency or concurrent or sustained"}},
		{"ssd with everything", func(a *Ask) {
			a.SSDGiB, a.SSDWritePolicy, a.ProtectedPercent, a.ReadBatchMiB, a.StopPolicy, a.ReadTimeoutMs = 1, "reuse", 90, 16, "timeout", 600_000
			written(a, FlagSSDGiB, FlagWritePolicy, FlagProtected, FlagReadBatch, FlagStopPolicy, FlagReadTimeout)
		}, nil},
		{"write policy", func(a *Ask) { a.SSDGiB, a.SSDWritePolicy = 1, "some" }, []string{"--ssd-write-policy", `"some"`, "all or reuse"}},
		{"write policy without ssd", func(a *Ask) { a.SSDWritePolicy = "reuse"; written(a, FlagWritePolicy) }, []string{"--ssd-write-policy", "--ssd-gib"}},
		{"write policy without orbitkv", func(a *Ask) { a.SSDGiB, a.Backends = 1, []string{"native"}; written(a, FlagWritePolicy) }, []string{"--ssd-write-policy", "backend orbitkv"}},
		{"protection", func(a *Ask) { a.ProtectedPercent = 91 }, []string{"--cache-protected-percent", "0 and 90"}},
		{"protection of memory alone", func(a *Ask) { a.ProtectedPercent = 20; written(a, FlagProtected) }, nil},
		{"protection without orbitkv", func(a *Ask) { a.ProtectedPercent, a.Backends = 20, []string{"native"}; written(a, FlagProtected) }, []string{"--cache-protected-percent"}},
		{"empty read batch", func(a *Ask) { a.SSDGiB = 1; written(a, FlagReadBatch) }, []string{"--read-batch-mib", "between 1"}},
		{"read batch without ssd", func(a *Ask) { a.ReadBatchMiB = 16; written(a, FlagReadBatch) }, []string{"--read-batch-mib", "--ssd-gib"}},
		{"stop policy", func(a *Ask) { a.SSDGiB, a.StopPolicy = 1, "never" }, []string{"--stop-policy", `"never"`, "best_effort"}},
		{"stop policy without ssd", func(a *Ask) { a.StopPolicy = "best_effort"; written(a, FlagStopPolicy) }, []string{"--stop-policy", "--ssd-gib"}},
		{"stop in no time", func(a *Ask) { a.SSDGiB, a.StopPolicy = 1, "timeout" }, []string{"--stop-policy timeout", "--read-timeout-ms"}},
		{"a time without its policy", func(a *Ask) { a.SSDGiB, a.ReadTimeoutMs = 1, 5 }, []string{"--read-timeout-ms", "--stop-policy timeout"}},
		{"a time without end", func(a *Ask) { a.SSDGiB, a.StopPolicy, a.ReadTimeoutMs = 1, "timeout", 600_001 }, []string{"--read-timeout-ms", "600000"}},
		{"warm-up", func(a *Ask) { a.QueueWarmup = "on" }, []string{"--queue-warmup on", "warms no queued requests"}},
		{"warm-up word", func(a *Ask) { a.QueueWarmup = "maybe" }, []string{"--queue-warmup", "neither on nor off"}},
		{"transfer backend", func(a *Ask) { a.TransferBackend = "tape" }, []string{"--orbitkv-transfer-backend", `"tape"`, "name auto or host"}},
		{"transfer backend of a GPU", func(a *Ask) { a.TransferBackend = "kernel" }, []string{`"kernel" with --device cpu`, "auto or host"}},
		{"transfer backend of a CPU", func(a *Ask) { a.Device, a.TransferBackend = launch.OnCUDA, "host" }, []string{`"host" with --device cuda`, "auto or direct or kernel"}},
		{"host transfer backend", func(a *Ask) { a.TransferBackend = "host"; written(a, FlagTransfer) }, nil},
		{"kernel transfer backend", func(a *Ask) { a.Device, a.TransferBackend = launch.OnCUDA, "kernel"; written(a, FlagTransfer) }, nil},
		{"any transfer backend", func(a *Ask) { a.TransferBackend = "auto"; written(a, FlagTransfer) }, nil},
		{"budget without orbitkv", func(a *Ask) { a.Backends = []string{"native"}; written(a, FlagQueryBudget) }, []string{"--query-budget-gib", "not measured", "add it to --backend"}},
		{"transfer without orbitkv", func(a *Ask) { a.Backends = []string{"native"}; written(a, FlagTransfer) }, []string{"--orbitkv-transfer-backend"}},
		{"trace without orbitkv", func(a *Ask) { a.Backends = []string{"native"}; written(a, FlagTrace) }, []string{"--trace-transfers"}},
		{"connector", func(a *Ask) { a.CPUConnector = "fast" }, []string{"--cpu-connector", "offloading or simple"}},
		{"connector without cpu", func(a *Ask) { written(a, FlagCPUConnector) }, []string{"--cpu-connector", "backend cpu"}},
		{"connector of sglang", func(a *Ask) { a.Engine, a.Backends = record.SGLang, []string{"cpu"}; written(a, FlagCPUConnector) }, []string{"--cpu-connector", "--engine vllm"}},
		{"connector with cpu", func(a *Ask) { a.Backends = []string{"cpu"}; written(a, FlagCPUConnector) }, nil},
		{"workload", func(a *Ask) { a.Workload = "chat" }, []string{"--workload", `"chat"`}},
		{"window of latency", func(a *Ask) { written(a, FlagDuration) }, []string{"--duration-seconds", "no use for it", "--workload sustained"}},
		{"working set of latency", func(a *Ask) { written(a, FlagWorkingSet) }, []string{"--working-set"}},
		{"reuse of latency", func(a *Ask) { written(a, FlagReuseRatio) }, []string{"--reuse-ratio"}},
		{"cap of latency", func(a *Ask) { written(a, FlagMaxRequests) }, []string{"--max-requests"}},
		{"concurrency of latency", func(a *Ask) { written(a, FlagConcurrencies) }, []string{"--concurrencies", "concurrent or sustained"}},
		{"repeats of sustained", func(a *Ask) { a.Workload = record.WorkloadSustained; written(a, FlagRepeats) }, []string{"--repeats", "latency or partial or concurrent"}},
		{"page", func(a *Ask) { a.PageSize = 0 }, []string{"--page-size"}},
		{"few device tokens", func(a *Ask) { a.GPUTokens, a.Lengths = 128, []int{64} }, []string{"--gpu-tokens", "take 256 at least"}},
		{"torn device page", func(a *Ask) { a.GPUTokens = 16000 + 33 }, []string{"--gpu-tokens", "whole pages of 64", "take 16064"}},
		{"prefill", func(a *Ask) { a.PrefillTokens = 32 }, []string{"--prefill-tokens"}},
		{"no length", func(a *Ask) { a.Lengths = nil }, []string{"--lengths"}},
		{"short length", func(a *Ask) { a.Lengths = []int{63} }, []string{"--lengths", "63", "64 at least"}},
		{"shortest length", func(a *Ask) { a.Lengths = []int{64} }, nil},
		{"long length", func(a *Ask) { a.Lengths = []int{12288} }, []string{"--lengths", "three quarters", "--gpu-tokens"}},
		{"longest length", func(a *Ask) { a.Lengths = []int{12287} }, nil},
		{"length twice", func(a *Ask) { a.Lengths = []int{1024, 1024} }, []string{"--lengths", "twice", "--repeats"}},
		{"length of a partial hit", func(a *Ask) { a.Workload, a.Lengths = record.WorkloadPartial, []int{255} }, []string{"--lengths", "take 256 at least"}},
		{"torn pressure", func(a *Ask) { a.PressureTokens = 12000 }, []string{"--pressure-tokens", "multiple of --page-size"}},
		{"no pressure", func(a *Ask) { written(a, FlagPressure) }, []string{"--pressure-tokens"}},
		{"too much pressure", func(a *Ask) { a.PressureTokens = 16384 }, []string{"--pressure-tokens", "do not fit", "16320 at most"}},
		{"too little pressure", func(a *Ask) { a.PressureTokens = 8192 }, []string{"--pressure-tokens", "stay in device memory", "more than 8192"}},
		{"pressure", func(a *Ask) { a.PressureTokens = 12288 }, nil},
		{"no output", func(a *Ask) { a.OutputTokens = 0 }, []string{"--output-tokens"}},
		{"much output", func(a *Ask) { a.OutputTokens = 65 }, []string{"--output-tokens", "1 and 64"}},
		{"no repeats", func(a *Ask) { a.Repeats = 0 }, []string{"--repeats"}},
		{"objective", func(a *Ask) { a.SLOTTFTms = -1 }, []string{"--slo-ttft-ms"}},
		{"objective that is no number", func(a *Ask) { a.SLOTPOTms = math.NaN() }, []string{"--slo-tpot-ms"}},
		{"settle", func(a *Ask) { a.SettleSeconds = -1 }, []string{"--settle-seconds"}},
		{"objective of latency", func(a *Ask) { written(a, FlagSLOTTFT) }, []string{"--slo-ttft-ms", "no use for it", "concurrent or sustained"}},
		{"objective of partial", func(a *Ask) { a.Workload = record.WorkloadPartial; written(a, FlagSLOTPOT) }, []string{"--slo-tpot-ms", "no use for it"}},
		{"odd page of vLLM", func(a *Ask) { a.PageSize = 63 }, []string{"--page-size", "multiple of 32", "take 64"}},
		{"odd page of vLLM on a GPU", func(a *Ask) { a.Device, a.Backends, a.PageSize = launch.OnCUDA, []string{"native"}, 40 }, []string{"--page-size", "multiple of 16", "take 64"}},
		{"page of vLLM on a GPU", func(a *Ask) { a.Device, a.Backends, a.PageSize = launch.OnCUDA, []string{"native"}, 16 }, nil},
		{"odd page of SGLang", func(a *Ask) { a.Engine, a.PageSize, a.GPUTokens = record.SGLang, 63, 63*256 }, nil},
		{"the engine's port", func(a *Ask) { a.EngineArguments = []string{"--port=8000"} }, []string{"--engine-arg", "vllm's --port", "leave it out"}},
		{"the engine's pages", func(a *Ask) { a.EngineArguments = []string{"--block_size", "32"} }, []string{"--engine-arg", "--block-size", "say it by --page-size"}},
		{"SGLang's pages", func(a *Ask) { a.Engine, a.EngineArguments = record.SGLang, []string{"--page-size", "32"} }, []string{"--engine-arg", "say it by --page-size"}},
		{"the engine's requests at a time", func(a *Ask) {
			a.EngineArguments = []string{"--max-num-seqs=256", "--enforce-eager", "--max-running-requests", "9"}
		}, nil},
		{"empty engine argument", func(a *Ask) { a.EngineArguments = []string{"--x", " "} }, []string{"--engine-arg", "empty"}},
		{"no concurrency", func(a *Ask) { a.Workload, a.Concurrencies = record.WorkloadConcurrent, nil }, []string{"--concurrencies"}},
		{"concurrency", func(a *Ask) { a.Concurrencies = []int{0} }, []string{"--concurrencies", "between 1 and 64"}},
		{"concurrency twice", func(a *Ask) { a.Concurrencies = []int{4, 4} }, []string{"--concurrencies", "twice"}},
		{"window", func(a *Ask) { a.DurationSeconds = 0 }, []string{"--duration-seconds"}},
		{"cap", func(a *Ask) { a.MaxRequests = 100_001 }, []string{"--max-requests", "100000"}},
		{"working set", func(a *Ask) { a.WorkingSet = 1025 }, []string{"--working-set", "1024"}},
		{"reuse", func(a *Ask) { a.ReuseRatio = 1.5 }, []string{"--reuse-ratio", "0 and 1"}},
		{"reuse that is no number", func(a *Ask) { a.ReuseRatio = math.NaN() }, []string{"--reuse-ratio"}},
		{"host", func(a *Ask) { a.HostGiB = 0 }, []string{"--host-gib"}},
		{"budget", func(a *Ask) { a.QueryBudgetGiB = 17; written(a, FlagQueryBudget) }, []string{"--query-budget-gib", "at most the 16 of --host-gib"}},
		{"order", func(a *Ask) { a.Order = "random" }, []string{"--order", "forward, reversed or pairs"}},
		{"no output folder", func(a *Ask) { a.Output = "" }, []string{"--output", "absent or empty"}},
		{"nothing to resume", func(a *Ask) { a.Output, a.Resume = "", true }, []string{"--resume", "--output DIR"}},
		{"more device tokens than there are", func(a *Ask) { a.GPUTokens = math.MaxInt / 64 * 64 }, []string{"--gpu-tokens", "67108864 at most"}},
		{"a page without end", func(a *Ask) { a.PageSize = math.MaxInt }, []string{"--page-size", "67108864 at most"}},
		{"a length without end", func(a *Ask) { a.Lengths = []int{math.MaxInt} }, []string{"--lengths", "three quarters"}},
		{"an objective without end", func(a *Ask) { a.SLOTTFTms = math.Inf(1) }, []string{"--slo-ttft-ms", "at most an hour"}},
		{"host memory without end", func(a *Ask) { a.HostGiB = 1e300 }, []string{"--host-gib", "at most 1048576"}},
		{"a part without end", func(a *Ask) { a.PartSeconds = math.MaxInt }, []string{"--part-seconds", "at most 604800"}},
		{"part", func(a *Ask) { a.PartSeconds = -1 }, []string{"--part-seconds"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ask := sound()
			test.spoil(&ask)
			err := ask.Check()
			if len(test.words) == 0 {
				if err != nil {
					t.Errorf("it is refused: %v", err)
				}
				return
			}
			says(t, err, test.words...)
		})
	}
}

func TestEveryFaultOfAnAskIsSaidAtOnce(t *testing.T) {
	ask := sound()
	ask.Engine, ask.SSDGiB, ask.Repeats, ask.Output = "", -1, 0, ""
	err := ask.Check()
	says(t, err, "--engine", "--ssd-gib", "--repeats", "--output")
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 4 {
		t.Errorf("%d lines for 4 faults: %v", lines, err)
	}
}

func TestWhatTheModelCannotDoIsRefused(t *testing.T) {
	ask := sound()
	ask.complete()
	if ask.PressureTokens != 12288 || ask.longest() != 12352 {
		t.Errorf("pressure of %d tokens, the longest request %d: want three quarters of the device's and 64 more", ask.PressureTokens, ask.longest())
	}
	says(t, ask.checkModel(record.Model{Vocabulary: 4096, Positions: 12351}), "12352 tokens", "12351 positions")
	says(t, ask.checkModel(record.Model{Vocabulary: 63, Positions: 40960}), "vocabulary", "63")
	if err := ask.checkModel(record.Model{Vocabulary: 4096, Positions: 12352}); err != nil {
		t.Error(err)
	}
}

func TestNotesTellOfAnExternalCacheThatIsTooSmall(t *testing.T) {
	ask := sound()
	ask.complete()
	ask.Device = launch.OnCUDA // on a CPU there is one note more
	model := record.Model{BytesPerToken: 147456}
	if notes := ask.notes(model); len(notes) != 0 {
		t.Errorf("16 GiB are said to be too few: %q", notes)
	}
	ask.HostGiB = 2
	if notes := strings.Join(ask.notes(model), "\n"); !strings.Contains(notes, "may be gone") || !strings.Contains(notes, "it is the smaller one") {
		t.Errorf("of 2 GiB the notes say %q", notes)
	}
}

func TestVLLMOnAGPURunsAsManyRequestsAsItsGraphsNeed(t *testing.T) {
	for _, test := range []struct {
		engine, device, workload string
		concurrencies            []int
		want                     int
	}{
		{record.VLLM, launch.OnCUDA, record.WorkloadLatency, []int{1}, 256},
		{record.VLLM, launch.OnCUDA, record.WorkloadConcurrent, []int{1, 64}, 256},
		{record.VLLM, launch.OnCUDA, record.WorkloadSustained, []int{300}, 300},
		{record.VLLM, launch.OnCPU, record.WorkloadLatency, []int{64}, 8},
		{record.VLLM, launch.OnCPU, record.WorkloadConcurrent, []int{1, 16}, 16},
		{record.SGLang, launch.OnCUDA, record.WorkloadLatency, []int{1}, 8},
		{record.SGLang, launch.OnCUDA, record.WorkloadConcurrent, []int{64}, 64},
	} {
		ask := sound()
		ask.Engine, ask.Device, ask.Workload, ask.Concurrencies = test.engine, test.device, test.workload, test.concurrencies
		if got := ask.seqs(); got != test.want {
			t.Errorf("%s on %s, %s with %v: %d requests at a time, want %d", test.engine, test.device, test.workload, test.concurrencies, got, test.want)
		}
	}
}

func TestNotesTellOfABackendThatTakesWholeGiB(t *testing.T) {
	ask := sound()
	ask.complete()
	ask.Device = launch.OnCUDA // on a CPU there is one note more
	model := record.Model{BytesPerToken: 1}
	for _, test := range []struct {
		engine, backend string
		host            float64
		want            string
	}{
		{record.SGLang, record.CPU, 0.25, "cpu takes whole GiB alone and has 1 of host memory, the other backends 0.25"},
		{record.SGLang, record.CPU, 2.5, "has 2 of host memory, the other backends 2.5"},
		{record.VLLM, record.FlexKV, 0.5, "flexkv takes whole GiB"},
		{record.VLLM, record.FlexKV, 16, "flexkv tells neither what it restores"},
		{record.VLLM, record.CPU, 0.25, ""},
		{record.SGLang, record.OrbitKV, 0.25, ""},
		{record.SGLang, record.CPU, 16, ""},
	} {
		ask.Engine, ask.Backends, ask.HostGiB = test.engine, []string{record.Native, test.backend}, test.host
		notes := strings.Join(ask.notes(model), "\n")
		if !strings.Contains(notes, test.want) || test.want == "" && notes != "" {
			t.Errorf("%s with %s and %g GiB: the notes say %q, want %q", test.engine, test.backend, test.host, notes, test.want)
		}
	}
}

func TestNotesTellOfBurstsThatDoNotFit(t *testing.T) {
	ask := sound()
	ask.complete()
	ask.Device = launch.OnCUDA // on a CPU there is one note more
	ask.Workload, ask.Lengths, ask.Concurrencies, ask.GPUTokens = record.WorkloadConcurrent, []int{1024, 4096}, []int{1, 5}, 13312
	model := record.Model{BytesPerToken: 147456}
	if notes := ask.notes(model); len(notes) != 0 {
		t.Errorf("a burst of three times 1024 and two of 4096 does not fit: %q", notes)
	}
	ask.GPUTokens = 11264
	if notes := ask.notes(model); len(notes) != 0 {
		t.Errorf("a burst of as many tokens as device memory holds does not fit: %q", notes)
	}
	ask.GPUTokens--
	if notes := strings.Join(ask.notes(model), "\n"); !strings.Contains(notes, "prompts of 11264 tokens and device memory holds 11263") {
		t.Errorf("the notes say %q", notes)
	}
	ask.HostGiB, ask.GPUTokens = 4.9, 16384
	if notes := strings.Join(ask.notes(model), "\n"); !strings.Contains(notes, "a burst of 11264 tokens and its pressure need 4.92 GiB") {
		t.Errorf("of 4.9 GiB the notes say %q", notes)
	}
}

func TestNotesTellOfAConnectorThatCountsNothing(t *testing.T) {
	ask := sound()
	ask.complete()
	ask.Device = launch.OnCUDA // on a CPU there is one note more
	ask.Engine, ask.Backends = record.VLLM, []string{record.CPU, record.OrbitKV, record.LMCache}
	if notes := ask.notes(record.Model{BytesPerToken: 1}); len(notes) != 0 {
		t.Errorf("the notes say %q", notes)
	}
	ask.CPUConnector = launch.SimpleConnector
	if notes := strings.Join(ask.notes(record.Model{BytesPerToken: 1}), "\n"); !strings.Contains(notes, "cpu tells neither") {
		t.Errorf("the notes say %q", notes)
	}
}
