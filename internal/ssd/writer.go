package ssd

import (
	"errors"
	"io"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"orbitkv/internal/blockio"
	"orbitkv/internal/ssd/format"
)

// Write queues a page to be written; false when it is not taken, with the reason counted. A full queue takes no page: it is computed again one day.
func (s *Store) Write(w Write) bool {
	s.mu.Lock()
	defer s.leave()
	bytes := bytesOf(w.Parts)
	v, reason := s.admit(&w, bytes)
	if reason != "" {
		s.counters.writeSkips[reason]++
		return false
	}
	ns := s.namespaces[w.Namespace]
	one := &write{Write: w, volume: v, life: ns.life, bytes: bytes, asked: s.config.Now()}
	s.writes[one.key()] = one
	s.held += bytes
	s.outstanding++
	ns.life.writes++
	v.waiting.push(one)
	v.waitingBytes += bytes
	if v.waiting.len() == 1 || v.groupIsDue() {
		v.changed.Broadcast()
	}
	return true
}

// admit chooses the volume that a page will be written to, or says why there is none.
func (s *Store) admit(w *Write, bytes uint64) (*volume, string) {
	ns := s.namespaces[w.Namespace]
	switch {
	case s.closing || s.config.looks():
		return nil, SkipOff
	case ns == nil || bytes != ns.pageBytes || bytes == 0 || bytes > PageBytesMax || bytes%format.Granule != 0:
		return nil, SkipUnknown
	case s.writes[pageKey{ns.life.number, w.Group, w.Key}] != nil:
		return nil, SkipPending
	}
	if _, _, found := s.find(ns, w.Group, &w.Key); found {
		return nil, SkipResident
	}
	if s.held > 0 && s.held+bytes > s.config.HeldBytesMax {
		s.counters.queueFull++
		return nil, SkipFull
	}
	return s.choose(bytes)
}

// choose takes the volume with the largest share of free space, the extents of what waits to be written to it counted as gone. So volumes fill evenly, and a slow one
// gets less once all are full.
func (s *Store) choose(bytes uint64) (best *volume, reason string) {
	reason = SkipOff
	var bestShare float64
	for _, v := range s.volumes {
		if !v.on() {
			if best == nil && reason == SkipOff && v.readable() {
				reason = SkipReadOnly
			}
			continue
		}
		if format.ExtentBytes(bytes) > v.space.Bytes()-format.ScratchBytes {
			reason = SkipTooLarge
			continue
		}
		if queued := v.waitingBytes + v.readyBytes; queued > 0 && queued+bytes > s.config.WriteQueueBytes/uint64(len(s.volumes)) {
			if best == nil {
				reason = SkipFull
			}
			continue
		}
		gone := v.waitingBytes + uint64(v.waiting.len())*format.PageHeaderBytes
		share := (float64(v.space.FreeBytes()+v.limbo) - float64(gone)) / float64(v.space.Bytes())
		if best == nil || share > bestShare {
			best, bestShare, reason = v, share, ""
		}
	}
	if reason == SkipFull {
		s.counters.queueFull++
	}
	return best, reason
}

func (w *write) key() pageKey { return pageKey{w.life.number, w.Group, w.Key} }

// fill is the goroutine that gives pages their digest and their place, some ahead of the device: what ends a transfer then begins the next one without
// waiting for this goroutine.
func (v *volume) fill() {
	s := v.store
	hasher := xxh3.New()
	s.mu.Lock()
	defer s.leave()
	for {
		for v.waiting.len() == 0 {
			if !v.readable() || s.closing {
				return
			}
			v.await()
		}
		w := v.waiting.pop()
		v.waitingBytes -= w.bytes
		writeMachine.To(&w.state, writePreparing)
		v.filling = true
		s.leave()
		w.digest = digestOf(hasher, s.memory(w.Parts))
		s.mu.Lock()
		if v.place(w) {
			v.ready.push(w)
			v.readyBytes += w.bytes
			v.launch()
		}
		v.filling = false
		v.stir()
		s.rest()
	}
}

// place waits until a page more may be ready for the device and finds space for it; false when the page ended instead.
func (v *volume) place(w *write) bool {
	extent := format.ExtentBytes(w.bytes)
	effort := reclaimEffort * extent
	for {
		if reason := v.refuses(w); reason != "" {
			v.endWrite(w, reason)
			return false
		}
		if cramped := !v.roomFor(w); cramped || !v.mayBeReady(w) {
			v.ahead, v.cramped = !cramped, cramped
			v.stir() // no page joins those that were written until there is room
			v.await()
			v.ahead, v.cramped = false, false
			continue
		}
		if offset, ok := v.space.Alloc(extent); ok && (!v.pagesFull() || v.evict() > 0) {
			w.offset = offset
			v.unrecorded++
			v.unrecordedBytes += w.bytes
			v.evictAhead()
			return true
		} else if ok {
			v.space.Free(offset, extent)
		}
		if v.limbo > 0 {
			v.hurry() // the space of victims comes back with the next commit
			v.await()
			continue
		}
		evicted := v.makeRoom(min(extent, effort))
		if evicted == 0 {
			v.endWrite(w, ReasonNoSpace)
			return false
		}
		effort -= min(effort, evicted)
	}
}

// makeRoom evicts until so many bytes are on their way to be free, and returns them. It gives the mutex up between batches of victims.
func (v *volume) makeRoom(want uint64) (evicted uint64) {
	for pages := 1; evicted < want && v.on(); pages++ {
		bytes := v.evict()
		if bytes == 0 {
			break
		}
		if evicted += bytes; pages%evictionsMax == 0 {
			v.store.rest()
		}
	}
	return evicted
}

// refuses says why a page is not to be written any more.
func (v *volume) refuses(w *write) string {
	switch {
	case !v.on():
		return v.refusal()
	case w.life.dead:
		return ReasonDropped
	case v.store.drained:
		return ReasonClosed
	}
	return ""
}

// refusal is the reason for which a volume that is not on takes no page.
func (v *volume) refusal() string {
	if v.readable() {
		return ReasonReadOnly
	}
	return ReasonOff
}

// mayBeReady says whether a page more may wait for the device with its place: few do, and one at least may, however large.
func (v *volume) mayBeReady(w *write) bool {
	return v.ready.len() == 0 || v.ready.len() < readyPagesMax && v.readyBytes+w.bytes <= readyBytesMax
}

// launch begins the writes that are ready while the device may have more, and ends those that are not to be written any more.
func (v *volume) launch() {
	for v.ready.len() > 0 {
		if reason := v.refuses(v.ready.at(0)); reason != "" {
			v.takeBack(v.nextReady(), reason)
		} else if v.mayWrite() {
			v.submit(v.nextReady())
		} else {
			break
		}
	}
	if v.ahead && v.ready.len() <= readyPagesMax/2 {
		v.changed.Broadcast()
	}
}

func (v *volume) nextReady() *write {
	w := v.ready.pop()
	v.readyBytes -= w.bytes
	return w
}

// mayWrite says whether the device may write a page more: no demanded read waits, and few enough are being written. While the index log was not told of a
// clear, no page begins: those that began before it never count, by their sequence.
func (v *volume) mayWrite() bool {
	return v.reads[Demand].len() == 0 && v.writing < v.store.config.WriteInflight && v.clears == 0
}

// stir wakes the goroutine that commits when there is something for it to do: a wake for each page would cost as much processor time as a small page does.
func (v *volume) stir() {
	if v.groupIsDue() || v.store.closing {
		v.changed.Broadcast()
	}
}

// roomFor says whether one page more may wait for its record. One that is larger than the bound waits alone.
func (v *volume) roomFor(w *write) bool {
	return v.unrecorded == 0 || v.unrecorded < 2*groupPagesMax && v.unrecordedBytes+w.bytes <= 2*BatchBytes
}

// submit begins the transfer of a page and of the header block behind it.
func (v *volume) submit(w *write) {
	s := v.store
	writeMachine.To(&w.state, writeWriting)
	w.sequence = v.journal.NextSequence()
	w.header = v.headers[len(v.headers)-1]
	v.headers = v.headers[:len(v.headers)-1]
	ns := w.life.namespace
	header := format.PageHeader{
		Volume: v.id, Identity: ns.identity, Epoch: ns.epoch, PageBytes: ns.pageBytes, Key: w.Key, Group: w.Group, Offset: w.offset,
		Bytes: w.bytes, Digest: w.digest, Sequence: w.sequence,
	}
	header.Encode(w.header)
	v.writing++
	s.submissions = append(s.submissions, submission{v.engine, &blockio.Transfer{
		File: v.payload, Write: true, Offset: int64(w.offset), Buffers: append(s.memory(w.Parts), w.header), Done: func(err error) { v.wrote(w, err) },
	}})
}

// wrote is the end of a page's transfer, on a goroutine of the engine. A page that failed ends here: it was never visible and has no record, so its
// space may be used at once (I2, I9).
func (v *volume) wrote(w *write, err error) {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	v.writing--
	v.headers = append(v.headers, w.header)
	w.header = nil
	s.counters.deviceBytes += format.ExtentBytes(w.bytes)
	v.transferred(writes, err)
	switch {
	case err != nil:
		v.warn("a page could not be written to the SSD cache: it is a miss", "offset", w.offset, "error", err)
		v.takeBack(w, writeReason(err))
	case !v.on():
		v.takeBack(w, v.refusal())
	default:
		writeMachine.To(&w.state, writeWritten)
		if len(v.written) == 0 {
			v.writtenSince = s.config.Now()
		}
		v.written = append(v.written, w)
		v.writtenBytes += w.bytes
	}
	v.launch()
	v.stir()
}

func writeReason(err error) string {
	switch {
	case noSpace(err):
		return ReasonNoSpace
	case errors.Is(err, io.ErrShortWrite):
		return ReasonShort
	}
	return ReasonIO
}

// noSpace says whether an error is that of a file system that is full, or of a quota.
func noSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// takeBack ends a page that has a place and no record.
func (v *volume) takeBack(w *write, reason string) {
	v.space.Free(w.offset, format.ExtentBytes(w.bytes))
	v.settle(w)
	v.endWrite(w, reason)
	v.changed.Broadcast() // there is room, or a volume that is full may be tried again
}

// settle takes a page off those that wait for their record.
func (v *volume) settle(w *write) {
	v.unrecorded--
	v.unrecordedBytes -= w.bytes
}

// endWrite ends a page's write and calls its Done.
func (v *volume) endWrite(w *write, reason string) {
	s := v.store
	writeMachine.To(&w.state, writeEnded)
	delete(s.writes, w.key())
	s.held -= w.bytes
	w.life.writes--
	s.forgetLife(w.life)
	if reason == "" {
		s.counters.writePages++
		s.counters.writeBytes += w.bytes
		s.counters.writeDuration.observe(s.config.Now().Sub(w.asked))
	} else {
		s.counters.writeFailures[reason]++
	}
	result := WriteResult{OK: reason == "", Digest: w.digest, Reason: reason}
	s.ends = append(s.ends, func() { w.Done(result) })
}
