package cache

import (
	"math"
	"slices"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// hint is the prefix of a request that waits in an engine's queue, on its way from the tier into the pool. It charges what it brings from its start and
// holds what came until all of it came, or room for its own later reads would take it first. Then the pages are reclaimable and nobody's. Unlike a
// preparation it keeps its interest in every read until that ends, so that it drains under its own charge and permit (I3, I4).
type hint struct {
	charge
	ticket    uint64
	session   *session
	namespace *namespace
	request   string
	since     time.Time
	state     hintState
	keys      []wire.Key     // of the pages that it brings, in prefix order
	next      int            // first position that was neither read nor joined
	reads     int            // that it waits for
	held      []index.Handle // pages that hints have read
	told      bool           // the timeline says that it reads
}

// hintEnd is why a hint reads no further.
type hintEnd uint8

const (
	hintRead      hintEnd = iota // all of it came
	hintBroken                   // a page in the middle is gone, failed, or is written by an engine: no prefix goes on from there
	hintNoRoom                   // the pool has none
	hintDemanded                 // the query of its request came
	hintCancelled                // its client said so
	hintExpired                  // WarmExpiry
	hintDropped                  // its session, its namespace or all pages went
	hintEnds
)

var hintEndNames = [hintEnds]string{"read", "broken", "no_room", "demanded", "cancelled", "expired", "dropped"}

// startHint admits a hint and starts its first reads.
func (c *Cache) startHint(s *session, inst *instance, w Warm, keys []wire.Key) {
	h := &hint{
		charge: charge{instance: inst, phase: phaseWarming}, ticket: w.Ticket, session: s, namespace: inst.namespace, request: w.Request, since: c.now, keys: keys,
	}
	c.charge(&h.charge, uint64(len(keys))*inst.geometry.pageBytes)
	c.hints = append(c.hints, h)
	c.operations++
	s.hints++
	inst.preparations++
	c.advanceHint(h)
}

// advanceHints goes on with every hint, in the order in which they came: pages came, or room did. Queries went first.
func (c *Cache) advanceHints() {
	for _, h := range slices.Clone(c.hints) {
		c.advanceHint(h)
	}
}

// advanceHint starts the reads of a hint that may start now, and ends it when nothing is missing.
func (c *Cache) advanceHint(h *hint) {
	more := true
	for more && h.state == hintReading && h.next < len(h.keys) {
		more = c.bringNext(h)
	}
	if h.state == hintReading && h.reads == 0 && h.next == len(h.keys) {
		c.stopHint(h, hintRead)
	}
}

// bringNext passes one page that is there, joins its read or starts some. It says false when the hint must wait.
func (c *Cache) bringNext(h *hint) bool {
	page, state, ok := c.index.Find(h.namespace.handle, 0, (*index.Key)(&h.keys[h.next]))
	switch {
	case ok && state == index.Sealed: // somebody else brought it: looked at and not touched (I7)
		h.next++
		c.uncharge(&h.charge, h.namespace.geometry.pageBytes)
	case ok && c.joinable(page):
		c.wait(h, c.reads[page.Entry()])
	case ok:
		c.stopHint(h, hintBroken)
	default:
		return c.startHintReads(h)
	}
	return true
}

// wait makes a hint wait for a read of its next page.
func (c *Cache) wait(h *hint, r *read) {
	c.traceHintStart(h)
	r.hints = append(r.hints, h)
	h.reads++
	h.next++
}

// startHintReads reads as many pages as a batch, the tier and the pool allow.
func (c *Cache) startHintReads(h *hint) bool {
	n := c.hintRoom(h)
	if n <= 0 {
		return false
	}
	c.makeRoomNow(h.instance, n, math.MaxUint64)
	have := c.allocate(h.instance, n)
	if have == 0 {
		c.stopHint(h, hintNoRoom)
		return false
	}
	used, reading := 0, true
	for ; reading && used < have && !c.hasRecord(h.namespace, 0, &h.keys[h.next]); used++ { // a key that is named twice takes one place
		reading = c.startHintRead(h, used)
	}
	for i := used; i < have; i++ {
		c.giveBack(h.namespace, i)
	}
	return reading
}

// hintRoom is how many pages a hint may read now: one batch unfinished at most, and while anything is read the tier keeps room for a batch of a query.
func (c *Cache) hintRoom(h *hint) int {
	batch := int(max(1, c.config.ReadBatchBytes/h.namespace.geometry.pageBytes))
	queue := c.config.Tier.ReadRoom()
	if len(c.reads) > 0 {
		queue -= batch
	}
	most := min(batch-h.reads, queue, len(h.keys)-h.next, ReclaimBatchPages)
	n := min(1, most)
	for n < most && !c.hasRecord(h.namespace, 0, &h.keys[h.next+n]) {
		n++
	}
	return n
}

// startHintRead reads the next page into the ith place of scratch.locations. It says false, with the hint stopped there, when the tier has lost it.
func (c *Cache) startHintRead(h *hint, i int) bool {
	r := c.startReadOf(h.namespace, 0, &h.keys[h.next], i, readAs{index.Reclaimable, index.Warmed, ReadWarm})
	if r == nil {
		c.stopHint(h, hintBroken)
		return false
	}
	c.wait(h, r)
	return h.next < len(h.keys)
}

// cameFor ends a hint's wait for a page, which it holds while it reads on when a hint has started the read.
func (c *Cache) cameFor(h *hint, page index.Handle, ok, warmed bool) {
	h.reads--
	if ok && warmed && h.state == hintReading {
		c.index.Hold(page)
		h.held = append(h.held, page)
		return
	}
	c.uncharge(&h.charge, h.namespace.geometry.pageBytes)
	switch {
	case h.state == hintDraining && h.reads == 0:
		c.endHint(h)
	case h.state == hintReading && !ok:
		c.stopHint(h, hintBroken)
	}
}

// stopHint ends what a hint may start and lets go of what it holds, the head of the prefix last so that reclaim takes the tail first. Reads that run
// drain under its charge and permit.
func (c *Cache) stopHint(h *hint, why hintEnd) {
	hintMachine.To(&h.state, hintDraining)
	c.traceHintReady(h, why)
	c.counters.hintEnds[why]++
	c.uncharge(&h.charge, uint64(len(h.keys)-h.next+len(h.held))*h.namespace.geometry.pageBytes)
	for _, page := range slices.Backward(h.held) {
		c.index.Drop(page)
	}
	h.keys, h.held = h.keys[:h.next], nil
	if h.reads == 0 {
		c.endHint(h)
	}
}

// endHint returns the permit of a hint of which no read runs any more.
func (c *Cache) endHint(h *hint) {
	hintMachine.To(&h.state, hintEnded)
	c.setPhase(&h.charge, phaseEnded)
	c.hints = slices.DeleteFunc(c.hints, func(other *hint) bool { return other == h })
	c.operations--
	h.session.hints--
	h.instance.preparations--
	c.removeIfIdle(h.instance)
}

// stopHints stops every hint that which names.
func (c *Cache) stopHints(why hintEnd, which func(*hint) bool) {
	for _, h := range slices.Clone(c.hints) {
		if h.state == hintReading && which(h) {
			c.stopHint(h, why)
		}
	}
}

// expireHints stops those that nobody asked for in time.
func (c *Cache) expireHints() {
	c.stopHints(hintExpired, func(h *hint) bool { return c.now.Sub(h.since) >= WarmExpiry })
}

// demandEnds stops the hints of a request whose query comes.
func (c *Cache) demandEnds(inst *instance, request string) {
	c.stopHints(hintDemanded, func(h *hint) bool { return h.instance == inst && h.request == request })
}
