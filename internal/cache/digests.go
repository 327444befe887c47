package cache

import (
	"encoding/binary"

	"orbitkv/internal/index"
)

const (
	digestChunk = 1 << 10 // records whose digests are allocated together
	writersMax  = 1 << 12 // writers that are remembered
)

// digests is what is known of the bytes of resident pages, by record: half of their digest, which is enough to see damage, and who wrote them. It
// exists where the pool is scrubbed alone: 10 bytes a page.
type digests struct {
	chunks  []*digestPart
	writers [writersMax]Writer // a ring: a number's place is its remainder
	made    uint16             // number of the newest writer; zero is none, also after its 65,535 successors
}

type digestPart struct {
	sums    [digestChunk]uint64 // zero is unknown
	writers [digestChunk]uint16
}

// Writer is who wrote a page, for people: an instance and the processes of the ranks that store slices.
type Writer struct {
	Instance string
	Ranks    []WriterRank
	number   uint16
}

// WriterRank is one rank of a writer.
type WriterRank struct {
	Rank    uint16
	PID     int // zero when the rank was vacant
	Command string
}

func (d Digest) half() uint64 { return binary.LittleEndian.Uint64(d[:]) }

// at returns where the facts of a record are, made when they are not.
func (d *digests) at(h index.Handle) (part *digestPart, i uint32) {
	chunk := int(h.Entry() / digestChunk)
	for len(d.chunks) <= chunk {
		d.chunks = append(d.chunks, new(digestPart))
	}
	return d.chunks[chunk], h.Entry() % digestChunk
}

// forget clears the facts of a record that becomes another page's.
func (d *digests) forget(h index.Handle) {
	if d == nil || int(h.Entry()/digestChunk) >= len(d.chunks) {
		return
	}
	part, i := d.at(h)
	part.sums[i], part.writers[i] = 0, 0
}

// writer returns who wrote a page, when that is still known.
func (d *digests) writer(h index.Handle) Writer {
	part, i := d.at(h)
	if w := d.writers[part.writers[i]%writersMax]; w.number == part.writers[i] {
		return w
	}
	return Writer{}
}

// bytes is the memory of the facts.
func (d *digests) bytes() uint64 {
	const partBytes = digestChunk * 10
	if d == nil {
		return 0
	}
	return uint64(len(d.chunks)) * partBytes
}

// newDigests returns the table that scrubbing needs, nil for none.
func newDigests(config Config) *digests {
	if !config.Scrub {
		return nil
	}
	return &digests{}
}

// wrote remembers who wrote a page that is sealed now.
func (c *Cache) wrote(r *reservation, h index.Handle) {
	if c.digests == nil {
		return
	}
	part, i := c.digests.at(h)
	part.writers[i] = c.writerOf(r.instance)
}

// writerOf returns the number of an instance's ranks as they are now.
func (c *Cache) writerOf(inst *instance) uint16 {
	d := c.digests
	if w := &d.writers[inst.writer%writersMax]; inst.writer != 0 && w.number == inst.writer {
		return inst.writer
	}
	if d.made++; d.made == 0 {
		d.made++
	}
	w := Writer{Instance: inst.id, number: d.made}
	for _, rank := range inst.geometry.storage {
		slot := &inst.ranks[rank]
		facts := WriterRank{Rank: slot.number}
		if slot.process != nil {
			facts.PID, facts.Command = slot.process.facts.PID, slot.process.facts.Command
		}
		w.Ranks = append(w.Ranks, facts)
	}
	d.writers[d.made%writersMax] = w
	inst.writer = d.made
	return inst.writer
}
