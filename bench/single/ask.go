package single

import (
	"orbitkv/bench/launch"
	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// The orders of a run.
const (
	Forward  = "forward"  // one pass, backends and lengths as they were named
	Reversed = "reversed" // one pass, both in the opposite order
	Pairs    = "pairs"    // both passes, so that what drifts in between cancels
)

// Names of the flags that more than one check speaks of.
const (
	FlagBackend       = "backend"
	FlagGPUTokens     = "gpu-tokens"
	FlagLengths       = "lengths"
	FlagPageSize      = "page-size"
	FlagPressure      = "pressure-tokens"
	FlagQueryBudget   = "query-budget-gib"
	FlagTransfer      = "orbitkv-transfer-backend"
	FlagTrace         = "trace-transfers"
	FlagCPUConnector  = "cpu-connector"
	FlagConcurrencies = "concurrencies"
	FlagDuration      = "duration-seconds"
	FlagMaxRequests   = "max-requests"
	FlagWorkingSet    = "working-set"
	FlagReuseRatio    = "reuse-ratio"
	FlagRepeats       = "repeats"
	FlagHostGiB       = "host-gib"
	FlagSSDGiB        = "ssd-gib"
	FlagWritePolicy   = "ssd-write-policy"
	FlagProtected     = "cache-protected-percent"
	FlagReadBatch     = "read-batch-mib"
	FlagStopPolicy    = "stop-policy"
	FlagReadTimeout   = "read-timeout-ms"
	FlagSLOTTFT       = "slo-ttft-ms"
	FlagSLOTPOT       = "slo-tpot-ms"
	FlagOutput        = "output"
	FlagResume        = "resume"
)

// Fixed sizes of the workloads.
const (
	warmUpPrompts   = 3   // before the first cell of a start
	warmUpTokens    = 256 // of each of them, or the longest measured prompt where that is shorter
	pressureCount   = 2   // pressure requests after a prompt
	answerRoom      = 64  // tokens that the engine's longest request has beside its prompt
	seqsMin         = 8   // requests that the engine may run at a time, where the workload needs no more
	seqsGraphs      = 256 // the least of them for vLLM on a GPU, which captures CUDA graphs for twice as many tokens: seqs says why
	concurrencyMax  = load.ConnsMax
	lengthsMax      = 32
	repeatsMax      = 1000
	maxRequestsMax  = 100_000
	workingSetMax   = 1024
	outputTokensMax = 64
	lengthMin       = 64
	gpuTokensMax    = 1 << 26
	hostGiBMax      = 1 << 20 // a pebibyte
	protectedMax    = 90      // percent
	readBatchMax    = 1 << 20 // MiB
	readTimeoutMax  = 600_000 // ms
	errorMax        = 4 << 10 // bytes of why an answer is not whole
	settleMax       = 60.0    // seconds
	hoursMax        = 24      // of a window of admission
	objectiveMax    = 3.6e6   // ms
	partSecondsMax  = 7 * 24 * 3600
)

// partialPercents are the shares of a prompt that were seen before, in the partial workload.
var partialPercents = []int{25, 50, 75}

// Ask is what a caller wants measured. Zero fields are not defaults: Defaults makes one that has them.
type Ask struct {
	record.Options
	Output      string          // folder of the run
	Resume      bool            // go on with the run in Output
	PartSeconds int             // end before this many seconds at a cell's boundary; 0 is no limit
	QueueWarmup string          // on or off
	Written     map[string]bool // names of the flags that the caller wrote, as opposed to defaults
}

// Defaults returns what is measured when nothing else is said.
func Defaults() Ask {
	return Ask{
		Options: record.Options{
			Backends: []string{record.Native}, CPUConnector: launch.OffloadingConnector, Workload: record.WorkloadLatency, Lengths: []int{1024, 4096, 8192},
			GPUTokens: 16384, OutputTokens: 16, PageSize: 64, PrefillTokens: 8192, HostGiB: 16, Concurrencies: []int{1, 4, 8, 16},
			DurationSeconds: 60, MaxRequests: 10_000, WorkingSet: 12, ReuseRatio: 0.75, Repeats: 5, Seed: 20260920, Order: Forward,
			SettleSeconds: 1.2, EnginePython: "python3",
		},
		QueueWarmup: "off",
	}
}

// complete fills in what follows from other fields. It comes after check.
func (a *Ask) complete() {
	a.PressureCount = pressureCount
	if a.PressureTokens == 0 {
		a.PressureTokens = a.GPUTokens * 3 / 4 / a.PageSize * a.PageSize
	}
	if a.Workload == record.WorkloadPartial {
		a.PartialPercents = partialPercents
	}
}

// longest returns the tokens of the longest request, its answer included.
func (a *Ask) longest() int {
	longest := a.PressureTokens
	for _, length := range a.Lengths {
		longest = max(longest, length)
	}
	return longest + answerRoom
}

// seqs returns how many requests the engine must be able to run at a time. vLLM on a GPU gets seqsGraphs at least, although few of them ever run: it captures
// CUDA graphs for batches of up to twice that many tokens alone, and the last page of a prompt, which every hit computes again, must be within them.
// With 8 those 64 tokens run without a graph, and what is then measured is the launch of kernels: on an H200 the TTFT p50 of a hit of 1,024 tokens in
// device memory was 45.7 ms with 8 and 22.2 ms with 256. SGLang's graphs are of decoding alone.
func (a *Ask) seqs() int {
	seqs := seqsMin
	if a.Engine == record.VLLM && a.Device == launch.OnCUDA {
		seqs = seqsGraphs
	}
	if a.Workload == record.WorkloadConcurrent || a.Workload == record.WorkloadSustained {
		for _, c := range a.Concurrencies {
			seqs = max(seqs, c)
		}
	}
	return seqs
}
