package cache

import (
	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// counters only grow. Pages and bytes of private namespaces are in none of them.
type counters struct {
	busy                uint64
	budgetWaits         uint64
	budgetCuts          uint64
	hits                uint64
	misses              uint64
	notMapped           uint64
	insertions          uint64
	promotions          uint64
	evictions           [4]uint64 // by index.Class
	evictionsReferenced uint64
	reclaimedBytes      uint64
	allocFailures       uint64
	loadBytes           uint64
	loadFailures        uint64
	saveBytes           uint64
	noticesDropped      uint64
	lateReports         uint64
	jointDropped        uint64
	tierHits            uint64
	coalescedReads      uint64
	backpressure        uint64
	readFailures        uint64
	writeSkips          [skips]uint64
	demotions           uint64
	admissionRejections uint64
	scrubBytes          uint64
	scrubPasses         uint64
	damagedPages        uint64
	hints               [hintOutcomes]uint64 // by wire.Hint
	hintEnds            [hintEnds]uint64
	violations          map[string]uint64
}

// violation counts a breach of what a session holds and makes its error: the connection is to be closed.
func (c *Cache) violation(kind string, status wire.Status, format string, args ...any) error {
	if c.counters.violations == nil {
		c.counters.violations = map[string]uint64{}
	}
	c.counters.violations[kind]++
	return wire.Errorf(status, format, args...)
}

// Stats is every number of the cache. Fields that end in Total only grow; the others are what is now. Bytes of pages are padded
// footprints.
type Stats struct {
	PoolConfiguredBytes    uint64 `json:"pool_configured_bytes"`
	PoolCapacityBytes      uint64 `json:"pool_capacity_bytes"` // of the arenas that are lent
	PoolUsedBytes          uint64 `json:"pool_used_bytes"`
	PoolLargestFreeBytes   uint64 `json:"pool_largest_free_bytes"` // contiguous, in one arena
	PoolAllocFailuresTotal uint64 `json:"pool_alloc_failures_total"`

	QueryBudgetBytes         uint64            `json:"query_budget_bytes"`
	InstanceBudgetBytes      uint64            `json:"instance_budget_bytes"`
	QueryReservedBytes       uint64            `json:"query_reserved_bytes"`          // in the global budget
	QueryReservedByPhase     map[string]uint64 `json:"query_reserved_bytes_by_phase"` // ready, restoring, stalled, quarantined, preparing, draining, warming
	QueryBudgetWaitsTotal    uint64            `json:"query_budget_waits_total"`
	QueryBudgetBypassesTotal uint64            `json:"query_budget_bypasses_total"` // demands that were cut to fit
	BusyTotal                uint64            `json:"busy_total"`                  // refusals because a table was full

	PageHitsTotal            uint64             `json:"page_hits_total"`      // keys leased: a decision, not a transfer
	PageHitsTierTotal        uint64             `json:"page_hits_tier_total"` // of these: read from the tier for the query, or for another one that asked first
	PageMissesTotal          uint64             `json:"page_misses_total"`    // keys not leased; hits and misses sum to the keys asked for
	PagesNotMappedTotal      uint64             `json:"pages_not_mapped_total"`
	PageInsertionsTotal      uint64             `json:"page_insertions_total"`
	PagePromotionsTotal      uint64             `json:"page_promotions_total"`
	PageDemotionsTotal       uint64             `json:"page_demotions_total"`       // retained pages that fell back, so that another one could be
	AdmissionRejectionsTotal uint64             `json:"admission_rejections_total"` // pages that were not published, used less than their victims
	ProtectedBytes           uint64             `json:"protected_bytes"`            // of retained pages, where a segment is protected
	PageEvictionsTotal       map[string]uint64  `json:"page_evictions_total"`       // by class
	EvictionsReferencedTotal uint64             `json:"evictions_referenced_total"`
	EvictionReclaimedTotal   uint64             `json:"eviction_reclaimed_bytes_total"`
	ResidentPages            map[string]uint64  `json:"resident_pages"` // by class
	ResidentBytes            uint64             `json:"resident_bytes"`
	RetiredBytes             uint64             `json:"retired_bytes"`     // out of the index, still referenced
	WritingBytes             uint64             `json:"writing_bytes"`     // reserved and not sealed
	AbandonedBytes           uint64             `json:"abandoned_bytes"`   // can never seal, a writer is not terminal
	QuarantinedBytes         uint64             `json:"quarantined_bytes"` // pages with a writer of which nobody will say that it is done
	StalledBytes             uint64             `json:"stalled_bytes"`     // leases whose session is silent
	SettlingBytes            uint64             `json:"settling_bytes"`    // slices whose writer is disconnected and not proved dead
	IndexBytes               uint64             `json:"index_bytes"`
	WarmupPreparedBytesTotal uint64             `json:"warmup_prepared_bytes_total"`
	WarmupRestoredBytesTotal uint64             `json:"warmup_restored_bytes_total"`
	WarmupUnusedBytesTotal   uint64             `json:"warmup_unused_bytes_total"`
	WarmupPendingBytes       uint64             `json:"warmup_pending_bytes"`
	WarmupByteSecondsTotal   map[string]float64 `json:"warmup_wait_byte_seconds_total"` // from arrival to first copy (restored) or last reference (unused)
	WarmupSkippedForeground  uint64             `json:"warmup_foreground_skips_total"`
	WarmupHintsTotal         map[string]uint64  `json:"warmup_hints_total"`          // by what became of them at their admission
	WarmupEndsTotal          map[string]uint64  `json:"warmup_ends_total"`           // of accepted hints: why they read no further
	OperationsWarming        uint64             `json:"operations_warming"`          // hints that read or drain
	LoadBytesTotal           uint64             `json:"load_bytes_total"`            // that arrived, from terminal reports only
	LoadFailuresTotal        uint64             `json:"load_failures_total"`         // pages of failed copies
	SaveBytesTotal           uint64             `json:"save_bytes_total"`            // unpadded bytes of pages that were sealed
	OperationsWaiting        uint64             `json:"operations_waiting"`          // for budget
	OperationsPreparing      uint64             `json:"operations_preparing"`        // being read from the tier
	OperationsDraining       uint64             `json:"operations_draining"`         // given up while their reads run
	OperationsReady          uint64             `json:"operations_ready"`            // and not begun
	ReadsCoalescedTotal      uint64             `json:"reads_coalesced_total"`       // pages that a query found being read for another one
	ReadBackpressureTotal    uint64             `json:"read_backpressure_total"`     // times that a query had to wait for room in the tier's queue
	ReadFailuresTotal        uint64             `json:"read_failures_total"`         // pages whose read failed, or that nobody may have any more
	ReadingPages             uint64             `json:"reading_pages"`               // from the tier
	TierWriteBytes           uint64             `json:"tier_write_bytes"`            // of pages that are queued or written to the tier, referenced meanwhile
	WriteSkipsTotal          map[string]uint64  `json:"write_skips_total"`           // pages that were not handed to the tier: cold, resident, pending, duplicate, clearing
	ScrubBytesTotal          uint64             `json:"scrub_bytes_total"`           // of the pool that were looked at
	ScrubPassesTotal         uint64             `json:"scrub_passes_total"`          // over the whole pool
	DamagedPagesTotal        uint64             `json:"damaged_pages_total"`         // whose bytes were not those that were written
	Leases                   uint64             `json:"leases"`                      // quarantined ones included
	Reservations             uint64             `json:"reservations"`                // with a slice that is not terminal
	Sessions                 uint64             `json:"sessions"`                    // connected
	SessionsDisconnected     uint64             `json:"sessions_disconnected"`       // whose process lives
	SessionsStalled          uint64             `json:"sessions_stalled"`            // of both
	Processes                uint64             `json:"processes"`                   //
	Instances                uint64             `json:"instances"`                   //
	RanksByBackend           map[string]uint64  `json:"ranks_by_backend"`            // attached: host, direct, kernel or other
	Namespaces               uint64             `json:"namespaces"`                  //
	NoticesDroppedTotal      uint64             `json:"notices_dropped_total"`       // a send queue was full
	LateReportsTotal         uint64             `json:"late_reports_total"`          // harmless races
	JointAnswersDroppedTotal uint64             `json:"joint_answers_dropped_total"` // kept for ranks that had not asked, until a bound
	ViolationsTotal          map[string]uint64  `json:"violations_total"`            // by message
}

// Stats reads all numbers.
func (c *Cache) Stats() Stats {
	c.enter()
	defer c.leave()
	n := &c.counters
	stats := Stats{
		PoolConfiguredBytes: c.config.PoolBytes, PoolAllocFailuresTotal: n.allocFailures,
		QueryBudgetBytes: c.budget.globalMax, InstanceBudgetBytes: c.budget.instanceMax, QueryReservedBytes: c.budget.global(),
		QueryBudgetWaitsTotal: n.budgetWaits, QueryBudgetBypassesTotal: n.budgetCuts, BusyTotal: n.busy,
		PageHitsTotal: n.hits, PageHitsTierTotal: n.tierHits, PageMissesTotal: n.misses, PagesNotMappedTotal: n.notMapped, PageInsertionsTotal: n.insertions,
		PagePromotionsTotal: n.promotions, EvictionsReferencedTotal: n.evictionsReferenced, EvictionReclaimedTotal: n.reclaimedBytes,
		ResidentBytes: c.stateBytes[index.Sealed], RetiredBytes: c.stateBytes[index.Retired], WritingBytes: c.stateBytes[index.Reserved],
		AbandonedBytes: c.stateBytes[index.Abandoned], QuarantinedBytes: c.stateBytes[index.Quarantined],
		StalledBytes: c.budget.byPhase[phaseStalled], SettlingBytes: c.settlingBytes(), IndexBytes: c.index.Bytes() + c.digests.bytes(),
		WarmupPreparedBytesTotal: c.useful.preparedBytes, WarmupRestoredBytesTotal: c.useful.restoredBytes,
		WarmupUnusedBytesTotal: c.useful.unusedBytes, WarmupPendingBytes: c.useful.pending(),
		WarmupByteSecondsTotal:  map[string]float64{"restored": c.useful.restoredByteSeconds, "unused": c.useful.unusedByteSeconds},
		WarmupSkippedForeground: n.hints[wire.HintForeground], OperationsWarming: uint64(len(c.hints)),
		LoadBytesTotal: n.loadBytes, LoadFailuresTotal: n.loadFailures, SaveBytesTotal: n.saveBytes,
		ReadsCoalescedTotal: n.coalescedReads, ReadBackpressureTotal: n.backpressure, ReadFailuresTotal: n.readFailures,
		ReadingPages: uint64(len(c.reads)), TierWriteBytes: c.writeBytes,
		PageDemotionsTotal: n.demotions, AdmissionRejectionsTotal: n.admissionRejections, ProtectedBytes: c.protectedBytes,
		ScrubBytesTotal: n.scrubBytes, ScrubPassesTotal: n.scrubPasses, DamagedPagesTotal: n.damagedPages,
		Leases: uint64(len(c.leases)), Reservations: uint64(c.openReservations), Processes: uint64(len(c.processes)),
		Instances: uint64(len(c.instances)), Namespaces: uint64(len(c.namespaces)),
		NoticesDroppedTotal: n.noticesDropped, LateReportsTotal: n.lateReports, JointAnswersDroppedTotal: n.jointDropped,
		QueryReservedByPhase: map[string]uint64{}, PageEvictionsTotal: map[string]uint64{}, ResidentPages: map[string]uint64{},
		ViolationsTotal: map[string]uint64{}, WriteSkipsTotal: map[string]uint64{}, RanksByBackend: map[string]uint64{"host": 0, "direct": 0, "kernel": 0, "other": 0},
	}
	stats.addPool(c)
	stats.addTables(c)
	stats.addHints(c)
	return stats
}

func (stats *Stats) addPool(c *Cache) {
	for _, a := range c.arenas {
		stats.PoolCapacityBytes += a.free.Bytes()
		stats.PoolUsedBytes += a.free.Bytes() - a.free.FreeBytes()
		stats.PoolLargestFreeBytes = max(stats.PoolLargestFreeBytes, a.free.LargestFree())
	}
	for p := phaseReady; p < phaseEnded; p++ {
		stats.QueryReservedByPhase[phaseMachine.Names[p]] = c.budget.byPhase[p]
	}
	for _, class := range index.Classes {
		stats.PageEvictionsTotal[class.String()] = c.counters.evictions[class]
		stats.ResidentPages[class.String()] = c.index.Resident(class)
	}
	for reason, count := range c.counters.writeSkips {
		stats.WriteSkipsTotal[skipNames[reason]] = count
	}
	for kind, count := range c.counters.violations {
		stats.ViolationsTotal[kind] = count
	}
}

func (stats *Stats) addTables(c *Cache) {
	for _, p := range c.preparations {
		if p.owing {
			stats.OperationsDraining++
		}
	}
	for _, s := range c.sessions {
		switch s.state {
		case sessionOpen:
			stats.Sessions++
		case sessionClosed:
			stats.SessionsDisconnected++
		}
		if s.silent {
			stats.SessionsStalled++
		}
		for _, op := range s.operations {
			stats.addOperation(op)
		}
	}
	for _, inst := range c.instances {
		stats.addRanks(inst)
		if inst.joint == nil {
			continue
		}
		for _, op := range inst.joint.operations {
			if op.session != nil { // else it found nothing and is kept for ranks that have not asked
				stats.addOperation(op)
			}
		}
	}
}

// addRanks counts the attached ranks of an instance. A name that is not known counts as other, so that clients do not choose the labels.
func (stats *Stats) addRanks(inst *instance) {
	for _, slot := range inst.ranks {
		if slot.process == nil {
			continue
		}
		backend := slot.backend
		if _, known := stats.RanksByBackend[backend]; !known {
			backend = "other"
		}
		stats.RanksByBackend[backend]++
	}
}

func (stats *Stats) addOperation(op *operation) {
	switch op.state {
	case operationWaiting:
		stats.OperationsWaiting++
	case operationPreparing:
		stats.OperationsPreparing++
	case operationReady:
		stats.OperationsReady++
	}
}

func (stats *Stats) addHints(c *Cache) {
	stats.WarmupHintsTotal, stats.WarmupEndsTotal = map[string]uint64{}, map[string]uint64{}
	for outcome := wire.HintAccepted; outcome < hintOutcomes; outcome++ {
		stats.WarmupHintsTotal[outcome.String()] = c.counters.hints[outcome]
	}
	for why, count := range c.counters.hintEnds {
		stats.WarmupEndsTotal[hintEndNames[why]] = count
	}
}

// settlingBytes is what disconnected ranks have reserved: freed, committed or quarantined by their resume or the exit of their process.
func (c *Cache) settlingBytes() (bytes uint64) {
	for _, r := range c.reservations {
		for storage, rank := range r.instance.geometry.storage {
			if s := r.instance.ranks[rank].session; s != nil && s.state == sessionClosed {
				bytes += uint64(r.openBy[storage]) * r.instance.geometry.slices[storage].Bytes
			}
		}
	}
	return bytes
}
