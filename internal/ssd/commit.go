package ssd

import (
	"errors"
	"iter"

	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
)

const commitOpsMax = journal.PendingMax / 2 // ops of one commit; the other half is for pages and namespaces

// commit is the goroutine that makes written pages durable and visible, in groups: while one group's barriers run, the next is written.
func (v *volume) commit() {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	for !s.config.looks() && v.toCommit() {
		v.sweep()
		switch {
		case v.state == volumeReadOnly && v.clears > 0:
			v.clearReadOnly()
		case v.retryIsDue():
			v.resume()
		case v.on() && v.commitGroup() && v.journal.Due(int(v.index.Count(index.Sealed))):
			v.compact()
		}
	}
	v.awaitLook()
	switch {
	case v.on() && (!s.config.looks() || v.forgotten > 0):
		v.compact()
	case v.mayResume():
		v.resume()
	}
}

// awaitLook waits for the end of a store that only looks: its one commit is the last.
func (v *volume) awaitLook() {
	for v.store.config.looks() && v.readable() && !v.store.closing {
		v.await()
	}
}

// toCommit waits until there is something to commit; false when there never will be.
func (v *volume) toCommit() bool {
	for v.readable() {
		switch {
		case v.state == volumeReadOnly:
			if v.mustSweep || v.clears > 0 {
				return true
			}
			if v.store.closing || v.retryIsDue() {
				return !v.store.closing
			}
		case v.urgent || v.groupIsDue():
			return true
		case v.store.closing && v.waiting.len() == 0 && v.unrecorded == 0 && !v.filling && v.reading+v.checking == 0:
			return len(v.ops) > 0
		}
		v.awaited = v.awaited || v.store.closing
		v.await()
	}
	return false
}

// groupIsDue says whether the pages that were written are to be committed: when they are many or have waited long, since each commit costs barriers
// whatever it is for, or when no other page is about to join them. What a slow device writes keeps memory until its commit.
func (v *volume) groupIsDue() bool {
	if len(v.written) == 0 {
		return false
	}
	config := &v.store.config
	joining := v.writing > 0 || (v.filling || v.waiting.len() > 0) && v.reads[Demand].len() == 0 && !v.cramped
	return !joining || v.writtenBytes >= min(BatchBytes, config.HeldBytesMax/2) || len(v.written) >= groupPagesMax ||
		config.Now().Sub(v.writtenSince) >= groupWait
}

// group is what one commit makes durable.
type group struct {
	ops        []op
	namespaces []journal.Namespace
	writes     []*write
}

// take takes what has come up since the last commit. Pages whose namespace was dropped meanwhile end here, without a record.
func (v *volume) take() group {
	v.urgent = false
	n := min(len(v.ops), commitOpsMax)
	g := group{ops: v.ops[:n:n]}
	if v.ops = v.ops[n:]; len(v.ops) > 0 {
		v.urgent = true
	}
	written := v.written
	v.written, v.writtenBytes = nil, 0
	for _, w := range written {
		ns := w.life.namespace
		if w.life.dead {
			v.takeBack(w, ReasonDropped)
			continue
		}
		writeMachine.To(&w.state, writeCommitting)
		g.writes = append(g.writes, w)
		if ns.numbers[v.number] == 0 {
			v.lastNumber++
			ns.numbers[v.number] = v.lastNumber
			g.namespaces = append(g.namespaces, journal.Namespace{
				Number: v.lastNumber, Identity: ns.identity, Epoch: ns.epoch, PageBytes: ns.pageBytes,
			})
		}
	}
	return g
}

// commitGroup makes a group durable, then its pages visible and the space of victims free; false when that failed and the volume takes no more writes.
// Payload, barrier, record, barrier, visible: nothing else may stand in this order.
func (v *volume) commitGroup() bool {
	s := v.store
	g := v.take()
	begun := s.config.Now()
	err := v.logged(func() error { return v.record(&g) })
	s.counters.commits++
	s.counters.commitTime.observe(s.config.Now().Sub(begun))
	if err != nil {
		v.stopWrites("what was written could not be made durable", err)
	}
	for _, w := range g.writes {
		v.recorded(w, err == nil)
	}
	if err != nil {
		v.ops = append(g.ops, v.ops...)
		return false
	}
	v.settled(g.ops)
	return v.on()
}

// settled does what waited for ops to be durable.
func (v *volume) settled(ops []op) {
	if !v.readable() {
		return
	}
	for _, o := range ops {
		switch o.kind {
		case opFree:
			v.space.Free(o.offset, o.bytes)
			v.limbo -= o.bytes
		case opClear:
			v.clears--
		}
	}
	v.launch()
	v.changed.Broadcast()
}

// logged does I/O that writes the index log, off the mutex, and counts what was written and what the volume's files occupy after it.
func (v *volume) logged(io func() error) error {
	s := v.store
	before := v.journal.WrittenBytes()
	s.leave()
	disk, err := v.measured(io())
	s.mu.Lock()
	s.counters.deviceBytes += uint64(v.journal.WrittenBytes() - before)
	v.disk = disk
	return err
}

// record does the I/O of a commit.
func (v *volume) record(g *group) error {
	for _, n := range g.namespaces { // first, since their numbers are given out, whatever fails below
		v.journal.Namespace(n)
	}
	if len(g.writes) > 0 {
		if err := v.payload.Sync(); err != nil {
			return err
		}
	}
	for _, o := range g.ops {
		switch o.kind {
		case opDrop:
			v.journal.Drop(o.offset)
		case opDropNamespace:
			v.journal.DropNamespace(o.number)
		case opClear:
			v.journal.Clear()
			if err := v.keepCleared(); err != nil {
				return err
			}
		}
	}
	for _, w := range g.writes {
		v.journal.Put(journal.Put{
			Namespace: w.life.namespace.numbers[v.number], Group: w.Group, Key: w.Key, Offset: w.offset, Bytes: w.bytes,
			Digest: w.digest, Sequence: w.sequence,
		})
	}
	return v.journal.Commit()
}

// recorded ends a page whose record is durable, or is not known to be. One whose namespace was dropped meanwhile does not become visible; its space
// comes back with the commit that says so.
func (v *volume) recorded(w *write, durable bool) {
	switch {
	case !durable || !v.readable():
		v.takeBack(w, v.refusal())
	case w.life.dead:
		v.settle(w)
		v.note(op{kind: opFree, offset: w.offset, bytes: format.ExtentBytes(w.bytes)})
		v.endWrite(w, ReasonDropped)
	default:
		v.settle(w)
		v.show(w.life, w.Group, &w.Key, w.offset, index.Probationary, w.digest, w.sequence)
		v.endWrite(w, "")
	}
}

// measured adds to the end of some I/O what the volume's files occupy.
func (v *volume) measured(err error) (disk uint64, _ error) {
	payload, sizeErr := v.payload.AllocatedBytes()
	log := (uint64(v.journal.Bytes()) + format.Granule - 1) / format.Granule * format.Granule
	return uint64(payload) + log + format.SuperblockBytes, errors.Join(err, sizeErr)
}

// sweep retires the pages of namespaces that were dropped, some records a hold of the mutex.
func (v *volume) sweep() {
	if !v.mustSweep {
		return
	}
	v.mustSweep = false
	for from := uint32(0); from < v.index.Records() && v.readable(); from += sweepRecords {
		v.index.Scan(from, from+sweepRecords, func(p index.Page) bool {
			if p.State == index.Sealed && v.store.lives[p.Namespace].dead {
				v.retire(p, false)
			}
			return true
		})
		v.store.rest()
	}
}

// compact puts a snapshot in place of the index log.
func (v *volume) compact() {
	order := v.order()
	if err := v.logged(func() error { return v.journal.Compact(v.snapshot(order)) }); err != nil {
		v.stopWrites("the index log could not be compacted", err)
	}
}

// order lists the pages that can be read, the oldest use first in each class, some a hold of the mutex. What moves meanwhile is listed once; a page
// that found a place behind the walk comes last.
func (v *volume) order() []index.Handle {
	order := make([]index.Handle, 0, v.index.Count(index.Sealed))
	seen := make([]bool, v.index.Records())
	add := func(h index.Handle) {
		if !seen[h.Entry()] {
			seen[h.Entry()] = true
			order = append(order, h)
		}
	}
	for _, class := range index.Classes {
		h, ok := v.index.Oldest(class)
		for looked := 1; ok; looked++ {
			add(h)
			if looked%sweepRecords == 0 {
				v.store.rest()
			}
			newer, more := v.index.Newer(h)
			if _, alive := v.index.Page(h); !more && !alive {
				newer, more = v.index.Oldest(class)
			}
			h, ok = newer, more
		}
	}
	for from := uint32(0); from < v.index.Records(); from += sweepRecords {
		v.index.Scan(from, from+sweepRecords, func(p index.Page) bool {
			if p.State == index.Sealed {
				add(p.Handle)
			}
			return true
		})
		v.store.rest()
	}
	return order
}

// snapshot reads the pages of an order, some a hold of the mutex. A page that was dropped since is left out; one that is dropped later has its drop
// behind the snapshot. Those of a volume that is off meanwhile are in it: a restart may read them.
func (v *volume) snapshot(order []index.Handle) iter.Seq[journal.Put] {
	return func(yield func(journal.Put) bool) {
		puts := make([]journal.Put, 0, min(len(order), sweepRecords))
		for len(order) > 0 {
			n := min(len(order), sweepRecords)
			puts = v.puts(order[:n], puts[:0])
			order = order[n:]
			for _, p := range puts {
				if !yield(p) {
					return
				}
			}
		}
	}
}

func (v *volume) puts(handles []index.Handle, puts []journal.Put) []journal.Put {
	s := v.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range handles {
		p, ok := v.index.Page(h)
		if !ok || p.State != index.Sealed {
			continue
		}
		l := s.lives[p.Namespace]
		if l == nil || l.dead {
			continue
		}
		f := v.facts.get(h.Entry())
		puts = append(puts, journal.Put{
			Namespace: l.namespace.numbers[v.number], Group: p.Group, Key: p.Key, Offset: p.Location, Bytes: l.namespace.pageBytes,
			Digest: f.digest, Retained: p.Class == index.Retained, Sequence: f.sequence,
		})
	}
	return puts
}
