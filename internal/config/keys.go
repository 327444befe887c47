package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Side says which program reads a key.
type Side string

// The sides.
const (
	Manager Side = "Manager" // orbitkv serve and the verbs that talk to it
	Adapter Side = "adapter" // the engine's processes
	Both    Side = "both"
)

// Key is one row of the table.
type Key struct {
	Flag        string // of orbitkv serve, without dashes; empty when there is none
	Environment string // variable; empty when there is none
	Connector   string // name in vLLM's kv_connector_extra_config and in SGLang's ORBITKV_CONFIG; empty when there is none
	Side        Side
	Default     string   // as a user would write it, or a description in parentheses when it follows from something else
	Unit        string   // bytes, ms, us, path, paths (separated by colons), switch, or empty for a word
	Least, Most int64    // bounds of a number; zero where there is none
	Words       []string // what a word may be; none where it is not one of a few
	Meaning     string
}

// The keys of the Manager, by flag.
const (
	FlagSocket         = "socket"
	FlagPoolSize       = "pool-size"
	FlagQueryBudget    = "query-budget"
	FlagInstanceBudget = "query-instance-budget"
	FlagHugePages      = "use-hugepages"
	FlagHTTP           = "http-addr"
	FlagHTTPRemote     = "http-allow-remote"
	FlagToken          = "admin-token-file"
	FlagLogLevel       = "log-level"
	FlagReadBatch      = "query-read-batch"
	FlagStopPolicy     = "query-stop-policy"
	FlagReadTimeout    = "query-read-timeout-ms"
	FlagProtected      = "cache-protected-percent"
	FlagLFU            = "enable-lfu-admission"
	FlagPoolScrub      = "pool-scrub-rate"
	FlagSSDPath        = "ssd-cache-path"
	FlagSSDCapacity    = "ssd-cache-capacity"
	FlagSSDBackend     = "ssd-backend"
	FlagSSDWriteQueue  = "ssd-write-queue-depth"
	FlagSSDReadQueue   = "ssd-prefetch-queue-depth"
	FlagSSDWrites      = "ssd-write-inflight"
	FlagSSDReads       = "ssd-prefetch-inflight"
	FlagSSDWritePolicy = "ssd-write-policy"
	FlagSSDScrub       = "ssd-scrub-rate"
	FlagSSDFaults      = "ssd-fault-injection"
	FlagTrace          = "trace-transfers"
)

// The words of keys that take one of a few.
const (
	BackendAuto  = "auto"
	BackendUring = "uring"
	BackendPool  = "pool"

	WriteAll   = "all"
	WriteReuse = "reuse"

	StopWaitComplete = "wait_complete"
	StopBestEffort   = "best_effort"
	StopTimeout      = "timeout"
)

// SSDFolderBytesMin is the least share of the capacity that a folder can have: its index takes most of it.
const SSDFolderBytesMin = 24 << 20

// Keys is every configuration key of Manager and adapters that has an effect.
var Keys = []Key{
	{
		Flag: FlagSocket, Environment: "ORBITKV_SOCKET", Connector: "orbitkv.socket", Side: Both, Unit: "path",
		Default: "($XDG_RUNTIME_DIR/orbitkv/orbitkv.sock, else /run/orbitkv/orbitkv.sock)",
		Meaning: "Unix socket of the Cache Manager. A path that is named here or in the environment is the only one tried.",
	},
	{
		Flag: FlagPoolSize, Environment: "ORBITKV_POOL_SIZE", Side: Manager, Unit: "bytes", Default: "(a quarter of the memory that the control group allows)",
		Meaning: "Host memory that holds pages. Accepts kb, mb, gb, tb (powers of 1000) and kib, mib, gib, tib (powers of 1024).",
	},
	{
		Flag: FlagQueryBudget, Environment: "ORBITKV_QUERY_BUDGET", Side: Manager, Unit: "bytes", Default: "(75 % of the pool)",
		Meaning: "Padded bytes that all leases and running restores may hold together. A query that does not fit waits, or is cut to the longest prefix that fits.",
	},
	{
		Flag: FlagInstanceBudget, Environment: "ORBITKV_QUERY_INSTANCE_BUDGET", Side: Manager, Unit: "bytes", Default: "(the query budget)",
		Meaning: "The same for one instance.",
	},
	{
		Flag: FlagHugePages, Environment: "ORBITKV_USE_HUGEPAGES", Side: Manager, Unit: "switch", Default: "false",
		Meaning: "Back the pool with reserved huge pages. The start fails when too few are free, and says which number to set.",
	},
	{
		Flag: FlagHTTP, Environment: "ORBITKV_HTTP_ADDR", Side: Manager, Default: "127.0.0.1:9091",
		Meaning: "Address of health, metrics, status and the verbs, as host:port; `off` serves none.",
	},
	{
		Flag: FlagHTTPRemote, Environment: "ORBITKV_HTTP_ALLOW_REMOTE", Side: Manager, Unit: "switch", Default: "false",
		Meaning: "Allow an HTTP address that other hosts can reach. There is no encryption: the token would travel in clear text.",
	},
	{
		Flag: FlagToken, Environment: "ORBITKV_ADMIN_TOKEN_FILE", Side: Manager, Unit: "path", Default: "(the socket's path with .token behind it)",
		Meaning: "File of the bearer token for verbs that change state. One that exists is read and must have mode 0600; else it is made, and removed at the end.",
	},
	{
		Flag: FlagLogLevel, Environment: "ORBITKV_LOG_LEVEL", Side: Manager, Default: "info",
		Meaning: "debug, info, warn or error.",
	},
	{
		Flag: FlagReadBatch, Environment: "ORBITKV_QUERY_READ_BATCH", Side: Manager, Unit: "bytes", Default: "32mib", Least: 4 << 10, Most: 32 << 20,
		Meaning: "Bytes of pages that one query reads from the SSD at once, one page at least: a query that is told to stop waits for no more than these.",
	},
	{
		Flag: FlagStopPolicy, Environment: "ORBITKV_QUERY_STOP_POLICY", Side: Manager, Default: StopWaitComplete, Words: []string{StopWaitComplete, StopBestEffort, StopTimeout},
		Meaning: "When a query that reads from the SSD is answered: `wait_complete` with the whole prefix, `best_effort` after one batch, `timeout` after `--query-read-timeout-ms`. An engine that waited `orbitkv.load_wait_ms` ends the wait itself. Only whole pages without a gap are answered.",
	},
	{
		Flag: FlagReadTimeout, Environment: "ORBITKV_QUERY_READ_TIMEOUT_MS", Side: Manager, Unit: "ms", Default: "(none)", Least: 1, Most: 600_000,
		Meaning: "Time from a query's submission until the policy `timeout` answers it with what is there, waiting for budget included. Needed by that policy, refused with others.",
	},
	{
		Flag: FlagProtected, Environment: "ORBITKV_CACHE_PROTECTED_PERCENT", Side: Manager, Unit: "%", Default: "0", Most: 90,
		Meaning: "Part of the pool for pages that were used at least twice, which others cannot push out. 0 keeps none.",
	},
	{
		Flag: FlagLFU, Environment: "ORBITKV_ENABLE_LFU_ADMISSION", Side: Manager, Unit: "switch", Default: "false",
		Meaning: "Let a new page into a full pool only when its key was asked for more often than the page that it would push out.",
	},
	{
		Flag: FlagPoolScrub, Environment: "ORBITKV_POOL_SCRUB_RATE", Side: Manager, Unit: "bytes/s", Default: "0",
		Meaning: "Rate at which the Manager reads pages of the pool and compares them with their digests; 0 switches it off. A page that differs from what was first read of it is dropped, and the log names its namespace and last writer.",
	},
	{
		Flag: FlagSSDPath, Environment: "ORBITKV_SSD_CACHE_PATH", Side: Manager, Unit: "paths", Default: "",
		Meaning: "Folder for pages that outlive the pool and the Manager. Repeat the flag, or separate paths by colons, for several devices: each page lies on one. The folder is made when the one above it is there. Empty for no SSD tier.",
	},
	{
		Flag: FlagSSDCapacity, Environment: "ORBITKV_SSD_CACHE_CAPACITY", Side: Manager, Unit: "bytes", Default: "512gb", Least: SSDFolderBytesMin,
		Meaning: "Bytes on disk of all folders together, index included, which are never passed. Each folder gets an equal share, 24 MiB at least, reserved at the start. Of a share about 18 MiB, and room for a record for each 32 KiB (1.2 % in all), go to the index.",
	},
	{
		Flag: FlagSSDBackend, Environment: "ORBITKV_SSD_BACKEND", Side: Manager, Default: BackendAuto, Words: []string{BackendAuto, BackendUring, BackendPool},
		Meaning: "Who reads and writes: `uring` is io_uring, `pool` threads that block, `auto` the first where a read and a write through it succeed. The log and the status name the choice and its reason.",
	},
	{
		Flag: FlagSSDWriteQueue, Environment: "ORBITKV_SSD_WRITE_QUEUE_DEPTH", Side: Manager, Unit: "batches", Default: "8", Least: 1, Most: 1024,
		Meaning: "Pages that may wait to be written, in batches of 32 MiB. They stay in the pool until then; what comes while it is full is not written.",
	},
	{
		Flag: FlagSSDReadQueue, Environment: "ORBITKV_SSD_PREFETCH_QUEUE_DEPTH", Side: Manager, Unit: "batches", Default: "2", Least: 1, Most: 1024,
		Meaning: "Pages that may wait to be read, in batches of 32 MiB. While it is full, queries wait.",
	},
	{
		Flag: FlagSSDWrites, Environment: "ORBITKV_SSD_WRITE_INFLIGHT", Side: Manager, Unit: "pages", Default: "2", Least: 1, Most: 256,
		Meaning: "Pages that are written at the same time.",
	},
	{
		Flag: FlagSSDReads, Environment: "ORBITKV_SSD_PREFETCH_INFLIGHT", Side: Manager, Unit: "pages", Default: "16", Least: 1, Most: 256,
		Meaning: "Pages that are read at the same time.",
	},
	{
		Flag: FlagSSDWritePolicy, Environment: "ORBITKV_SSD_WRITE_POLICY", Side: Manager, Default: WriteAll, Words: []string{WriteAll, WriteReuse},
		Meaning: "Which pages are written: `all`, or `reuse`, those that are published or asked for again.",
	},
	{
		Flag: FlagSSDScrub, Environment: "ORBITKV_SSD_SCRUB_RATE", Side: Manager, Unit: "bytes/s", Default: "8mib",
		Meaning: "Rate at which stored pages are read and compared with their digests; 0 switches it off. A page that differs is dropped.",
	},
	{
		Flag: FlagSSDFaults, Environment: "ORBITKV_SSD_FAULT_INJECTION", Side: Manager, Default: "",
		Meaning: "Slowness and damage of the disk that a test asks for on purpose, such as `read-rate=50mb,write-eio=100`; empty for none. Never set it in service.",
	},
	{
		Environment: "ORBITKV_CONFIG", Side: Adapter, Unit: "path", Default: "",
		Meaning: "JSON file of connector keys for SGLang, which hands none over: one object, in which `orbitkv.socket` and the others stand as under vLLM.",
	},
	{
		Environment: "ORBITKV_TIMEOUT_MS", Connector: "orbitkv.timeout_ms", Side: Adapter, Unit: "ms", Default: "5000", Least: 10, Most: 600_000,
		Meaning: "Deadline of a call to the Manager outside of the engine's scheduling.",
	},
	{
		Environment: "ORBITKV_QUERY_WAIT_US", Connector: "orbitkv.query_wait_us", Side: Adapter, Unit: "us", Default: "1000", Least: 100, Most: 10_000_000,
		Meaning: "How long the engine's scheduler waits for the answer to a query, which takes about 100 us. After that the request is asked about again in the next pass; three unanswered queries in a row mean no external hits for one second.",
	},
	{
		Environment: "ORBITKV_LOAD_WAIT_MS", Connector: "orbitkv.load_wait_ms", Side: Adapter, Unit: "ms", Default: "1000", Most: 600_000,
		Meaning: "The longest that one request waits for a prefix that has no budget yet or is being read from the SSD. Then it takes what is there and computes the rest.",
	},
	{
		Environment: "ORBITKV_LOAD_WAIT_POLICY", Connector: "orbitkv.load_wait_policy", Side: Adapter, Default: "pays",
		Meaning: "Whether a request waits for the SSD only while that is faster than computing, by what disk and engine did last: `pays`; or as long as `orbitkv.load_wait_ms` lets it, which spares the engine's processor: `always`.",
	},
	{
		Environment: "ORBITKV_TRANSFER_BACKEND", Connector: "orbitkv.transfer_backend", Side: Adapter, Default: "auto",
		Meaning: "Who copies between engine and pool. `host` copies with the processor, for KV in host memory. For KV on a CUDA device, `direct` gives batches to the device's copy engines, and `kernel` copies with the device's processors, which small pieces need. `auto` is `host` for host memory; on a device a measurement at start decides.",
	},
	{
		Environment: "ORBITKV_VERIFY", Connector: "orbitkv.verify", Side: Adapter, Default: "",
		Meaning: "Who checks a restored page against its digest before the engine uses it: `gpu` computes it on the device, and a page that differs is recomputed; empty for nobody.",
	},
	{
		Environment: "ORBITKV_HOST_COPY_DELAY_US", Connector: "orbitkv.host_copy_delay_us", Side: Adapter, Unit: "us", Default: "0", Most: 60_000_000,
		Meaning: "Pause of the host backend before each layer, for tests that must see a forgotten wait.",
	},
	{
		Environment: "ORBITKV_FAULT_INJECTION", Connector: "orbitkv.fault_injection", Side: Adapter, Default: "",
		Meaning: "Damage that a test asks for on purpose; empty for none. Never set it in service.",
	},
	{
		Flag: FlagTrace, Environment: "ORBITKV_TRACE_TRANSFERS", Side: Both, Unit: "switch", Default: "0",
		Meaning: "1 writes a `cache_timeline` line for every stage of a request, the engine into its log and the Manager into its own. `orbitkv trace` reads both.",
	},
	{
		Environment: "ORBITKV_MODEL_FINGERPRINT", Side: Adapter, Default: "",
		Meaning: "64 lower-case hexadecimal digits that stand for the model's files. They are then not read, and equal fingerprints for different weights give wrong output: the promise is yours.",
	},
	{
		Environment: "ORBITKV_CACHE_SCOPE", Side: Adapter, Default: "",
		Meaning: "A word that separates namespaces of otherwise equal engines, for example of two experiments.",
	},
	{
		Environment: "ORBITKV_BINARY", Side: Adapter, Unit: "path", Default: "(the one that the wheel brought)",
		Meaning: "The orbitkv program that `python -m orbitkv` starts.",
	},
}

// Bounds says what a value may be: the bounds of a number, or the words; empty where neither is told.
func (k Key) Bounds() string {
	switch {
	case k.Most > 0:
		return fmt.Sprintf("%s to %s", k.bound(k.Least), k.bound(k.Most))
	case k.Least > 0:
		return "at least " + k.bound(k.Least)
	}
	return strings.Join(k.Words, ", ")
}

// bound writes a bound: a size for people, any other number as it is.
func (k Key) bound(n int64) string {
	if k.Unit == "bytes" {
		return FormatSize(uint64(n))
	}
	return strconv.FormatInt(n, 10)
}

// Find returns the row of a Manager flag. An unknown flag is a programmer's error and panics.
func Find(flag string) Key {
	for _, k := range Keys {
		if k.Flag == flag {
			return k
		}
	}
	panic("no configuration key has the flag --" + flag)
}
