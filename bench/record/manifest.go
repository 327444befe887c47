package record

import "time"

// Format is the version of the files of an output directory.
const Format = 1

// Options are what a run was asked for; equal options and equal seed give equal prompts in equal order.
type Options struct {
	Engine           string   `json:"engine"`   // vllm or sglang
	Backends         []string `json:"backends"` // in the order of the first pass
	CPUConnector     string   `json:"cpu_connector"`
	Model            string   `json:"model"`
	Device           string   `json:"device"` // cpu or cuda
	Workload         string   `json:"workload"`
	Lengths          []int    `json:"lengths"`           // prompt tokens
	PartialPercents  []int    `json:"partial_percents"`  // percent of a prompt that was seen before, of the partial workload
	GPUTokens        int      `json:"gpu_tokens"`        // tokens that fit in device memory
	PressureTokens   int      `json:"pressure_tokens"`   // of one pressure request
	PressureCount    int      `json:"pressure_requests"` // pressure requests after each prompt
	OutputTokens     int      `json:"output_tokens"`
	PageSize         int      `json:"page_size"`      // tokens; vLLM's block size
	PrefillTokens    int      `json:"prefill_tokens"` // of one engine step
	HostGiB          float64  `json:"host_gib"`
	QueryBudgetGiB   float64  `json:"query_budget_gib,omitempty"`
	SSDGiB           float64  `json:"ssd_gib,omitempty"`                 // of OrbitKV's SSD tier; 0 is none
	SSDWritePolicy   string   `json:"ssd_write_policy,omitempty"`        // all or reuse; empty is the Manager's own, and so for those that follow
	ProtectedPercent int      `json:"cache_protected_percent,omitempty"` // of the pool
	ReadBatchMiB     int      `json:"read_batch_mib,omitempty"`          // of unfinished SSD reads that a query may have
	StopPolicy       string   `json:"stop_policy,omitempty"`             // wait_complete, best_effort or timeout
	ReadTimeoutMs    int      `json:"read_timeout_ms,omitempty"`         // of the policy timeout
	TransferBackend  string   `json:"orbitkv_transfer_backend,omitempty"`
	TraceTransfers   bool     `json:"trace_transfers"`
	Concurrencies    []int    `json:"concurrencies"`
	DurationSeconds  int      `json:"duration_seconds"` // of admission
	MaxRequests      int      `json:"max_requests"`
	WorkingSet       int      `json:"working_set"` // prefixes
	ReuseRatio       float64  `json:"reuse_ratio"`
	SLOTTFTms        float64  `json:"slo_ttft_ms,omitempty"`
	SLOTPOTms        float64  `json:"slo_tpot_ms,omitempty"`
	Repeats          int      `json:"repeats"` // independent prefixes of each length
	Seed             int64    `json:"seed"`
	Order            string   `json:"order"` // forward, reversed or pairs
	SettleSeconds    float64  `json:"settle_seconds"`
	EnginePython     string   `json:"engine_python"`
	EngineArguments  []string `json:"engine_arguments,omitempty"`
}

// Evicts says whether the prompts of a backend are also asked for after host memory was emptied: with an SSD tier OrbitKV's are. The engine alone has no host
// memory to lose, and its rows are what the same requests cost without a cache. The memory of other backends cannot be emptied from outside.
func (o *Options) Evicts(backend string) bool {
	return o.SSDGiB > 0 && (backend == OrbitKV || backend == Native) && (o.Workload == WorkloadLatency || o.Workload == WorkloadConcurrent)
}

// Manifest is manifest.json: what was run, on what, by which command.
type Manifest struct {
	Format   int            `json:"format"`
	Version  string         `json:"version"` // of orbitkv
	Started  time.Time      `json:"started"`
	Attempts []Attempt      `json:"attempts"`
	Options  Options        `json:"options"`
	Machine  Machine        `json:"machine"`
	Model    Model          `json:"model"`
	Probe    Probe          `json:"probe"`
	Storage  []Storage      `json:"storage"`
	Launches []Launch       `json:"launches"`
	Plan     map[string]int `json:"plan"` // cells of each backend
	Notes    []string       `json:"notes,omitempty"`
}

// Attempt is one start of the run; a second one is a resumed run.
type Attempt struct {
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Outcome string    `json:"outcome"` // complete, part, failed or interrupted; empty while it runs or when it was killed
}

// Machine is the host.
type Machine struct {
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"` // that this process may use
	NUMANodes   int    `json:"numa_nodes"`
	MemoryBytes uint64 `json:"memory_bytes"` // the smaller of the machine's and the control group's
	Kernel      string `json:"kernel"`
	GPUs        []GPU  `json:"gpus"`
}

// GPU is one line of nvidia-smi.
type GPU struct {
	Name      string `json:"name"`
	MemoryMiB int    `json:"memory_mib"`
	Driver    string `json:"driver"`
	PCIe      string `json:"pcie"`       // generation and width as linked now
	SMClock   string `json:"sm_clock"`   // maximum, MHz
	PowerCap  string `json:"power_cap"`  // W
	OtherUses int    `json:"other_uses"` // compute processes that were on it before the run
}

// Model is the model's shape as its config.json gives it.
type Model struct {
	Path          string `json:"path"`
	Type          string `json:"type"`
	Layers        int    `json:"layers"`
	KVHeads       int    `json:"kv_heads"`
	HeadDim       int    `json:"head_dim"`
	Vocabulary    int    `json:"vocabulary"`
	Positions     int    `json:"positions"`
	BytesPerToken int    `json:"bytes_per_token"` // of KV over all layers, two bytes a value
	ConfigSHA256  string `json:"config_sha256"`
}

// Probe is what the engine's own Python says of itself, before the first start.
type Probe struct {
	Python        string            `json:"python"`
	Packages      map[string]string `json:"packages"` // version by name; absent ones are left out
	LinkBytesPerS float64           `json:"link_bytes_per_s"`
	LinkHow       string            `json:"link_how"`              // what was timed: pinned host memory to device, or host memory to host memory
	CUDADevice    string            `json:"cuda_device,omitempty"` // the first GPU that its torch sees; empty without one, and where --device is cpu
}

// Storage is where a path lies.
type Storage struct {
	Use        string `json:"use"` // output, model or ssd
	Path       string `json:"path"`
	Mount      string `json:"mount"`
	Filesystem string `json:"filesystem"`
	Device     string `json:"device"`
	Direct     string `json:"direct"` // whether O_DIRECT held: held, refused: REASON, or not used
}

// Launch is one process that the run started.
type Launch struct {
	Backend      string            `json:"backend"`
	Pass         int               `json:"pass"`
	Attempt      int               `json:"attempt"`
	Part         string            `json:"part"` // engine, manager or lmcache
	Control      bool              `json:"control,omitempty"`
	Command      []string          `json:"command"`
	Environment  map[string]string `json:"environment"` // that was set or that is known to matter
	Log          string            `json:"log"`         // in the output directory
	Started      time.Time         `json:"started"`
	ReadySeconds float64           `json:"ready_seconds"` // 0 when it never was
	Exit         string            `json:"exit"`          // empty while it runs
	Busy         Busy              `json:"busy,omitzero"`
}

// Busy is how much the whole machine had to do beside the start of a process and its end: load averages of one minute, which hold the run's own work, too.
type Busy struct {
	Processors int     `json:"processors"` // that are online, whoever may use them; 0 where the kernel does not tell
	Before     float64 `json:"load_before"`
	After      float64 `json:"load_after"` // 0 while it runs
}
