package launch

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"orbitkv/bench/record"
)

// engineSeed is the seed of every engine; sampling is greedy, so it decides only what an engine draws for itself.
const engineSeed = "42"

// BusyQueryWaitUS is how long an engine on a CPU waits for the Manager's answer, in microseconds: its cores are busy with the
// model, and a look-up that is given up for that reason would measure the machine's load. On a GPU the product's default of 1,000 holds.
const BusyQueryWaitUS = "500000"

const gib = 1 << 30

// process is one process of a stack before it is started.
type process struct {
	part        string
	command     []string
	environment map[string]string // that is set on top of the inherited one
	port        int
	health      string                                      // path that answers 200 when it is ready
	judge       func(answer []byte) (ready bool, err error) // of an answer of 200; nil where 200 is enough
	files       map[string]string
}

// url is where the process answers.
func (p *process) url() string { return "http://127.0.0.1:" + strconv.Itoa(p.port) }

// layout is where the processes of a stack meet, and what of the host they are given.
type layout struct {
	folder                  string // short, private
	engine, service, metric int    // ports
	cores                   string // that vLLM computes on without a GPU, as workerCores gives them
}

func (l layout) socket() string { return filepath.Join(l.folder, "orbitkv.sock") }

// plan returns the processes of a stack in the order of their start.
func plan(s *Spec, at layout) ([]process, error) {
	engine, err := engineProcess(s, at)
	if err != nil {
		return nil, err
	}
	switch s.Backend {
	case record.OrbitKV:
		return []process{managerProcess(s, at), engine}, nil
	case record.LMCache:
		return []process{lmcacheProcess(s, at), engine}, nil
	}
	return []process{engine}, nil
}

func engineProcess(s *Spec, at layout) (process, error) {
	p := process{part: record.PartEngine, port: at.engine, health: "/health", environment: commonEnvironment(), files: map[string]string{}}
	if s.Options.Engine == record.VLLM {
		transfer, err := vllmTransfer(s, at)
		if err != nil {
			return p, err
		}
		p.command = append(vllmCommand(s, at), transfer...)
		p.environment["VLLM_LOG_STATS_INTERVAL"] = "1"
		p.environment["VLLM_NO_USAGE_STATS"] = "1"
		p.environment["VLLM_HOST_IP"] = "127.0.0.1"
		if s.Options.Device == OnCPU {
			p.environment["VLLM_CPU_KVCACHE_SPACE"] = strconv.Itoa(deviceGiB(s))
			if at.cores != "" {
				p.environment[bindVariable] = at.cores
			}
		}
	} else {
		p.command = append(sglangCommand(s, at), sglangBackend(s, at, p.files)...)
		// /health answers without a request of its own, which would take a place in the cache.
		p.environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"
	}
	addBackendEnvironment(p.environment, s, at)
	p.command = append(p.command, s.Options.EngineArguments...)
	return p, nil
}

// deviceGiB is the size of vLLM's cache on a CPU in whole GiB, one more than its tokens need: the flag for its blocks decides.
func deviceGiB(s *Spec) int {
	return 1 + int(math.Ceil(float64(s.Options.GPUTokens)*float64(s.Model.BytesPerToken)/gib))
}

func vllmCommand(s *Spec, at layout) []string {
	o := &s.Options
	line := []string{
		o.EnginePython, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", strconv.Itoa(at.engine),
		"--model", o.Model, "--dtype", "bfloat16", "--seed", engineSeed,
		"--max-model-len", strconv.Itoa(s.MaxModelLen), "--max-num-seqs", strconv.Itoa(s.MaxSeqs),
		"--max-num-batched-tokens", strconv.Itoa(max(o.PrefillTokens, s.MaxSeqs)),
		"--block-size", strconv.Itoa(o.PageSize), "--num-gpu-blocks-override", strconv.Itoa(o.GPUTokens / o.PageSize),
		// One hash for all backends, so that they differ in the cache alone; OrbitKV takes only hashes that are equal in every process.
		"--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor", "--enable-prompt-tokens-details",
	}
	if o.Device == OnCPU {
		line = append(line, "--enforce-eager")
	}
	return line
}

// vllmTransfer is vLLM's flag for a connector, as the backend wants it.
func vllmTransfer(s *Spec, at layout) ([]string, error) {
	connector := map[string]any{"kv_role": "kv_both"}
	switch s.Backend {
	case record.Native:
		return nil, nil
	case record.CPU:
		extra := map[string]any{"cpu_bytes_to_use": hostBytes(s)}
		connector["kv_connector"] = "SimpleCPUOffloadConnector"
		if s.Options.CPUConnector == OffloadingConnector {
			connector["kv_connector"] = "OffloadingConnector"
			extra["block_size"] = s.Options.PageSize
		}
		connector["kv_connector_extra_config"] = extra
	case record.OrbitKV:
		connector["kv_connector"] = "OrbitKVConnector"
		connector["kv_connector_module_path"] = "orbitkv.vllm"
		connector["kv_load_failure_policy"] = "recompute"
	case record.LMCache:
		connector["kv_connector"] = "LMCacheMPConnector"
		connector["kv_connector_module_path"] = "lmcache.integration.vllm.lmcache_mp_connector"
		connector["kv_connector_extra_config"] = map[string]any{"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": at.service}
	case record.FlexKV:
		connector["kv_connector"] = "FlexKVConnectorV1"
	}
	text, err := json.Marshal(connector)
	if err != nil {
		return nil, fmt.Errorf("launch: the connector's configuration: %w", err)
	}
	return []string{"--kv-transfer-config", string(text)}, nil
}

func sglangCommand(s *Spec, at layout) []string {
	o := &s.Options
	line := []string{
		o.EnginePython, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", strconv.Itoa(at.engine),
		"--model-path", o.Model, "--dtype", "bfloat16", "--random-seed", engineSeed,
		"--context-length", strconv.Itoa(s.MaxModelLen), "--max-running-requests", strconv.Itoa(s.MaxSeqs),
		"--chunked-prefill-size", strconv.Itoa(o.PrefillTokens),
		"--page-size", strconv.Itoa(o.PageSize), "--max-total-tokens", strconv.Itoa(o.GPUTokens),
		// No request but the measurement's own: its first ones warm the engine up.
		"--skip-server-warmup", "--enable-cache-report", "--enable-metrics",
	}
	if o.Device == OnCPU {
		return append(line, "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")
	}
	return append(line, "--cuda-graph-max-bs-decode", strconv.Itoa(s.MaxSeqs))
}

// sglangBackend is what SGLang is told of the backend; what must lie in a file is put into files, by its path.
func sglangBackend(s *Spec, at layout, files map[string]string) []string {
	switch s.Backend {
	case record.CPU:
		return []string{"--enable-hierarchical-cache", "--hicache-size", wholeGiB(s), "--hicache-write-policy", "write_through"}
	case record.OrbitKV:
		return []string{"--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker"}
	case record.LMCache:
		path := filepath.Join(at.folder, "lmcache.yaml")
		files[path] = fmt.Sprintf("chunk_size: %d\nmp_host: 127.0.0.1\nmp_port: %d\n", s.Options.PageSize, at.service)
		return []string{"--enable-lmcache", "--lmcache-config-file", path}
	case record.FlexKV:
		return []string{"--enable-flexkv"}
	}
	return nil
}

// traceVariable has engine and Manager write their timelines.
const traceVariable = "ORBITKV_TRACE_TRANSFERS"

// addBackendEnvironment sets what an engine reads from its environment rather than from its command line.
func addBackendEnvironment(to map[string]string, s *Spec, at layout) {
	o := &s.Options
	switch s.Backend {
	case record.OrbitKV:
		to["ORBITKV_SOCKET"] = at.socket()
		if o.Device == OnCPU {
			to["ORBITKV_QUERY_WAIT_US"] = BusyQueryWaitUS
		}
		if o.TransferBackend != "" {
			to["ORBITKV_TRANSFER_BACKEND"] = o.TransferBackend
		}
		if o.TraceTransfers {
			to[traceVariable] = "1"
		}
	case record.FlexKV:
		to["FLEXKV_CPU_CACHE_GB"] = wholeGiB(s)
		to["FLEXKV_SERVER_RECV_PORT"] = "ipc://" + filepath.Join(at.folder, "flexkv")
		for _, off := range []string{"FLEXKV_SSD_CACHE_GB", "FLEXKV_ENABLE_GDS", "FLEXKV_ENABLE_MPS", "FLEXKV_ENABLE_METRICS"} {
			to[off] = "0"
		}
	}
}

func managerProcess(s *Spec, at layout) process {
	line := []string{
		s.Manager, "serve", "--socket", at.socket(), "--pool-size", strconv.FormatInt(hostBytes(s), 10),
		"--http-addr", "127.0.0.1:" + strconv.Itoa(at.service),
	}
	environment := map[string]string{}
	if s.Options.TraceTransfers {
		environment[traceVariable] = "1"
	}
	return process{
		part: record.PartManager, command: append(line, managerOptions(s)...), environment: environment, port: at.service, health: "/status", judge: populated,
	}
}

// managerOptions are the flags of a Manager for what was asked for; what was not is left to its own defaults.
func managerOptions(s *Spec) []string {
	o := &s.Options
	var line []string
	add := func(wanted bool, flag, value string) {
		if wanted {
			line = append(line, flag, value)
		}
	}
	add(o.QueryBudgetGiB > 0, "--query-budget", strconv.FormatInt(int64(o.QueryBudgetGiB*gib), 10))
	add(o.SSDGiB > 0, "--ssd-cache-path", s.SSDFolder)
	add(o.SSDGiB > 0, "--ssd-cache-capacity", strconv.FormatInt(ssdBytes(s), 10))
	add(o.SSDWritePolicy != "", "--ssd-write-policy", o.SSDWritePolicy)
	add(o.ProtectedPercent > 0, "--cache-protected-percent", strconv.Itoa(o.ProtectedPercent))
	add(o.ReadBatchMiB > 0, "--query-read-batch", strconv.Itoa(o.ReadBatchMiB<<20))
	add(o.StopPolicy != "", "--query-stop-policy", o.StopPolicy)
	add(o.ReadTimeoutMs > 0, "--query-read-timeout-ms", strconv.Itoa(o.ReadTimeoutMs))
	return line
}

// populated says whether the status of a Manager shows its whole pool in memory. A Manager serves from its first arena on; a measurement waits for all of
// them, so that no request pays for their first touch, and every engine registers the same ones.
func populated(answer []byte) (bool, error) {
	var status struct {
		SocketError string `json:"socket_error"`
		Pool        struct {
			Configured uint64 `json:"configured_bytes"`
			Populated  uint64 `json:"populated_bytes"`
			Error      string `json:"error"`
		} `json:"pool"`
	}
	switch err := json.Unmarshal(answer, &status); {
	case err != nil:
		return false, fmt.Errorf("its status is none of a Manager: %w", err)
	case status.Pool.Error != "":
		return false, fmt.Errorf("%d of the %d bytes of its pool are populated, and no more will be: %s", status.Pool.Populated, status.Pool.Configured, status.Pool.Error)
	}
	return status.SocketError == "" && status.Pool.Configured > 0 && status.Pool.Populated == status.Pool.Configured, nil
}

// lmcacheProcess is LMCache's daemon. Its counters are served by its HTTP port; its own port for them stays closed beside that one.
func lmcacheProcess(s *Spec, at layout) process {
	size := strconv.FormatFloat(s.Options.HostGiB, 'g', -1, 64)
	line := []string{
		s.Options.EnginePython, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1", "--port", strconv.Itoa(at.service),
		"--http-host", "127.0.0.1", "--http-port", strconv.Itoa(at.metric), "--chunk-size", strconv.Itoa(s.Options.PageSize),
		// All of its memory before the first request, so that no measured one pays for its growth.
		"--l1-size-gb", size, "--l1-init-size-gb", strconv.Itoa(int(math.Ceil(s.Options.HostGiB))), "--eviction-policy", "LRU",
	}
	return process{part: record.PartLMCache, command: line, environment: commonEnvironment(), port: at.metric, health: "/healthcheck"}
}

// commonEnvironment is what every Python process of a measurement runs with: equal hashes in all of them, output at once, and no look at a
// network.
func commonEnvironment() map[string]string {
	return map[string]string{
		"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1",
		"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
	}
}

// unsetVariables are left out of the inherited environment: each would overrule what the measurement sets, or change what is measured.
var unsetVariables = []string{"ORBITKV_CONFIG", "FLEXKV_CONFIG_PATH", "LMCACHE_CONFIG_FILE", "VLLM_BATCH_INVARIANT", "VLLM_PORT"}

// notedPrefixes begin the names of inherited variables that are known to matter; they are kept with the launch.
var notedPrefixes = []string{
	"PYTHON", "LD_", "OMP_", "KMP_", "MKL_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "VLLM_", "SGLANG_", "ORBITKV_",
	"LMCACHE_", "FLEXKV_", "HF_", "TRANSFORMERS_", "XDG_RUNTIME_DIR", "VIRTUAL_ENV",
}

// secretWords are in the names of variables whose values must not be kept, in letters of either case.
var secretWords = []string{"TOKEN", "SECRET", "PASS", "KEY", "CREDENTIAL", "AUTH"}

// userOfURL is the part of a URL that names a user or holds a password.
var userOfURL = regexp.MustCompile(`://[^/\s@]*@`)

// environmentOf returns the whole environment of a process, and that part of it which is kept with the launch.
func environmentOf(inherited []string, set map[string]string) (whole []string, kept map[string]string) {
	kept = map[string]string{}
	for _, entry := range inherited {
		name, value, _ := strings.Cut(entry, "=")
		if _, ours := set[name]; ours || slices.Contains(unsetVariables, name) {
			continue
		}
		whole = append(whole, entry)
		if matters(name) {
			kept[name] = userOfURL.ReplaceAllString(value, "://(not kept)@")
		}
	}
	for name, value := range set {
		whole = append(whole, name+"="+value)
		kept[name] = value
	}
	return whole, kept
}

// matters says whether a variable is kept with the launch.
func matters(name string) bool {
	return slices.ContainsFunc(notedPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) &&
		!slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(strings.ToUpper(name), word) })
}

func hostBytes(s *Spec) int64 { return int64(s.Options.HostGiB * gib) }

func ssdBytes(s *Spec) int64 { return int64(s.Options.SSDGiB * gib) }

// TakesWholeGiB says whether a backend of an engine can be given whole GiB of host memory alone.
func TakesWholeGiB(engine, backend string) bool {
	return backend == record.FlexKV || engine == record.SGLang && backend == record.CPU
}

// WholeGiB is the host memory of such a backend, GiB: never more than was asked for, but at least one.
func WholeGiB(hostGiB float64) float64 { return math.Max(1, math.Floor(hostGiB)) }

// wholeGiB writes it for a command line or a variable.
func wholeGiB(s *Spec) string { return strconv.FormatFloat(WholeGiB(s.Options.HostGiB), 'f', 0, 64) }
