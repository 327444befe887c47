package journal

import (
	"bytes"
	"errors"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

// readBytes is how much of a log is read at once.
const readBytes = 4 << 20

// replay applies the records of a log, one after the other, and counts what does not count.
type replay struct {
	header   format.LogHeader
	limits   Limits
	problems map[string]uint64
	sequence uint64 // the highest seen

	spaces  []space
	current map[uint32]uint32    // number of a namespace to its place in spaces
	numbers map[Namespace]uint32 // the same by namespaces whose Number is zero

	puts     []Put             // those that something ended have zero Bytes
	owners   []uint32          // place in spaces, by place in puts
	byOffset map[uint64]uint32 // place in puts
	ended    int               // of puts
	used     uint64            // slots up to the last one that is not zeros: the others are room
	bad      uint64            // slots without a record since the last record
	rotten   bool              // one of these is not zeros
}

// space is a namespace from its record until the one that drops it.
type space struct {
	Namespace
	tag     uint64
	dropped bool
}

func newReplay(header format.LogHeader, limits Limits, problems map[string]uint64) *replay {
	return &replay{
		header: header, limits: limits, problems: problems, sequence: header.Sequence,
		current: map[uint32]uint32{}, numbers: map[Namespace]uint32{},
	}
}

// read applies every slot of the log and returns how many there are. It goes on behind a slot that holds no record, since what was dropped behind it must
// stay dropped; whatever such a slot held is a miss. A commit that a crash cut short may leave records behind a hole of zeros: their pages were durable
// before. Zeros with nothing behind them are the room that the log was given ahead.
func (r *replay) read(file vfs.File, size int64) (slots uint64, err error) {
	slots = uint64(size-format.LogHeaderBytes) / format.RecordBytes
	r.reserve(min(slots, r.header.Snapshot))
	buffer := make([]byte, min(readBytes, slots*format.RecordBytes))
	for number := uint64(0); number < slots; {
		chunk := buffer[:min(uint64(len(buffer)), (slots-number)*format.RecordBytes)]
		if err := file.ReadAt([][]byte{chunk}, logBytes(number)); err != nil {
			return 0, err
		}
		for ; len(chunk) > 0; chunk = chunk[format.RecordBytes:] {
			if err := r.slot(chunk[:format.RecordBytes], number); err != nil {
				return 0, err
			}
			number++
		}
	}
	if logBytes(slots) != size || r.used < r.header.Snapshot || r.rotten {
		r.problems[Torn]++
	}
	return slots, nil
}

func (r *replay) reserve(puts uint64) {
	r.puts, r.owners = make([]Put, 0, puts), make([]uint32, 0, puts)
	r.byOffset = make(map[uint64]uint32, puts)
}

// slot applies what stands in one place of the log.
func (r *replay) slot(b []byte, number uint64) error {
	var record format.Record
	err := record.Decode(b)
	switch {
	case errors.Is(err, format.ErrVersion):
		return err
	case err != nil:
		r.bad++
		if !bytes.Equal(b, zeros[:len(b)]) {
			r.rotten, r.used = true, number+1
		}
		return nil
	}
	r.used = number + 1
	if record.Generation != r.header.Generation || record.Number != number {
		r.problems[Stale]++
		return nil
	}
	if r.bad > 0 {
		r.problems[Damaged] += r.bad
		r.bad, r.rotten = 0, false
	}
	switch record.Kind {
	case format.KindPut:
		r.put(&record)
	case format.KindDrop:
		if i, found := r.byOffset[record.Offset]; found {
			r.end(i)
		}
	case format.KindNamespace:
		r.namespace(Namespace{Number: record.Namespace, Identity: record.Key, Epoch: record.Offset, PageBytes: record.Bytes})
	case format.KindDropNamespace:
		r.dropSpace(record.Namespace)
	}
	return nil
}

// namespace gives a namespace its number, and ends what stood for either: one that comes under a second number was dropped under its first one, by a record
// that was lost.
func (r *replay) namespace(n Namespace) {
	r.dropSpace(n.Number)
	unnumbered := n
	unnumbered.Number = 0
	if number, known := r.numbers[unnumbered]; known {
		r.dropSpace(number)
	}
	r.numbers[unnumbered] = n.Number
	r.current[n.Number] = uint32(len(r.spaces))
	r.spaces = append(r.spaces, space{Namespace: n, tag: n.tag()})
}

func (r *replay) put(record *format.Record) {
	r.sequence = max(r.sequence, record.Sequence)
	owner, known := r.current[record.Namespace]
	switch {
	case record.Sequence <= r.limits.Cleared:
		r.problems[Stale]++
		return
	case !known || r.spaces[owner].tag != record.Tag:
		r.problems[UnknownNamespace]++
		return
	case !format.Fits(record.Offset, record.Bytes, r.limits.PayloadBytes):
		r.problems[OutOfBounds]++
		return
	}
	if i, found := r.byOffset[record.Offset]; found {
		if !r.spaces[r.owners[i]].dropped {
			r.problems[Overlapping]++
		}
		r.end(i)
	}
	if len(r.puts) == cap(r.puts) && r.ended > len(r.puts)/3 {
		r.forget()
		clear(r.byOffset)
		for i := range r.puts {
			r.byOffset[r.puts[i].Offset] = uint32(i)
		}
	}
	r.byOffset[record.Offset] = uint32(len(r.puts))
	r.owners = append(r.owners, owner)
	r.puts = append(r.puts, Put{
		Namespace: record.Namespace, Group: record.Group, Key: record.Key, Offset: record.Offset, Bytes: record.Bytes,
		Digest: record.Digest, Retained: record.Retained, Sequence: record.Sequence,
	})
}

// end takes a page out of the state.
func (r *replay) end(i uint32) {
	p := &r.puts[i]
	delete(r.byOffset, p.Offset)
	p.Bytes = 0
	r.ended++
}

// forget takes out the pages that ended, so that memory follows what is alive and not the length of the log. byOffset is wrong after it.
func (r *replay) forget() {
	kept := 0
	for i := range r.puts {
		if r.puts[i].Bytes > 0 && !r.spaces[r.owners[i]].dropped {
			r.puts[kept], r.owners[kept] = r.puts[i], r.owners[i]
			kept++
		}
	}
	r.puts, r.owners, r.ended = r.puts[:kept], r.owners[:kept], 0
}

func (r *replay) dropSpace(number uint32) {
	if i, known := r.current[number]; known {
		r.spaces[i].dropped = true
		delete(r.current, number)
		dropped := r.spaces[i].Namespace
		dropped.Number = 0
		delete(r.numbers, dropped)
	}
}

// finish leaves in the state what nothing ended.
func (r *replay) finish(state *State) {
	for _, s := range r.spaces {
		if !s.dropped {
			state.Namespaces = append(state.Namespaces, s.Namespace)
		}
	}
	r.forget()
	state.Puts = sound(r.puts, r.problems)
}
