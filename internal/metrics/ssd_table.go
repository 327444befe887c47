package metrics

import (
	"maps"

	"orbitkv/internal/ssd"
)

func ssdOne(field func(*ssd.Stats) uint64) func(snapshot) []sample {
	return ssdSome(func(s *ssd.Stats) []sample { return []sample{{value: float64(field(s))}} })
}

func ssdEach(field func(*ssd.Stats) map[string]uint64) func(snapshot) []sample {
	return ssdSome(func(s *ssd.Stats) []sample { return labelled(field(s)) })
}

// ssdReasons shows known reasons from the start, as zeros.
func ssdReasons(field func(*ssd.Stats) map[string]uint64, known ...string) func(snapshot) []sample {
	return ssdSome(func(s *ssd.Stats) []sample { return labelled(withZeros(field(s), known...)) })
}

func withZeros(values map[string]uint64, known ...string) map[string]uint64 {
	all := map[string]uint64{}
	for _, label := range known {
		all[label] = 0
	}
	maps.Copy(all, values)
	return all
}

func ssdTimes(field func(*ssd.Stats) ssd.Histogram) func(snapshot) []sample {
	return ssdSome(func(s *ssd.Stats) []sample { return []sample{{durations: field(s)}} })
}

func ssdSome(read func(*ssd.Stats) []sample) func(snapshot) []sample {
	return func(s snapshot) []sample {
		if s.ssd == nil {
			return nil
		}
		return read(s.ssd)
	}
}

// amplification is what the device was given for each byte of a page.
func amplification(s *ssd.Stats) []sample {
	if s.WriteBytesTotal == 0 {
		return []sample{{value: 0}}
	}
	return []sample{{value: float64(s.DeviceBytesTotal) / float64(s.WriteBytesTotal)}}
}

// ssdTable is the SSD tier's part of the table.
var ssdTable = []row{
	{"orbitkv_ssd_capacity_bytes", Gauge, nil, "Hard limit of the bytes on disk, of all folders together. The metrics of the SSD exist only where there is one.", ssdOne(func(s *ssd.Stats) uint64 { return s.CapacityBytes })},
	{"orbitkv_ssd_disk_bytes", Gauge, nil, "Bytes that the files occupy on disk, reserved ones included: about the capacity from the start on. Not how full the tier is.", ssdOne(func(s *ssd.Stats) uint64 { return s.DiskBytes })},
	{"orbitkv_ssd_payload_bytes", Gauge, nil, "Bytes that pages can have of the capacity, on folders that can be read. The rest is for the index.", ssdOne(func(s *ssd.Stats) uint64 { return s.PayloadBytes })},
	{"orbitkv_ssd_used_bytes", Gauge, nil, "Of the payload: bytes lent to pages, those that are being written and those that wait to be free included, with the 4 KiB behind each page.", ssdOne(func(s *ssd.Stats) uint64 { return s.UsedBytes })},
	{"orbitkv_ssd_stored_bytes", Gauge, nil, "Padded bytes of pages that can be read.", ssdOne(func(s *ssd.Stats) uint64 { return s.StoredBytes })},
	{"orbitkv_ssd_pages", Gauge, []string{"class"}, "Pages that can be read, by class: probationary ones make room first, retained ones were asked for since they were written. Those of a folder that is off are not in it.", ssdEach(func(s *ssd.Stats) map[string]uint64 { return s.Pages })},
	{"orbitkv_ssd_namespaces", Gauge, nil, "Namespaces that an instance uses or that have pages on the SSD.", ssdOne(func(s *ssd.Stats) uint64 { return s.Namespaces })},
	{"orbitkv_ssd_namespaces_refused_total", Counter, nil, "Namespaces that found the tier's table full: their pages are not stored.", ssdOne(func(s *ssd.Stats) uint64 { return s.NamespacesRefusedTotal })},
	{"orbitkv_ssd_index_bytes", Gauge, nil, "Memory of the tier's index.", ssdOne(func(s *ssd.Stats) uint64 { return s.IndexBytes })},
	{"orbitkv_ssd_volumes", Gauge, []string{"state"}, "Folders by state: on, read_only (its writes failed; its pages are read), off (failed; its pages are misses until a restart) or closed (at the end).", ssdEach(func(s *ssd.Stats) map[string]uint64 { return s.Volumes })},
	{"orbitkv_ssd_evictions_total", Counter, []string{"class"}, "Pages that left the SSD: by class for want of room, or by what dropped them (digest, io, short). Reclaimable ones are of a run of an engine (an epoch) that nobody has registered since the Manager started; they make room first.", ssdReasons(func(s *ssd.Stats) map[string]uint64 { return s.EvictionsTotal }, ssd.EvictionLabels...)},
	{"orbitkv_ssd_demanded_total", Counter, nil, "Pages on the SSD that a query asked for, whether they were read from it or lay in the pool: they are retained longest.", ssdOne(func(s *ssd.Stats) uint64 { return s.DemandedTotal })},
	{"orbitkv_ssd_demands_dropped_total", Counter, nil, "Queries whose pages were not told to the SSD tier since too many waited to be told: it keeps these pages no longer than others, and does not get those that it lacks.", func(s snapshot) []sample {
		if s.ssd == nil {
			return nil
		}
		return []sample{{value: float64(s.demandsDropped)}}
	}},
	{"orbitkv_ssd_demoted_total", Counter, nil, "Retained pages that fell back to probationary since the class had its share.", ssdOne(func(s *ssd.Stats) uint64 { return s.DemotedTotal })},

	{"orbitkv_ssd_recovered_pages", Gauge, nil, "Pages that were found when the Manager started. Their bytes are checked when they are read, not before.", ssdOne(func(s *ssd.Stats) uint64 { return s.RecoveredPages })},
	{"orbitkv_ssd_recovery_seconds", Gauge, nil, "Time that reading the index took when the Manager started.", ssdSome(func(s *ssd.Stats) []sample { return []sample{{value: s.RecoverySeconds}} })},
	{"orbitkv_ssd_recovery_problems_total", Counter, []string{"reason"}, "Records of the index that were not used when the Manager started, by reason. Each is a miss, never a wrong page.", ssdReasons(func(s *ssd.Stats) map[string]uint64 { return s.RecoveryProblems }, ssd.RecoveryReasons...)},

	{"orbitkv_ssd_write_blocks_total", Counter, nil, "Pages that were written, durable with their record and readable.", ssdOne(func(s *ssd.Stats) uint64 { return s.WritePagesTotal })},
	{"orbitkv_ssd_write_bytes_total", Counter, nil, "Padded bytes of these pages. What the device was given is orbitkv_ssd_device_write_bytes_total.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteBytesTotal })},
	{"orbitkv_ssd_device_write_bytes_total", Counter, nil, "Bytes given to the device: pages, those that failed later included, the block behind each, and the index. What the device writes inside is not known.", ssdOne(func(s *ssd.Stats) uint64 { return s.DeviceBytesTotal })},
	{"orbitkv_ssd_write_amplification", Gauge, nil, "orbitkv_ssd_device_write_bytes_total over orbitkv_ssd_write_bytes_total since the start; 0 before the first page.", ssdSome(amplification)},
	{"orbitkv_ssd_write_duration_seconds", Histogram, nil, "Time of a page from the queue to readable. Pages overlap: this is not the device's time, and bytes over it are not a rate.", ssdTimes(func(s *ssd.Stats) ssd.Histogram { return s.WriteDuration })},
	{"orbitkv_ssd_commits_total", Counter, nil, "Times that the device was told to make pages and records durable, several pages at a time.", ssdOne(func(s *ssd.Stats) uint64 { return s.CommitsTotal })},
	{"orbitkv_ssd_commit_duration_seconds", Histogram, nil, "Time of one of these.", ssdTimes(func(s *ssd.Stats) ssd.Histogram { return s.CommitDuration })},
	{"orbitkv_ssd_write_failures_total", Counter, []string{"reason"}, "Pages that were taken and not written, by reason. Each is a miss of this tier at once.", ssdReasons(func(s *ssd.Stats) map[string]uint64 { return s.WriteFailuresTotal }, ssd.ReasonIO, ssd.ReasonNoSpace, ssd.ReasonDropped, ssd.ReasonReadOnly, ssd.ReasonOff, ssd.ReasonClosed)},
	{"orbitkv_ssd_write_admission_skips_total", Counter, []string{"reason"}, "Pages that were not written, by reason: cold (saved once so far, under the policy reuse), resident (stored already), pending (being written), duplicate (named twice by one call), clearing (the cache is being cleared), full (the queue), too_large, unknown (no namespace of the tier), read_only, off. They stay in the pool as long as it keeps them.", func(s snapshot) []sample {
		if s.ssd == nil {
			return nil
		}
		skips := withZeros(s.ssd.WriteSkipsTotal, ssd.SkipResident, ssd.SkipPending, ssd.SkipUnknown, ssd.SkipTooLarge, ssd.SkipReadOnly, ssd.SkipOff, ssd.SkipFull)
		for reason, n := range s.cache.WriteSkipsTotal { // the cache looks first: what it skips was not offered to the store
			skips[reason] += n
		}
		return labelled(skips)
	}},
	{"orbitkv_ssd_write_retries_total", Counter, nil, "Times that a folder that is read_only, since its file system was full, was tried again, once a minute.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteRetriesTotal })},
	{"orbitkv_ssd_write_queue_pending", Gauge, nil, "Pages that wait to be written.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteQueuePages })},
	{"orbitkv_ssd_write_queue_bytes", Gauge, nil, "Padded bytes of them.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteQueueBytes })},
	{"orbitkv_ssd_write_queue_full_total", Counter, nil, "Pages that found the queue of writes full, and were not written. The device is slower than the engines publish.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteQueueFullTotal })},
	{"orbitkv_ssd_write_inflight", Gauge, nil, "Pages that the device is writing.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteInflight })},
	{"orbitkv_ssd_write_held_bytes", Gauge, nil, "Padded bytes of pages from the queue until they are durable: what the tier keeps of the pool.", ssdOne(func(s *ssd.Stats) uint64 { return s.WriteHeldBytes })},

	{"orbitkv_ssd_prefetch_success_total", Counter, nil, "Pages that were read whole and with the right digest, for whatever reason.", ssdOne(func(s *ssd.Stats) uint64 { return s.ReadPagesTotal })},
	{"orbitkv_ssd_prefetch_bytes_total", Counter, nil, "Padded bytes of these pages. Not what engines restored: see orbitkv_load_bytes_total.", ssdOne(func(s *ssd.Stats) uint64 { return s.ReadBytesTotal })},
	{"orbitkv_ssd_prefetch_duration_seconds", Histogram, nil, "Time of a page from the queue to checked. It waits, is read and is hashed in it; finding room in the pool and the copy to the engine are not.", ssdTimes(func(s *ssd.Stats) ssd.Histogram { return s.ReadDuration })},
	{"orbitkv_ssd_prefetch_failures_total", Counter, []string{"reason"}, "Pages that were to be read and were not, by reason: digest (other bytes lay there), io and short are dropped at once; dropped, hangs (the device has not answered for 30 s), off and closed were given up before they began.", ssdReasons(func(s *ssd.Stats) map[string]uint64 { return s.ReadFailuresTotal }, ssd.ReasonDigest, ssd.ReasonIO, ssd.ReasonShort, ssd.ReasonDropped, ssd.ReasonHangs, ssd.ReasonOff, ssd.ReasonClosed)},
	{"orbitkv_ssd_prefetch_queue_pending", Gauge, []string{"priority"}, "Pages that wait to be read, by priority.", ssdEach(func(s *ssd.Stats) map[string]uint64 { return s.ReadQueuePages })},
	{"orbitkv_ssd_prefetch_queue_bytes", Gauge, nil, "Padded bytes of them.", ssdOne(func(s *ssd.Stats) uint64 { return s.ReadQueueBytes })},
	{"orbitkv_ssd_prefetch_queue_full_total", Counter, nil, "Pages that found the queue of reads full. Their query asks again: attempts, not losses.", ssdOne(func(s *ssd.Stats) uint64 { return s.ReadQueueRefusedTotal })},
	{"orbitkv_ssd_prefetch_backpressure_blocks_total", Counter, nil, "Times that a query had to wait with its next page for room in the queue of reads.", func(s snapshot) []sample {
		if s.ssd == nil {
			return nil
		}
		return []sample{{value: float64(s.cache.ReadBackpressureTotal)}}
	}},
	{"orbitkv_ssd_prefetch_inflight", Gauge, nil, "Pages that the device is reading or that are being hashed.", ssdOne(func(s *ssd.Stats) uint64 { return s.ReadInflight })},

	{"orbitkv_ssd_scrub_blocks_total", Counter, nil, "Pages that the scrubber read.", ssdOne(func(s *ssd.Stats) uint64 { return s.ScrubPagesTotal })},
	{"orbitkv_ssd_scrub_bytes_total", Counter, nil, "Padded bytes of them.", ssdOne(func(s *ssd.Stats) uint64 { return s.ScrubBytesTotal })},
	{"orbitkv_ssd_scrub_passes_total", Counter, nil, "Times that the scrubber came to the end of a folder.", ssdOne(func(s *ssd.Stats) uint64 { return s.ScrubPassesTotal })},
	{"orbitkv_ssd_verify_blocks_total", Counter, nil, "Pages that `orbitkv verify --ssd` had this Manager read.", ssdOne(func(s *ssd.Stats) uint64 { return s.VerifyPagesTotal })},
	{"orbitkv_ssd_damaged_pages_total", Counter, []string{"found_by"}, "Pages that were not on the SSD as they were written, whoever found it: a read for an engine, the scrubber (scrub) or `orbitkv verify --ssd` (verify). None is served: they were dropped, but for those of which the block behind the page alone is wrong, which stay and count each time they are read. More than zero means a device that loses data.", ssdEach(func(s *ssd.Stats) map[string]uint64 { return s.DamagedPagesTotal })},
	{"orbitkv_ssd_scrub_failures_total", Counter, []string{"reason"}, "Pages in which the scrubber found other bytes than were written, or none, by reason. They were dropped, but for those of the reason header, which can be read.", ssdReasons(func(s *ssd.Stats) map[string]uint64 { return s.ScrubFailuresTotal }, ssd.ReasonDigest, ssd.ReasonIO, ssd.ReasonShort, ssd.ReasonHeader)},
}
