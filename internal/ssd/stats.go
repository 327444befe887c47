package ssd

import (
	"fmt"
	"maps"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
)

// counters only grow.
type counters struct {
	writePages    uint64
	writeBytes    uint64
	writeDuration Histogram
	writeFailures map[string]uint64
	writeSkips    map[string]uint64
	writeRetries  uint64
	queueFull     uint64
	deviceBytes   uint64
	commits       uint64
	commitTime    Histogram
	readPages     uint64
	readBytes     uint64
	readDuration  Histogram
	readFailures  map[string]uint64
	readRefused   uint64
	evictions     map[string]uint64
	demanded      uint64
	demoted       uint64
	namespaceFull uint64
	scrubPages    uint64
	scrubBytes    uint64
	scrubPasses   uint64
	scrubFailures map[string]uint64
	verifyPages   uint64
	damaged       map[string]uint64
}

func newCounters() counters {
	return counters{
		writeFailures: map[string]uint64{}, writeSkips: map[string]uint64{}, readFailures: map[string]uint64{},
		evictions: map[string]uint64{}, scrubFailures: map[string]uint64{},
		damaged: map[string]uint64{FoundByRead: 0, FoundByScrub: 0, FoundByVerify: 0},
	}
}

// Who found a page damaged: other bytes than were written, or none.
const (
	FoundByRead   = "read"
	FoundByScrub  = "scrub"
	FoundByVerify = "verify"
)

// RecoveryReasons are those of Stats.RecoveryProblems.
var RecoveryReasons = []string{
	journal.Torn, journal.Damaged, journal.Stale, journal.Duplicate, journal.UnknownNamespace, journal.OutOfBounds, journal.Overlapping,
}

// EvictionLabels are those of Stats.EvictionsTotal: the classes, and what drops a page.
var EvictionLabels = []string{
	index.Reclaimable.String(), index.Probationary.String(), index.Retained.String(), ReasonDigest, ReasonIO, ReasonShort,
}

// Stats is every number of the store. Fields that end in Total only grow; the others are what is now. Bytes of pages are padded, without the
// header block behind each.
type Stats struct {
	CapacityBytes    uint64            `json:"capacity_bytes"`    // the hard limit
	PayloadBytes     uint64            `json:"payload_bytes"`     // of the volumes that can be read: what pages can have of it
	UsedBytes        uint64            `json:"used_bytes"`        // of the payload: lent to pages, readable or being written or waiting to be free
	StoredBytes      uint64            `json:"stored_bytes"`      // of pages that can be read
	DiskBytes        uint64            `json:"disk_bytes"`        // that the volumes' files occupy
	Pages            map[string]uint64 `json:"pages"`             // that can be read, by class
	Namespaces       uint64            `json:"namespaces"`        // that are registered or have pages
	IndexBytes       uint64            `json:"index_bytes"`       // memory of the index and of what stands beside it
	Volumes          map[string]uint64 `json:"volumes"`           // by state
	RecoveredPages   uint64            `json:"recovered_pages"`   // that the store found when it was opened
	RecoverySeconds  float64           `json:"recovery_seconds"`  // that reading the index logs took
	RecoveryProblems map[string]uint64 `json:"recovery_problems"` // records that were not used, by reason

	WritePagesTotal     uint64            `json:"write_pages_total"` // durable and visible
	WriteBytesTotal     uint64            `json:"write_bytes_total"`
	WriteDuration       Histogram         `json:"write_duration"`       // from Write to visible
	WriteFailuresTotal  map[string]uint64 `json:"write_failures_total"` // by reason
	WriteSkipsTotal     map[string]uint64 `json:"write_skips_total"`    // pages that Write did not take, by reason
	WriteRetriesTotal   uint64            `json:"write_retries_total"`  // times that a volume that takes no writes was tried again
	WriteQueuePages     uint64            `json:"write_queue_pages"`
	WriteQueueBytes     uint64            `json:"write_queue_bytes"`
	WriteQueueFullTotal uint64            `json:"write_queue_full_total"`
	WriteInflight       uint64            `json:"write_inflight"`     // pages that the device is writing
	WriteHeldBytes      uint64            `json:"write_held_bytes"`   // of pages from Write to Done
	DeviceBytesTotal    uint64            `json:"device_bytes_total"` // written: pages, header blocks and index
	CommitsTotal        uint64            `json:"commits_total"`      // group commits
	CommitDuration      Histogram         `json:"commit_duration"`
	EvictionsTotal      map[string]uint64 `json:"evictions_total"` // by class, and dropped ones by reason
	DemandedTotal       uint64            `json:"demanded_total"`  // pages that a demand named
	DemotedTotal        uint64            `json:"demoted_total"`   // retained pages that fell back for want of room in their class

	ReadPagesTotal        uint64            `json:"read_pages_total"` // whole and with the right digest
	ReadBytesTotal        uint64            `json:"read_bytes_total"`
	ReadDuration          Histogram         `json:"read_duration"` // from Read to Done
	ReadFailuresTotal     map[string]uint64 `json:"read_failures_total"`
	ReadQueuePages        map[string]uint64 `json:"read_queue_pages"` // by priority
	ReadQueueBytes        uint64            `json:"read_queue_bytes"`
	ReadQueueRefusedTotal uint64            `json:"read_queue_refused_total"` // pages that found the queue full and were to be asked for again
	ReadInflight          uint64            `json:"read_inflight"`            // pages that the device is reading or whose digest is computed

	NamespacesRefusedTotal uint64            `json:"namespaces_refused_total"` // registrations that found the table full
	ScrubPagesTotal        uint64            `json:"scrub_pages_total"`
	ScrubBytesTotal        uint64            `json:"scrub_bytes_total"`
	ScrubPassesTotal       uint64            `json:"scrub_passes_total"` // over a whole volume
	ScrubFailuresTotal     map[string]uint64 `json:"scrub_failures_total"`
	VerifyPagesTotal       uint64            `json:"verify_pages_total"`  // that verifications read
	DamagedPagesTotal      map[string]uint64 `json:"damaged_pages_total"` // by who found them
}

// VolumeStatus is one volume for people.
type VolumeStatus struct {
	Name          string `json:"name"`
	Folder        string `json:"folder"`
	State         string `json:"state"`            // on, read_only, off or closed
	Hangs         bool   `json:"hangs"`            // its device does not answer: its pages are misses until it does
	Reason        string `json:"reason,omitempty"` // why it is read-only, off or hangs
	Engine        string `json:"engine,omitempty"`
	EngineReason  string `json:"engine_reason,omitempty"`
	CapacityBytes uint64 `json:"capacity_bytes"`
	PayloadBytes  uint64 `json:"payload_bytes"`
	UsedBytes     uint64 `json:"used_bytes"`
	DiskBytes     uint64 `json:"disk_bytes"`
	Pages         uint64 `json:"pages"`
}

// Stats reads all numbers.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.counters
	stats := Stats{
		CapacityBytes: s.config.CapacityBytes, Namespaces: uint64(len(s.namespaces)), Pages: map[string]uint64{}, Volumes: map[string]uint64{},
		RecoveredPages: s.recovered.pages, RecoverySeconds: s.recovered.took.Seconds(), RecoveryProblems: maps.Clone(s.recovered.problems),
		WritePagesTotal: n.writePages, WriteBytesTotal: n.writeBytes, WriteDuration: n.writeDuration, WriteFailuresTotal: maps.Clone(n.writeFailures),
		WriteSkipsTotal: maps.Clone(n.writeSkips), WriteRetriesTotal: n.writeRetries, WriteQueueFullTotal: n.queueFull, WriteHeldBytes: s.held, DeviceBytesTotal: n.deviceBytes,
		CommitsTotal: n.commits, CommitDuration: n.commitTime, EvictionsTotal: maps.Clone(n.evictions), DemandedTotal: n.demanded, DemotedTotal: n.demoted,
		ReadPagesTotal: n.readPages, ReadBytesTotal: n.readBytes, ReadDuration: n.readDuration, ReadFailuresTotal: maps.Clone(n.readFailures),
		ReadQueuePages: map[string]uint64{}, ReadQueueBytes: s.readQueued, ReadQueueRefusedTotal: n.readRefused, NamespacesRefusedTotal: n.namespaceFull,
		ScrubPagesTotal: n.scrubPages, ScrubBytesTotal: n.scrubBytes, ScrubPassesTotal: n.scrubPasses, ScrubFailuresTotal: maps.Clone(n.scrubFailures),
		VerifyPagesTotal: n.verifyPages, DamagedPagesTotal: maps.Clone(n.damaged),
	}
	for state := volumeOn; state <= volumeClosed; state++ {
		stats.Volumes[volumeMachine.Names[state]] = 0
	}
	for _, class := range index.Classes {
		stats.Pages[class.String()] = 0
	}
	for p := Demand; p < priorities; p++ {
		stats.ReadQueuePages[p.String()] = 0
	}
	for _, v := range s.volumes {
		stats.add(v)
	}
	return stats
}

// add counts one volume. The pages of one that is off cannot be read and are not counted.
func (stats *Stats) add(v *volume) {
	stats.Volumes[volumeMachine.Names[v.state]]++
	stats.DiskBytes += v.disk
	stats.WriteInflight += uint64(v.writing)
	stats.ReadInflight += uint64(v.reading + v.checking)
	stats.WriteQueuePages += uint64(v.waiting.len() + v.ready.len())
	stats.WriteQueueBytes += v.waitingBytes + v.readyBytes
	for p := Demand; p < priorities; p++ {
		stats.ReadQueuePages[p.String()] += uint64(v.reads[p].len())
	}
	if !v.readable() {
		return
	}
	stats.PayloadBytes += v.space.Bytes()
	stats.UsedBytes += v.usedBytes()
	stats.IndexBytes += v.index.Bytes() + v.facts.bytes()
	for _, class := range index.Classes {
		stats.Pages[class.String()] += v.index.Resident(class)
		stats.StoredBytes += v.classBytes[class] - v.index.Resident(class)*format.PageHeaderBytes
	}
}

// Status describes the volumes.
func (s *Store) Status() []VolumeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var status []VolumeStatus
	for _, v := range s.volumes {
		one := VolumeStatus{
			Name: v.name, Folder: v.fs.Name(), State: volumeMachine.Names[v.state], Reason: v.reason, CapacityBytes: v.capacity,
			PayloadBytes: v.payloadBytes, DiskBytes: v.disk, EngineReason: v.engineReason,
		}
		if v.engine != nil {
			one.Engine = v.engine.Name()
		}
		if v.uncleared != nil {
			one.Reason += "; " + v.uncleared.Error()
		}
		if one.Hangs = v.readable() && v.hangs(); one.Hangs {
			one.Reason = fmt.Sprintf("the device has not answered a read for %v", s.config.Now().Sub(v.running[0].begun).Round(time.Second))
		}
		if v.readable() {
			one.UsedBytes, one.Pages = v.usedBytes(), v.index.Count(index.Sealed)
		}
		status = append(status, one)
	}
	return status
}
