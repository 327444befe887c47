package ssd

import (
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/zeebo/xxh3"

	"orbitkv/internal/blockio"
)

// Read begins to read a page into memory, or queues it; false when it cannot be read, or when no more can wait: nothing happened then. A read of
// priority Demand makes the page one that was asked for, see Demanded.
func (s *Store) Read(r Read) bool {
	s.mu.Lock()
	defer s.leave()
	ns := s.namespaces[r.Namespace]
	v, h, found := s.find(ns, r.Group, &r.Key)
	bytes := bytesOf(r.Parts)
	if !found || s.closing || s.config.looks() || bytes != ns.pageBytes || r.Priority >= priorities {
		return false
	}
	if s.readQueued > 0 && s.readQueued+bytes > s.config.ReadQueueBytes {
		s.counters.readRefused++
		return false
	}
	if r.Priority == Demand {
		s.counters.demanded++
		v.retain(h)
	}
	v.pin(h)
	one := &read{
		Read: r, volume: v, life: ns.life, page: h, offset: v.index.Location(h), bytes: bytes, digest: v.facts.get(h.Entry()).digest,
		asked: s.config.Now(),
	}
	s.outstanding++
	s.readQueued += bytes
	v.reads[r.Priority].push(one)
	v.dispatch()
	return true
}

// Hasten makes a read that waits one of priority Demand, and its page one that was asked for: somebody waits for what was read ahead. A read that has begun
// goes on as it is.
func (s *Store) Hasten(namespace uint32, group uint16, key *Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, h, found := s.find(s.namespaces[namespace], group, key)
	if !found {
		return
	}
	s.counters.demanded++
	v.retain(h)
	for _, p := range []Priority{Prepare, Warm} {
		for i := range v.reads[p].len() {
			if v.reads[p].at(i).page == h {
				r := v.reads[p].take(i)
				r.Priority = Demand
				v.reads[Demand].push(r)
				return
			}
		}
	}
}

// ReadRoom is how many more pages Read can queue, one at least while nothing waits. Pages are counted as the largest that a namespace has.
func (s *Store) ReadRoom() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := (s.config.ReadQueueBytes - min(s.readQueued, s.config.ReadQueueBytes)) / max(s.largestPage, 1)
	if s.readQueued == 0 {
		room = max(room, 1)
	}
	return int(room)
}

// dispatch begins reads while the device may have more, those of the first priority first. Reads whose digest is being computed count as well, so that a
// slow processor bounds them too.
func (v *volume) dispatch() {
	most := v.store.config.ReadInflight
	for v.readable() && v.reading < most && v.reading+v.checking < 2*most {
		r := v.nextRead()
		if r == nil {
			break
		}
		v.begin(r)
	}
	v.launch()
	if v.awaited && v.reads[Demand].len() == 0 {
		v.awaited = false
		v.changed.Broadcast()
	}
}

// nextRead takes the first read off the queues, nil when all are empty. One whose page was dropped while it waited ends here.
func (v *volume) nextRead() *read {
	for p := range v.reads {
		for v.reads[p].len() > 0 {
			r := v.reads[p].pop()
			v.store.readQueued -= r.bytes
			if !r.life.dead {
				return r
			}
			v.endRead(r, ReasonDropped)
		}
	}
	return nil
}

func (v *volume) begin(r *read) {
	readMachine.To(&r.state, readReading)
	v.reading++
	r.begun = v.store.config.Now()
	r.among = v.rate.begin(r.begun, r.bytes)
	v.running = append(v.running, r)
	v.store.submissions = append(v.store.submissions, submission{v.engine, &blockio.Transfer{
		File: v.payload, Offset: int64(r.offset), Buffers: v.store.memory(r.Parts), Done: func(err error) { v.arrived(r, err) },
	}})
}

// memory is the bytes of a page's parts.
func (s *Store) memory(parts []Part) [][]byte {
	buffers := make([][]byte, len(parts), len(parts)+1)
	for i, p := range parts {
		buffers[i] = s.config.Memory(p.Location, p.Bytes)
	}
	return buffers
}

// arrived is the end of a read's transfer, on a goroutine of the engine. What is bounded by dispatch never waits for room in checks.
func (v *volume) arrived(r *read, err error) {
	s := v.store
	s.mu.Lock()
	readMachine.To(&r.state, readChecking)
	r.failure = err
	v.reading--
	v.running = slices.DeleteFunc(v.running, func(other *read) bool { return other == r })
	v.rate.end(s.config.Now(), r.bytes, err == nil)
	v.checking++
	v.transferred(reads, err)
	v.dispatch()
	s.leave()
	s.checks <- r
}

// check compares what was read with its digest.
func (s *Store) check() {
	hasher := xxh3.New()
	for r := range s.checks {
		var result ReadResult
		switch {
		case errors.Is(r.failure, io.ErrUnexpectedEOF):
			result.Reason = ReasonShort
		case r.failure != nil:
			result.Reason = ReasonIO
		default:
			if result.Digest = digestOf(hasher, s.memory(r.Parts)); result.Digest != r.digest {
				result.Reason = ReasonDigest
			}
		}
		r.volume.checked(r, &result)
		s.told(func() { r.Done(result) })
	}
}

// checked ends a read. A page whose bytes are not there, or are others than were written, is dropped at once.
func (v *volume) checked(r *read, result *ReadResult) {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	readMachine.To(&r.state, readEnded)
	v.checking--
	if result.Reason != "" {
		s.counters.damaged[FoundByRead]++
		v.discard(r.page, result.Reason)
		told := []any{"offset", r.offset, "reason", result.Reason}
		if r.failure != nil { // none where the device gave other bytes
			told = append(told, "error", r.failure)
		}
		v.warn("a page of the SSD cache could not be read and was dropped: it is computed again", told...)
	} else if r.life.dead {
		result.Reason = ReasonDropped
	}
	v.unpin(r.page)
	if result.OK = result.Reason == ""; result.OK {
		s.counters.readPages++
		s.counters.readBytes += r.bytes
		s.counters.readDuration.observe(s.config.Now().Sub(r.asked))
	} else {
		s.counters.readFailures[result.Reason]++
	}
	v.dispatch()
}

// hangs says whether the device has not answered a read for so long that nothing is expected of it. What was submitted stays submitted (I3).
func (v *volume) hangs() bool {
	return len(v.running) > 0 && v.store.config.Now().Sub(v.running[0].begun) >= hangsAfter
}

// checkHanging gives up the reads that wait behind a device that hangs, and tells of its hanging once, and of its end.
func (v *volume) checkHanging() {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	if hangs := v.readable() && v.hangs(); hangs != v.hung {
		v.hung = hangs
		if hangs {
			s.say(slog.LevelWarn, "the device of the SSD cache does not answer: its pages are misses until it does", "volume", v.name, "after", hangsAfter)
		} else {
			s.say(slog.LevelInfo, "the device of the SSD cache answers again", "volume", v.name)
		}
	}
	if !v.hung {
		return
	}
	v.refuseReads(ReasonHangs)
	v.changed.Broadcast() // whoever gave way to them
}

// endRead ends a read that did not begin.
func (v *volume) endRead(r *read, reason string) {
	readMachine.To(&r.state, readEnded)
	v.unpin(r.page)
	v.store.counters.readFailures[reason]++
	v.store.ends = append(v.store.ends, func() { r.Done(ReadResult{Reason: reason}) })
}

func digestOf(hasher *xxh3.Hasher, buffers [][]byte) Digest {
	hasher.Reset()
	for _, b := range buffers {
		hasher.Write(b)
	}
	return hasher.Sum128().Bytes()
}
