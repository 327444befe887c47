package config

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
	Default     string // as a user would write it, or a description in parentheses when it follows from something else
	Unit        string // bytes, ms, us, path, switch, or empty for a word
	Least, Most int64  // bounds of a number; both zero for what is no number
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
)

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
		Meaning: "How long one request may wait for a prefix that has no budget yet or is being staged. Then it takes what is there and computes the rest.",
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
		Environment: "ORBITKV_TRACE_TRANSFERS", Side: Adapter, Unit: "switch", Default: "0",
		Meaning: "1 writes a `cache_timeline` line into the engine's log for every stage of a request.",
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

// Find returns the row of a Manager flag. An unknown flag is a programmer's error and panics.
func Find(flag string) Key {
	for _, k := range Keys {
		if k.Flag == flag {
			return k
		}
	}
	panic("no configuration key has the flag --" + flag)
}
