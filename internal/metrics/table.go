package metrics

import (
	"maps"
	"slices"

	"orbitkv/internal/cache"
	"orbitkv/internal/ssd"
)

// Kind is what a metric is to Prometheus.
type Kind string

// The kinds.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"

	Histogram Kind = "histogram" // of seconds
)

// snapshot is what one scrape reads.
type snapshot struct {
	cache cache.Stats
	ssd   *ssd.Stats // nil without an SSD tier: its metrics have no samples then

	demandsDropped uint64
}

// sample is one value of a metric; label is empty for a metric without labels, durations is for histograms alone.
type sample struct {
	label     string
	value     float64
	durations ssd.Histogram
}

// row is one metric. read is nil for what the Manager counts elsewhere.
type row struct {
	name   string
	kind   Kind
	labels []string
	help   string
	read   func(snapshot) []sample
}

func one(field func(cache.Stats) uint64) func(snapshot) []sample {
	return func(s snapshot) []sample { return []sample{{value: float64(field(s.cache))}} }
}

func each(field func(cache.Stats) map[string]uint64) func(snapshot) []sample {
	return func(s snapshot) []sample { return labelled(field(s.cache)) }
}

// some reads several values of the cache that are no map.
func some(read func(cache.Stats) []sample) func(snapshot) []sample {
	return func(s snapshot) []sample { return read(s.cache) }
}

func labelled(values map[string]uint64) (samples []sample) {
	for _, label := range slices.Sorted(maps.Keys(values)) {
		samples = append(samples, sample{label: label, value: float64(values[label])})
	}
	return samples
}

func sum(values map[string]uint64) (total float64) {
	for _, value := range values {
		total += float64(value)
	}
	return total
}

// The counters of the channel and of HTTP, which the cache does not know of.
var (
	sessionsOpened     = row{"orbitkv_sessions_opened_total", Counter, nil, "Sessions that passed hello. Not the number that is open.", nil}
	framesRead         = row{"orbitkv_frames_total", Counter, nil, "Frames read after hello, of every type.", nil}
	connectionsClosed  = row{"orbitkv_connections_closed_total", Counter, []string{"reason"}, "Connections that the Manager closed, by the status that it told the client, or unread (the client does not read its answers), crowded (an answer that it did not read at once found the unread answers of all clients at their bound) or cut (the connection ended inside a frame). Clients that close by themselves are not in it.", nil}
	connectionsRefused = row{"orbitkv_connections_refused_total", Counter, []string{"reason"}, "Connections on the socket that were turned away before their first frame: bound (the most that a Manager takes were open; the one that waited longest for its hello is closed for the next) or system (the kernel gave no descriptor or memory; each attempt counts).", nil}
	httpRefused        = row{"orbitkv_http_refused_total", Counter, []string{"bound"}, "What found a bound of HTTP: connections that were closed to make room, requests and verifications that were answered 503. A fifth scrape at once is not in it.", nil}
	callsRefused       = row{"orbitkv_calls_refused_total", Counter, []string{"status"}, "Calls that were answered with an error, by status. The outcome busy of a query is not an error and not in it.", nil}
)

// table is every metric, in the order of the page.
var table = slices.Concat(cacheTable, ssdTable)

var cacheTable = []row{
	{"orbitkv_pool_capacity_bytes", Gauge, nil, "Bytes of the arenas that are lent. Less than configured while the pool is being populated.", one(func(s cache.Stats) uint64 { return s.PoolCapacityBytes })},
	{"orbitkv_pool_configured_bytes", Gauge, nil, "Bytes of the configured pool.", one(func(s cache.Stats) uint64 { return s.PoolConfiguredBytes })},
	{"orbitkv_pool_used_bytes", Gauge, nil, "Bytes of allocated extents, padding included: resident pages and pages that are being written, leased after eviction or quarantined.", one(func(s cache.Stats) uint64 { return s.PoolUsedBytes })},
	{"orbitkv_pool_largest_free_bytes", Gauge, nil, "Largest contiguous free extent of any arena. Not the sum of what is free.", one(func(s cache.Stats) uint64 { return s.PoolLargestFreeBytes })},
	{"orbitkv_pool_alloc_failures_total", Counter, nil, "Pages that found no extent after reclaim. The engine goes on without storing them.", one(func(s cache.Stats) uint64 { return s.PoolAllocFailuresTotal })},

	{"orbitkv_query_reserved_bytes", Gauge, nil, "Padded bytes that leases, prefixes that are being read and hints hold in the global query budget. Pages shared by two leases count twice; this is not memory.", one(func(s cache.Stats) uint64 { return s.QueryReservedBytes })},
	{"orbitkv_query_reserved_bytes_by_phase", Gauge, []string{"phase"}, "The same by phase: preparing (being read from the SSD), ready, restoring, draining (given up while its reads run) and warming (hints) count in both budgets, stalled in the instance's only, quarantined in none.", each(func(s cache.Stats) map[string]uint64 { return s.QueryReservedByPhase })},
	{"orbitkv_query_budget_bytes", Gauge, nil, "Limit of the global query budget.", one(func(s cache.Stats) uint64 { return s.QueryBudgetBytes })},
	{"orbitkv_query_instance_budget_bytes", Gauge, nil, "Limit of the query budget of one instance.", one(func(s cache.Stats) uint64 { return s.InstanceBudgetBytes })},
	{"orbitkv_query_budget_waits_total", Counter, nil, "Queries that had to wait for budget. Attempts, not requests.", one(func(s cache.Stats) uint64 { return s.QueryBudgetWaitsTotal })},
	{"orbitkv_query_budget_bypasses_total", Counter, nil, "Queries whose demand is larger than a budget and was cut to the longest prefix that fits.", one(func(s cache.Stats) uint64 { return s.QueryBudgetBypassesTotal })},
	{"orbitkv_busy_total", Counter, nil, "Queries, reserves, sessions and instances that were turned away because a table was full.", one(func(s cache.Stats) uint64 { return s.BusyTotal })},
	{"orbitkv_operations", Gauge, []string{"state"}, "Queries by state: waiting for budget, preparing (being read from the SSD), ready and not begun, or draining (given up while its reads run); and hints, as warming, until their reads have ended.", some(func(s cache.Stats) []sample {
		return []sample{
			{label: "draining", value: float64(s.OperationsDraining)},
			{label: "preparing", value: float64(s.OperationsPreparing)},
			{label: "ready", value: float64(s.OperationsReady)},
			{label: "waiting", value: float64(s.OperationsWaiting)},
			{label: "warming", value: float64(s.OperationsWarming)},
		}
	})},
	{"orbitkv_warmup_prepared_bytes_total", Counter, nil, "Padded bytes of pages whose read a hint started and that arrived. A page that is read again counts again; one whose read a query started, or that was in memory, never does.", one(func(s cache.Stats) uint64 { return s.WarmupPreparedBytesTotal })},
	{"orbitkv_warmup_restored_bytes_total", Counter, nil, "Of the prepared bytes: pages from which an engine's copy arrived, the whole page at the first one, whatever its layers or rank. Neither the bytes of copies (orbitkv_load_bytes_total) nor a proof that the engine used them or that time was saved.", one(func(s cache.Stats) uint64 { return s.WarmupRestoredBytesTotal })},
	{"orbitkv_warmup_unused_bytes_total", Counter, nil, "Of the prepared bytes: pages whose last owner let go of them before any copy arrived.", one(func(s cache.Stats) uint64 { return s.WarmupUnusedBytesTotal })},
	{"orbitkv_warmup_pending_bytes", Gauge, nil, "Of the prepared bytes: pages of which neither is known yet. Prepared is always restored, unused and pending.", one(func(s cache.Stats) uint64 { return s.WarmupPendingBytes })},
	{"orbitkv_warmup_wait_byte_seconds_total", Counter, []string{"outcome"}, "Padded bytes of prepared pages times the seconds from their arrival to their first copy (restored) or to the end of their last owner (unused). Pending pages are not in it.", some(func(s cache.Stats) (samples []sample) {
		for _, outcome := range slices.Sorted(maps.Keys(s.WarmupByteSecondsTotal)) {
			samples = append(samples, sample{label: outcome, value: s.WarmupByteSecondsTotal[outcome]})
		}
		return samples
	})},
	{"orbitkv_warmup_foreground_skips_total", Counter, nil, "Hints that were skipped since queries owned bytes that were being prepared, ready or restored.", one(func(s cache.Stats) uint64 { return s.WarmupSkippedForeground })},
	{"orbitkv_warmup_hints_total", Counter, []string{"outcome"}, "Hints by what became of them at once: accepted, complete (nothing to read), or skipped whole for foreground, operations (permits), oversized, bytes (budget), queue (of the SSD) or no_tier.", each(func(s cache.Stats) map[string]uint64 { return s.WarmupHintsTotal })},
	{"orbitkv_warmup_ends_total", Counter, []string{"reason"}, "Accepted hints by why they read no further: read (all came), broken (a page in the middle is gone or failed), no_room (in the pool), demanded (the query of the request came), cancelled, expired (5 s) or dropped (with its session, its namespace or all pages).", each(func(s cache.Stats) map[string]uint64 { return s.WarmupEndsTotal })},
	{"orbitkv_query_coalesced_reads_total", Counter, nil, "Pages that a query found being read from the SSD for another one, and joined.", one(func(s cache.Stats) uint64 { return s.ReadsCoalescedTotal })},
	{"orbitkv_leases", Gauge, nil, "Leases that hold pages, quarantined ones included.", one(func(s cache.Stats) uint64 { return s.Leases })},
	{"orbitkv_reservations", Gauge, nil, "Reservations with a slice that is neither committed nor abandoned.", one(func(s cache.Stats) uint64 { return s.Reservations })},

	{"orbitkv_cache_block_hits_total", Counter, nil, "Pages that queries leased. A decision, not a transfer: see orbitkv_load_bytes_total.", one(func(s cache.Stats) uint64 { return s.PageHitsTotal })},
	{"orbitkv_cache_block_misses_total", Counter, nil, "Keys that queries asked for and did not lease: absent, behind a gap, beyond the budget, or not mapped. Hits and misses sum to the keys asked for.", one(func(s cache.Stats) uint64 { return s.PageMissesTotal })},
	{"orbitkv_cache_tier_block_requests_total", Counter, []string{"tier"}, "Keys that queries asked for, by where they were found: ram, ssd (read for the query, or for another one that it joined) or miss. Decisions, not transfers; the tiers sum to the keys asked for.", some(func(s cache.Stats) []sample {
		return []sample{
			{label: "miss", value: float64(s.PageMissesTotal)},
			{label: "ram", value: float64(s.PageHitsTotal - s.PageHitsTierTotal)},
			{label: "ssd", value: float64(s.PageHitsTierTotal)},
		}
	})},
	{"orbitkv_cache_block_not_mapped_total", Counter, nil, "Pages that were found but left out since a rank has not registered their arena. They are in the misses too.", one(func(s cache.Stats) uint64 { return s.PagesNotMappedTotal })},
	{"orbitkv_cache_block_insertions_total", Counter, nil, "Pages that were sealed: every slice is committed and queries can see them.", one(func(s cache.Stats) uint64 { return s.PageInsertionsTotal })},
	{"orbitkv_cache_block_evictions_total", Counter, nil, "Pages that left the index for want of room or by a verb. Their bytes are free with their last reference.", some(func(s cache.Stats) []sample {
		return []sample{{value: sum(s.PageEvictionsTotal)}}
	})},
	{"orbitkv_cache_block_evictions_by_class_total", Counter, []string{"class"}, "The same by class.", each(func(s cache.Stats) map[string]uint64 { return s.PageEvictionsTotal })},
	{"orbitkv_cache_block_evictions_still_referenced_total", Counter, nil, "Of the evicted pages: those that a lease still held. Pressure never picks them, verbs do.", one(func(s cache.Stats) uint64 { return s.EvictionsReferencedTotal })},
	{"orbitkv_cache_eviction_reclaimed_bytes_total", Counter, nil, "Padded bytes that evictions freed at once.", one(func(s cache.Stats) uint64 { return s.EvictionReclaimedTotal })},
	{"orbitkv_cache_policy_promotions_total", Counter, nil, "Pages that a query moved to the retained class.", one(func(s cache.Stats) uint64 { return s.PagePromotionsTotal })},
	{"orbitkv_cache_policy_demotions_total", Counter, nil, "Pages of the retained class that fell back so that another one could be in it, where a part of the pool is protected.", one(func(s cache.Stats) uint64 { return s.PageDemotionsTotal })},
	{"orbitkv_cache_block_admission_rejections_total", Counter, nil, "Pages that were not published since they are used less than those that they would push out (--enable-lfu-admission).", one(func(s cache.Stats) uint64 { return s.AdmissionRejectionsTotal })},
	{"orbitkv_cache_protected_bytes", Gauge, nil, "Padded bytes of pages in the protected part of the pool (--cache-protected-percent).", one(func(s cache.Stats) uint64 { return s.ProtectedBytes })},
	{"orbitkv_cache_resident_blocks", Gauge, []string{"class"}, "Sealed pages in the index by class.", each(func(s cache.Stats) map[string]uint64 { return s.ResidentPages })},
	{"orbitkv_cache_resident_bytes", Gauge, nil, "Padded bytes of sealed pages in the index.", one(func(s cache.Stats) uint64 { return s.ResidentBytes })},
	{"orbitkv_cache_retired_bytes", Gauge, nil, "Padded bytes of pages that left the index and are still referenced.", one(func(s cache.Stats) uint64 { return s.RetiredBytes })},
	{"orbitkv_cache_reading_blocks", Gauge, nil, "Pages that queries wait for and that are queued or read in the SSD tier. Their extents count as used.", one(func(s cache.Stats) uint64 { return s.ReadingPages })},
	{"orbitkv_cache_read_failures_total", Counter, nil, "Pages whose read from the SSD failed, or that nobody may have any more when it ended. The queries are cut there.", one(func(s cache.Stats) uint64 { return s.ReadFailuresTotal })},
	{"orbitkv_cache_writing_out_bytes", Gauge, nil, "Padded bytes of pages that the SSD tier has queued or writes. They keep their extents until it is done, evicted or not.", one(func(s cache.Stats) uint64 { return s.TierWriteBytes })},
	{"orbitkv_inflight_bytes", Gauge, nil, "Padded bytes of pages that are being written and not visible yet.", one(func(s cache.Stats) uint64 { return s.WritingBytes })},
	{"orbitkv_abandoned_bytes", Gauge, nil, "Padded bytes of pages that can never be visible and that a writer may still use.", one(func(s cache.Stats) uint64 { return s.AbandonedBytes })},
	{"orbitkv_stalled_bytes", Gauge, nil, "Padded bytes leased to sessions that have not answered for 10 s. A label: they stay charged to their instance and are not freed.", one(func(s cache.Stats) uint64 { return s.StalledBytes })},
	{"orbitkv_settling_bytes", Gauge, nil, "Bytes of slices whose writer is disconnected and not proved dead.", one(func(s cache.Stats) uint64 { return s.SettlingBytes })},
	{"orbitkv_quarantined_bytes", Gauge, nil, "Padded bytes whose last writer ended in a way that does not prove that it stopped. Not used again before a restart.", one(func(s cache.Stats) uint64 { return s.QuarantinedBytes })},
	{"orbitkv_pool_scrub_bytes_total", Counter, nil, "Padded bytes of pages that the pool's scrubber read.", one(func(s cache.Stats) uint64 { return s.ScrubBytesTotal })},
	{"orbitkv_pool_scrub_passes_total", Counter, nil, "Times that it came to the end of the pool.", one(func(s cache.Stats) uint64 { return s.ScrubPassesTotal })},
	{"orbitkv_pool_damaged_blocks_total", Counter, nil, "Pages of the pool that held other bytes than were written, as the scrubber or the way to the SSD saw. They were dropped; the log names their writers.", one(func(s cache.Stats) uint64 { return s.DamagedPagesTotal })},
	{"orbitkv_index_bytes", Gauge, nil, "Memory of the index beside the pool.", one(func(s cache.Stats) uint64 { return s.IndexBytes })},

	{"orbitkv_load_bytes_total", Counter, nil, "Bytes that engines confirmed as restored, unpadded, from terminal reports alone. Not what was leased.", one(func(s cache.Stats) uint64 { return s.LoadBytesTotal })},
	{"orbitkv_load_failures_total", Counter, nil, "Pages whose copy an engine reported as failed; it recomputes them.", one(func(s cache.Stats) uint64 { return s.LoadFailuresTotal })},
	{"orbitkv_save_bytes_total", Counter, nil, "Unpadded bytes of pages when they became visible. In memory, not durable.", one(func(s cache.Stats) uint64 { return s.SaveBytesTotal })},

	{"orbitkv_sessions", Gauge, []string{"state"}, "Sessions: connected, and disconnected ones whose process lives and still holds something.", some(func(s cache.Stats) []sample {
		return []sample{{label: "connected", value: float64(s.Sessions)}, {label: "disconnected", value: float64(s.SessionsDisconnected)}}
	})},
	{"orbitkv_sessions_stalled", Gauge, nil, "Of all sessions: those that have not answered for 10 s.", one(func(s cache.Stats) uint64 { return s.SessionsStalled })},
	{"orbitkv_processes", Gauge, nil, "Living processes that have connected.", one(func(s cache.Stats) uint64 { return s.Processes })},
	{"orbitkv_ranks", Gauge, []string{"backend"}, "Attached ranks by the backend that copies for them: host (memory copies), direct (a GPU's copy engines), kernel (a GPU's kernels) or other (a name that this Manager does not know).", each(func(s cache.Stats) map[string]uint64 { return s.RanksByBackend })},
	{"orbitkv_instances", Gauge, nil, "Instances that have a rank or a scheduler, or hold something.", one(func(s cache.Stats) uint64 { return s.Instances })},
	{"orbitkv_namespaces", Gauge, nil, "Namespaces that an instance uses or that have pages.", one(func(s cache.Stats) uint64 { return s.Namespaces })},
	sessionsOpened, framesRead, connectionsClosed, connectionsRefused, callsRefused, httpRefused,
	{"orbitkv_notices_dropped_total", Counter, nil, "Notices that found a session's send queue full. Nothing is lost: clients look at the state again.", one(func(s cache.Stats) uint64 { return s.NoticesDroppedTotal })},
	{"orbitkv_late_reports_total", Counter, nil, "Frames that crossed the end of what they name. Harmless.", one(func(s cache.Stats) uint64 { return s.LateReportsTotal })},
	{"orbitkv_joint_answers_dropped_total", Counter, nil, "Answers that were kept for ranks that had not asked yet, where the ranks of an instance schedule it together, and dropped at the bound: such a rank then gets an answer of its own.", one(func(s cache.Stats) uint64 { return s.JointAnswersDroppedTotal })},
	{"orbitkv_violations_total", Counter, []string{"message"}, "Frames that named what their session does not hold; the session was closed.", each(func(s cache.Stats) map[string]uint64 { return s.ViolationsTotal })},
}

// Metric is a row of the table as the page shows it.
type Metric struct {
	Name   string
	Kind   Kind
	Labels []string
	Help   string
}

// Metrics returns the table for the page.
func Metrics() (metrics []Metric) {
	for _, r := range table {
		metrics = append(metrics, Metric{r.name, r.kind, r.labels, r.help})
	}
	return metrics
}
