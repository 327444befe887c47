package record

// The engines.
const (
	VLLM   = "vllm"
	SGLang = "sglang"
)

// The backends: where a prompt's KV may come from besides the engine's own device memory.
const (
	Native  = "native"  // nothing else
	CPU     = "cpu"     // what the engine brings itself to keep KV in host memory
	OrbitKV = "orbitkv" // a Cache Manager of this build
	LMCache = "lmcache" // its daemon
	FlexKV  = "flexkv"  // inside the engine
)

// The workloads.
const (
	WorkloadLatency    = "latency"
	WorkloadPartial    = "partial"
	WorkloadConcurrent = "concurrent"
	WorkloadSustained  = "sustained"
)

// The variants of the concurrent workload.
const (
	Shared = "shared" // one prompt for all requests of a burst
	Mixed  = "mixed"  // one each, with the lengths in turn
)

// The outcomes of an attempt.
const (
	Complete    = "complete"
	Part        = "part" // its time was used up
	Failed      = "failed"
	Interrupted = "interrupted"
)

// The stages at which a backend fails.
const (
	AtStart = "start"
	AtServe = "serve"
	AtEnd   = "end"
)

// The parts of what runs: processes, and the client that asks them.
const (
	PartEngine  = "engine"
	PartManager = "manager"
	PartLMCache = "lmcache"
	PartClient  = "client"
)

// ControlCells begins the names of the cells in which differing outputs are attributed; they never finish.
const ControlCells = "control"

// Sources are all sources in the order in which they are shown.
var Sources = []Source{FromHBM, FromExternal, FromBoth, Miss, Unverified}
