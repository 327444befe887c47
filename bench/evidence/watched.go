package evidence

import "orbitkv/bench/record"

// kind is what a metric is to the waits of this package.
type kind int

const (
	counter kind = iota // must stand still before a look counts as settled
	busy                // a gauge of work in progress: settled is zero
	held                // a gauge of what is borrowed: zero after the last request
	told                // a gauge that is kept for people
)

// watch is one entry of a Snapshot: a metric, or those of its series whose label has a value.
type watch struct {
	name  string
	label string // empty: the sum over all series
	value string
	kind  kind
	// histogram names a metric of which this entry is the number of observations; an entry for each of its buckets stands beside it.
	histogram string
	// after names a metric whose presence proves that the owner would count this one: where it is served and this one is not, this one is zero since
	// its owner makes it at first use. Empty: absence is never zero.
	after string
}

// key is the name of the entry.
func (w watch) key() string {
	if w.label == "" {
		return w.name
	}
	return series(w.name, w.label, w.value)
}

func series(name, label, value string) string { return name + `{` + label + `="` + value + `"}` }

// Metrics of vLLM.
const (
	vllmFinished    = "vllm:request_success_total"
	vllmPrompt      = "vllm:prompt_tokens_total"
	vllmQueries     = "vllm:prefix_cache_queries_total"
	vllmHits        = "vllm:prefix_cache_hits_total"
	vllmOuterHits   = "vllm:external_prefix_cache_hits_total"
	vllmOuterLooks  = "vllm:external_prefix_cache_queries_total"
	vllmBySource    = "vllm:prompt_tokens_by_source_total"
	vllmPreemptions = "vllm:num_preemptions_total"
	vllmLoadBytes   = "vllm:kv_offload_load_bytes_total"
	vllmStoreBytes  = "vllm:kv_offload_store_bytes_total"
	vllmOffload     = "vllm:kv_offload_total_bytes_total" // from the start of an OffloadingConnector
)

var (
	vllmLocal = series(vllmBySource, "source", "local_cache_hit")
	vllmOuter = series(vllmBySource, "source", "external_kv_transfer")
)

var vllmWatched = []watch{
	{name: vllmFinished},
	{name: vllmPrompt},
	{name: "vllm:generation_tokens_total"},
	{name: vllmPreemptions},
	{name: vllmQueries},
	{name: vllmHits},
	{name: vllmOuterLooks},
	{name: vllmOuterHits},
	{name: vllmBySource, label: "source", value: "local_compute"},
	{name: vllmBySource, label: "source", value: "local_cache_hit"},
	{name: vllmBySource, label: "source", value: "external_kv_transfer"},
	{name: vllmLoadBytes, after: vllmOffload},
	{name: vllmStoreBytes, after: vllmOffload},
	{name: "vllm:num_requests_running", kind: busy},
	{name: "vllm:num_requests_waiting", kind: busy},
	{name: "vllm:kv_cache_usage_perc", kind: told},
}

// Metrics of SGLang. Those of its tokenizer process are made at the first request.
const (
	sglangUp          = "sglang:max_total_num_tokens"
	sglangFinished    = "sglang:num_requests_total"
	sglangPrompt      = "sglang:prompt_tokens_total"
	sglangCached      = "sglang:cached_tokens_total"            // by the process that answers, when a request ends
	sglangPrefill     = "sglang:prefill_effective_tokens_total" // by the scheduler, when it starts a prefill
	sglangRetracted   = "sglang:num_retracted_requests_total"
	sglangLoadBytes   = "sglang:load_back_bytes_total"
	sglangBackupBytes = "sglang:hicache_backup_bytes_total"
	sglangHiCache     = "sglang:hicache_host_total_tokens" // from the start of a HiCache
)

var sglangWatched = []watch{
	{name: sglangFinished, after: sglangUp},
	{name: sglangPrompt, after: sglangUp},
	{name: "sglang:generation_tokens_total", after: sglangUp},
	{name: "sglang:num_aborted_requests_total", after: sglangUp},
	{name: sglangRetracted, after: sglangUp},
	{name: "sglang:evicted_tokens_total", after: sglangUp},
	{name: sglangCached, label: "cache_source", value: "device", after: sglangUp},
	{name: sglangCached, label: "cache_source", value: "host", after: sglangUp},
	{name: sglangCached, label: "cache_source", value: "storage", after: sglangUp},
	{name: sglangPrefill, label: "mode", value: "input"},
	{name: sglangPrefill, label: "mode", value: "device_hit"},
	{name: sglangPrefill, label: "mode", value: "host_hit"},
	{name: sglangPrefill, label: "mode", value: "storage_hit"},
	{name: sglangLoadBytes, after: sglangHiCache},
	{name: sglangBackupBytes, after: sglangHiCache},
	{name: "sglang:num_running_reqs", kind: told},
	{name: "sglang:num_queue_reqs", kind: told}, // They are set while batches form, and may lag after the last one.
	{name: "sglang:hicache_host_used_tokens", kind: told},
}

// Metrics of the Manager. Those of an SSD tier are zero where it has none, whether it serves them or not.
const (
	managerLoadBytes   = "orbitkv_load_bytes_total"
	managerFailedLoads = "orbitkv_load_failures_total"
	managerHits        = "orbitkv_cache_block_hits_total"
	managerMisses      = "orbitkv_cache_block_misses_total"
	managerTiers       = "orbitkv_cache_tier_block_requests_total"
	managerSSDRead     = "orbitkv_ssd_prefetch_bytes_total"
	managerSSDWritten  = "orbitkv_ssd_write_bytes_total"
	managerSSDReadTime = "orbitkv_ssd_prefetch_duration_seconds" // a histogram: of pages that were read
)

var managerWatched = []watch{
	{name: managerLoadBytes},
	{name: managerFailedLoads},
	{name: "orbitkv_save_bytes_total"},
	{name: managerHits},
	{name: managerMisses},
	{name: managerTiers, label: "tier", value: "ram"},
	{name: managerTiers, label: "tier", value: "remote", after: managerHits},
	{name: managerTiers, label: "tier", value: "ssd", after: managerHits},
	{name: managerTiers, label: "tier", value: "miss"},
	{name: "orbitkv_cache_block_not_mapped_total"},
	{name: "orbitkv_cache_block_insertions_total"},
	{name: "orbitkv_cache_block_evictions_total"},
	{name: "orbitkv_pool_alloc_failures_total"},
	{name: "orbitkv_busy_total"},
	{name: "orbitkv_query_budget_waits_total"},
	{name: "orbitkv_query_budget_bypasses_total"},
	{name: managerSSDRead, after: managerHits},
	{name: managerSSDWritten, after: managerHits},
	{name: managerSSDReadTime + "_count", histogram: managerSSDReadTime},
	{name: "orbitkv_ssd_prefetch_success_total", after: managerHits},
	{name: "orbitkv_ssd_prefetch_failures_total", after: managerHits},
	{name: "orbitkv_ssd_prefetch_queue_full_total", after: managerHits},
	{name: "orbitkv_ssd_prefetch_backpressure_blocks_total", after: managerHits},
	{name: "orbitkv_ssd_write_failures_total", after: managerHits},
	{name: "orbitkv_ssd_write_queue_full_total", after: managerHits},
	{name: "orbitkv_ssd_write_admission_skips_total", after: managerHits},
	{name: "orbitkv_ssd_evictions_total", after: managerHits},
	{name: "orbitkv_operations", label: "state", value: "waiting", kind: busy},
	{name: "orbitkv_operations", label: "state", value: "ready", kind: busy},
	{name: "orbitkv_operations", label: "state", value: "preparing", kind: busy, after: managerHits},
	{name: "orbitkv_query_reserved_bytes_by_phase", label: "phase", value: "preparing", kind: busy, after: managerHits},
	{name: "orbitkv_query_reserved_bytes_by_phase", label: "phase", value: "draining", kind: busy, after: managerHits},
	{name: "orbitkv_query_reserved_bytes_by_phase", label: "phase", value: "ready", kind: busy},
	{name: "orbitkv_query_reserved_bytes_by_phase", label: "phase", value: "restoring", kind: busy},
	{name: "orbitkv_ssd_write_queue_pending", kind: busy, after: managerHits},
	{name: "orbitkv_ssd_write_inflight", kind: busy, after: managerHits},
	{name: "orbitkv_ssd_prefetch_inflight", kind: busy, after: managerHits},
	{name: "orbitkv_reservations", kind: busy},
	{name: "orbitkv_inflight_bytes", kind: busy},
	{name: "orbitkv_leases", kind: held},
	{name: "orbitkv_query_reserved_bytes", kind: held},
	{name: "orbitkv_cache_retired_bytes", kind: held},
	{name: "orbitkv_abandoned_bytes", kind: held},
	{name: "orbitkv_settling_bytes", kind: held},
	{name: "orbitkv_stalled_bytes", kind: held},
	{name: "orbitkv_quarantined_bytes", kind: held},
	{name: "orbitkv_pool_used_bytes", kind: told},
	{name: "orbitkv_cache_resident_bytes", kind: told},
	{name: "orbitkv_ssd_used_bytes", kind: told, after: managerHits},
	{name: "orbitkv_ssd_disk_bytes", kind: told, after: managerHits},
}

// Metrics of LMCache's daemon. Each is made when it first counts; the daemon serves Python's own metrics from its start.
const (
	daemonUp     = "python_info"
	daemonChunks = "lmcache_mp_num_chunks_loaded_total"
)

// daemonPairs are counters of begun and ended transfers: what is between them is in flight.
var daemonPairs = []struct{ what, begun, ended string }{
	{"lmcache_mp_stores_in_flight", "lmcache_mp_num_submitted_stores_total", "lmcache_mp_num_finished_stores_total"},
	{"lmcache_mp_retrieves_in_flight", "lmcache_mp_num_submitted_retrieves_total", "lmcache_mp_num_finished_retrieves_total"},
}

var daemonWatched = []watch{
	{name: daemonChunks, after: daemonUp},
	{name: "lmcache_mp_lookup_requested_tokens_total", after: daemonUp},
	{name: "lmcache_mp_lookup_hit_tokens_total", after: daemonUp},
	{name: "lmcache_mp_l1_allocation_failure_total", after: daemonUp},
	{name: daemonPairs[0].begun, after: daemonUp},
	{name: daemonPairs[0].ended, after: daemonUp},
	{name: daemonPairs[1].begun, after: daemonUp},
	{name: daemonPairs[1].ended, after: daemonUp},
}

// engineWatched returns what is watched of an engine.
func engineWatched(engine string) []watch {
	if engine == record.VLLM {
		return vllmWatched
	}
	return sglangWatched
}
