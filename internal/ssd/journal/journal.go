// Package journal is the index log of one volume: what is stored where, in records that are appended, and a snapshot of what is alive in place of
// the log when it has grown too long.
//
// It owns the file named format.IndexName and which records of it count: after a crash, what a Commit made durable and nothing dropped since is in
// the State that Open returns, and what was dropped durably is not. Records of a Commit that did not end may be there or not, each for itself: the
// caller has made a page's bytes durable before it says Put, and a Drop durable before it writes the space anew. The package never reads the
// payload, except for Rebuild.
//
// Concurrency: a Journal has no lock; one goroutine at a time uses it, but for NextSequence. It must not know of queues, classes of eviction or free space.
package journal

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

const (
	// PendingMax bounds the records between two commits.
	PendingMax = 64 << 10
	// compactionSlack is how many records a log may hold beyond twice the live pages before a compaction pays.
	compactionSlack = 56 << 10
	// sequenceGap is left free above the recorded sequences at each start: pages that were being written in a crash bear some that no record tells of.
	sequenceGap = 64 << 10
	// roomRecordsMax bounds how many records a log has room for beyond those that it holds: the room of one growth.
	roomRecordsMax = 8 << 10
)

// zeros is what a log has in its room.
var zeros [roomRecordsMax * format.RecordBytes]byte

// Limits are what records are held against.
type Limits struct {
	PayloadBytes uint64 // size of the payload file
	Cleared      uint64 // the superblock's: no page up to this sequence exists
}

// Put is a stored page.
type Put struct {
	Namespace uint32 // the volume's number of it
	Group     uint16
	Key       [32]byte
	Offset    uint64 // in the payload file, bytes
	Bytes     uint64 // of the page, without its header block
	Digest    [16]byte
	Retained  bool
	Sequence  uint64 // that of the page's header block, from NextSequence
}

// Namespace is a namespace under the number that records call it by.
type Namespace struct {
	Number    uint32
	Identity  [32]byte
	Epoch     uint64
	PageBytes uint64
}

// Journal is the open index log of one volume.
type Journal struct {
	fs         vfs.FS
	volume     [16]byte
	file       vfs.File
	generation uint64
	records    uint64        // in the file
	room       uint64        // records that the file has bytes for; those from records on are zeros
	sequence   atomic.Uint64 // the highest that was given out
	cleared    uint64        // the sequence of the last clear, whether it is durable or not
	namespaces table
	pending    []format.Record
	anew       bool  // the pending records take the place of the log: it was cleared
	written    int64 // bytes written since Open
	failed     error
}

// BytesMax is what the index of a volume occupies at most, in bytes, its two logs together while one takes the place of the other: for so many pages
// and namespaces alive, if the caller compacts whenever it is Due after a commit.
func BytesMax(pages, namespaces uint64) uint64 {
	alive := pages + namespaces
	current, next := 2*alive+compactionSlack+PendingMax+roomRecordsMax, alive
	return 2*(format.LogHeaderBytes+format.Granule) + format.RecordBytes*(current+next)
}

// NextSequence gives out the sequence of a page that is about to be written: higher than all before, over the whole life of the volume. It may be
// called while another goroutine uses the journal.
func (j *Journal) NextSequence() uint64 {
	return j.sequence.Add(1)
}

// Put says that a page is stored: its bytes and its header block are durable. A page that was being written while its namespace was dropped, or
// the volume cleared, is not recorded.
func (j *Journal) Put(p Put) {
	if r, ok := j.record(&p); ok {
		j.add(r)
	}
}

func (j *Journal) record(p *Put) (r format.Record, ok bool) {
	tag, known := j.namespaces.tags[p.Namespace]
	return format.Record{
		Kind: format.KindPut, Retained: p.Retained, Group: p.Group, Namespace: p.Namespace, Key: p.Key,
		Offset: p.Offset, Bytes: p.Bytes, Digest: p.Digest, Sequence: p.Sequence, Tag: tag,
	}, known && p.Sequence > j.cleared
}

// Drop says that the page at an offset is stored no more.
func (j *Journal) Drop(offset uint64) {
	j.add(format.Record{Kind: format.KindDrop, Offset: offset})
}

// Namespace gives a namespace its number. Pages of it may follow.
func (j *Journal) Namespace(n Namespace) {
	j.namespaces.set(n)
	j.add(namespaceRecord(&n))
}

// DropNamespace forgets a namespace and all pages of it. Its number may be given anew.
func (j *Journal) DropNamespace(number uint32) {
	j.namespaces.remove(number)
	j.add(format.Record{Kind: format.KindDropNamespace, Namespace: number})
}

// Clear forgets all pages and keeps the namespaces. The Commit that follows begins a new log. What makes a clear durable, whatever becomes of a log, is
// the superblock: the caller writes Cleared into it before that Commit.
func (j *Journal) Clear() {
	j.anew, j.cleared = true, j.sequence.Load()
	j.pending = j.pending[:0]
	for _, n := range j.namespaces.list {
		j.add(namespaceRecord(&n))
	}
}

func (j *Journal) add(r format.Record) {
	if len(j.pending) >= PendingMax {
		j.fail(fmt.Errorf("more than %d records between two commits", PendingMax))
		return
	}
	j.pending = append(j.pending, r)
}

// Commit makes durable what was said since the last one. After an error the journal is broken, since nobody knows what the device kept: every
// later Commit fails the same way, until Renew writes another log or the volume is opened anew.
func (j *Journal) Commit() error {
	switch {
	case j.failed != nil:
		return j.failed
	case j.anew:
		if err := j.replace(slices.Values(j.pending)); err != nil {
			return err
		}
	case len(j.pending) > 0:
		if err := j.appendPending(); err != nil {
			return j.fail(err)
		}
	}
	j.anew, j.pending = false, j.pending[:0]
	return nil
}

// appendPending writes the pending records over zeros that the file holds already, so that its barrier is the device's alone: where a file grows, the
// barrier also waits for the file system's own journal, and for whatever others have in it. The room that is used up is followed by as much again. It is
// asked for before it is written: a file that grows by writes is given as much again by some file systems, beyond what the volume may occupy.
func (j *Journal) appendPending() error {
	end, room := j.records+uint64(len(j.pending)), j.room
	bytes := make([]byte, len(j.pending)*format.RecordBytes)
	for i := range j.pending {
		r := &j.pending[i]
		r.Generation, r.Number = j.generation, j.records+uint64(i)
		r.Encode(bytes[i*format.RecordBytes:])
	}
	buffers := [][]byte{bytes}
	if end > room {
		room = end + min(end, roomRecordsMax)
		buffers = append(buffers, zeros[:(room-end)*format.RecordBytes])
		if err := j.file.Allocate(logBytes(room)); err != nil {
			return err
		}
	}
	if err := j.file.WriteAt(buffers, logBytes(j.records)); err != nil {
		return err
	}
	for _, b := range buffers {
		j.written += int64(len(b))
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.records, j.room = end, room
	return nil
}

// Due says whether the log has grown so long, for so many pages alive, that a compaction pays.
func (j *Journal) Due(live int) bool {
	return j.records > 2*uint64(live+len(j.namespaces.list))+compactionSlack
}

// Compact makes a new log that says no more than the live namespaces and the given pages, in the order in which State shall return them: the oldest use
// first. They are the whole truth: what was said and not committed is forgotten. puts is iterated between writes. An error breaks the journal.
func (j *Journal) Compact(puts iter.Seq[Put]) error {
	if j.failed != nil {
		return j.failed
	}
	if err := j.replace(j.snapshot(puts)); err != nil {
		return err
	}
	j.anew, j.pending = false, j.pending[:0]
	return nil
}

// Renew is Compact for a journal that a failed Commit or Compact broke: a log in another file is written from memory alone, so that it does not matter
// what the device kept of the old one. The journal is whole again when it succeeds.
func (j *Journal) Renew(puts iter.Seq[Put]) error {
	j.failed = nil
	return j.Compact(puts)
}

// Cleared is the sequence of the last clear: no page up to it exists.
func (j *Journal) Cleared() uint64 { return j.cleared }

// Records is how many records the log holds.
func (j *Journal) Records() uint64 { return j.records }

// Bytes is the size of the log in bytes, its room included.
func (j *Journal) Bytes() int64 { return logBytes(j.room) }

// WrittenBytes is what was written into index logs since Open.
func (j *Journal) WrittenBytes() int64 { return j.written }

// Close closes the log. What was not committed is forgotten.
func (j *Journal) Close() error {
	j.fail(errors.New("the journal is closed"))
	return j.file.Close()
}

// fail breaks the journal for good; the first reason stays.
func (j *Journal) fail(err error) error {
	if j.failed == nil {
		j.failed = fmt.Errorf("index log of %s: %w", j.fs.Name(), err)
	}
	return j.failed
}

// logBytes is the size of a log of so many records.
func logBytes(records uint64) int64 {
	return format.LogHeaderBytes + int64(records)*format.RecordBytes
}

func namespaceRecord(n *Namespace) format.Record {
	return format.Record{Kind: format.KindNamespace, Namespace: n.Number, Key: n.Identity, Offset: n.Epoch, Bytes: n.PageBytes}
}
