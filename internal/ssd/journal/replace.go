package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"iter"
	"slices"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

// writeBytes is how much of a new log is written at once.
const writeBytes = 1 << 20

// replace writes the records as a new log and gives it the log's name. Nothing of the new log counts before all of it is durable, and the
// old one counts until then: a crash at any moment leaves one of them whole under the name.
func (j *Journal) replace(records iter.Seq[format.Record]) error {
	if err := j.fs.Remove(format.IndexNewName); err != nil {
		return j.fail(err)
	}
	file, err := j.fs.Open(format.IndexNewName, vfs.Buffered)
	if err != nil {
		return j.fail(err)
	}
	generation := newGeneration()
	count, err := j.writeLog(file, generation, records)
	if err == nil {
		err = j.fs.Rename(format.IndexNewName, format.IndexName)
	}
	if err == nil {
		err = j.fs.SyncFolder()
	}
	if err != nil {
		return j.fail(errors.Join(err, file.Close(), j.fs.Remove(format.IndexNewName))) // a full disk gets back what was written
	}
	old := j.file
	j.file, j.generation, j.records, j.room = file, generation, count, count
	if old != nil {
		if err := old.Close(); err != nil {
			return j.fail(err)
		}
	}
	return nil
}

// writeLog writes a whole log and makes it durable.
func (j *Journal) writeLog(file vfs.File, generation uint64, records iter.Seq[format.Record]) (count uint64, err error) {
	if err := file.Allocate(format.LogHeaderBytes); err != nil { // as in appendPending
		return 0, err
	}
	buffer := make([]byte, 0, writeBytes)
	flush := func() error {
		at := logBytes(count) - int64(len(buffer))
		if err := file.Allocate(logBytes(count)); err != nil {
			return err
		}
		err := file.WriteAt([][]byte{buffer}, at)
		j.written += int64(len(buffer))
		buffer = buffer[:0]
		return err
	}
	for r := range records {
		r.Generation, r.Number = generation, count
		buffer = buffer[:len(buffer)+format.RecordBytes]
		r.Encode(buffer[len(buffer)-format.RecordBytes:])
		count++
		if len(buffer) == writeBytes {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	if len(buffer) > 0 {
		if err := flush(); err != nil {
			return 0, err
		}
	}
	header := format.LogHeader{Volume: j.volume, Generation: generation, Snapshot: count, Sequence: j.sequence.Load()}
	block := make([]byte, format.LogHeaderBytes)
	header.Encode(block)
	j.written += int64(len(block))
	if err := file.WriteAt([][]byte{block}, 0); err != nil {
		return 0, err
	}
	return count, file.Sync()
}

// newGeneration names a log. It is random, so that no record of another log, left on blocks that the file system hands out again, is taken for one
// of this log.
func newGeneration() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:])
		if generation := binary.LittleEndian.Uint64(b[:]); generation != 0 {
			return generation
		}
	}
}

// snapshot is the records of everything alive: the namespaces, then their pages.
func (j *Journal) snapshot(puts iter.Seq[Put]) iter.Seq[format.Record] {
	return func(yield func(format.Record) bool) {
		for i := range j.namespaces.list {
			if !yield(namespaceRecord(&j.namespaces.list[i])) {
				return
			}
		}
		for p := range puts {
			if r, ok := j.record(&p); ok && !yield(r) {
				return
			}
		}
	}
}

// table is the namespaces that have a number, in the order in which they got it.
type table struct {
	list []Namespace
	tags map[uint32]uint64 // by number
}

func newTable(namespaces []Namespace) table {
	t := table{tags: map[uint32]uint64{}}
	for _, n := range namespaces {
		t.set(n)
	}
	return t
}

func (t *table) set(n Namespace) {
	t.remove(n.Number)
	t.list = append(t.list, n)
	t.tags[n.Number] = n.tag()
}

func (t *table) remove(number uint32) {
	if _, known := t.tags[number]; !known {
		return
	}
	t.list = slices.DeleteFunc(t.list, func(n Namespace) bool { return n.Number == number })
	delete(t.tags, number)
}

func (n *Namespace) tag() uint64 { return format.NamespaceTag(&n.Identity, n.Epoch, n.PageBytes) }
