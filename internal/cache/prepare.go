package cache

import (
	"math"
	"slices"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// StopPolicy says when a query that reads from the tier takes what is there.
type StopPolicy uint8

// The policies.
const (
	WaitComplete StopPolicy = iota // when every page that can be read is there
	BestEffort                     // after one batch of reads
	Timeout                        // when Config.ReadTimeout has passed since it was asked, or every page is there
)

// preparation is the prefix of one query on its way from the tier into the pool. It charges the whole prefix from its start. What it has to read
// it reads in order, at most Config.ReadBatchBytes at a time, so that a stop leaves little to wait for. When the query ends before its reads do, the
// preparation lives on without it: they drain under its charge and, where the query was given up, under its permit (I3, I4).
type preparation struct {
	charge
	op      *operation // nil when the query is ready or was given up
	slots   []slot     // by position in the prefix
	next    int        // first position that is neither held nor being read
	reads   int        // positions that are being read
	awaited int        // positions that were ever read
	since   time.Time
	old     int      // reads that run under its charge and whose pages it gave up
	owing   bool     // it keeps the permit of its query
	owes    *session // whose table the permit counts in, if any
}

// slot is one page of a prefix: held by a reference, or being read, or neither yet.
type slot struct {
	page index.Handle // zero until it is held
	read *read        // nil when it is not being read
	slow bool         // it came from the tier
}

func (s *slot) held() bool { return !s.page.Zero() }

// extent says how many leading keys of a query can be in the pool, now or after reads: every page is resident, being read or stored.
func (c *Cache) extent(op *operation, keys []wire.Key, resident int) int {
	for n := resident; n < len(keys); n++ {
		if _, ok := c.reachable(op.instance, op.namespace, op.group, &keys[n]); !ok {
			return n
		}
	}
	return len(keys)
}

// reachable says whether an instance can have a page in the pool, now or after a read, and whether it is there now. It looks and moves nothing (I7).
func (c *Cache) reachable(inst *instance, ns *namespace, group uint16, key *wire.Key) (resident, ok bool) {
	h, state, known := c.index.Find(ns.handle, group, (*index.Key)(key))
	if !known {
		return false, c.config.Tier.Stored(ns.stored, group, key)
	}
	resident = state == index.Sealed
	return resident, (resident || c.joinable(h)) && c.usable(h, &inst.usable)
}

// joinable says whether a page is being read by somebody whose read is worth waiting for.
func (c *Cache) joinable(h index.Handle) bool {
	r := c.reads[h.Entry()]
	return r != nil && !c.hangs(r)
}

// prepare begins to bring pages of a query into the pool. The resident ones are held at once (I1): the leading ones are known already.
func (c *Cache) prepare(op *operation, leading []index.Handle, pages int) {
	operationMachine.To(&op.state, operationPreparing)
	p := &preparation{charge: charge{instance: op.instance, phase: phasePreparing}, op: op, slots: make([]slot, pages), since: c.now}
	op.preparation = p
	op.instance.preparations++
	c.preparations = append(c.preparations, p)
	c.charge(&p.charge, uint64(pages)*op.namespace.geometry.pageBytes)
	for i, h := range leading {
		c.fill(p, i, h)
	}
	for i := len(leading); i < pages; i++ {
		if h, state, ok := c.index.Find(op.namespace.handle, op.group, (*index.Key)(&op.keys[i])); ok && state == index.Sealed {
			c.fill(p, i, h)
		}
	}
	c.advance(p)
}

// fill holds a resident page for a preparation.
func (c *Cache) fill(p *preparation, at int, h index.Handle) {
	c.index.Hold(h)
	p.slots[at].page = h
}

// advanceAll goes on with every preparation, in the order in which they were asked for: pages came, or room did.
func (c *Cache) advanceAll() {
	for _, p := range slices.Clone(c.preparations) {
		if p.op != nil {
			c.advance(p)
		}
	}
}

// advance starts the reads of a preparation that may start now, and ends it when nothing is missing.
func (c *Cache) advance(p *preparation) {
	for p.next < len(p.slots) {
		if p.slots[p.next].held() || p.slots[p.next].read != nil {
			p.next++
			continue
		}
		if !c.advanceOne(p) {
			break
		}
	}
	if p.reads == 0 && p.next == len(p.slots) {
		c.finish(p)
	}
}

// advanceOne brings the page at p.next nearer: it holds, joins or starts a read, or cuts the prefix there. It says false when the preparation
// must wait for something that runs.
func (c *Cache) advanceOne(p *preparation) bool {
	op, at := p.op, p.next
	h, state, ok := c.index.Find(op.namespace.handle, op.group, (*index.Key)(&op.keys[at]))
	switch {
	case ok && !c.usable(h, &op.instance.usable):
		c.cut(p, at)
	case ok && state == index.Sealed:
		c.fill(p, at, h)
	case ok && c.joinable(h):
		c.hasten(c.reads[h.Entry()], op.group, &op.keys[at])
		c.await(p, at, c.reads[h.Entry()])
		c.counters.coalescedReads++
	case ok:
		c.cut(p, at) // an engine publishes it, or a disk that hangs reads it, and nobody knows when
	default:
		return c.startReads(p)
	}
	return true
}

// startReads reads as many pages from p.next on as the batch, the tier and the pool allow.
func (c *Cache) startReads(p *preparation) bool {
	op := p.op
	pageBytes := op.namespace.geometry.pageBytes
	batch := int(max(1, c.config.ReadBatchBytes/pageBytes))
	room := batch - p.reads
	if c.config.StopPolicy == BestEffort {
		if room = batch - p.awaited; room <= 0 {
			c.cut(p, p.next)
		}
	}
	if room <= 0 {
		return false
	}
	queue := c.config.Tier.ReadRoom()
	if queue <= 0 {
		c.counters.backpressure++
		return c.cutUnlessReading(p)
	}
	n := c.missingRun(p, min(room, queue, ReclaimBatchPages))
	c.makeRoomNow(op.instance, n, math.MaxUint64)
	have := c.allocate(op.instance, n)
	if have == 0 {
		return c.cutUnlessReading(p)
	}
	used := 0
	for reading := true; reading && used < have && !c.hasRecord(op.namespace, op.group, &op.keys[p.next]); used++ { // a key that is named twice takes one place
		reading = c.startRead(p, used)
	}
	for i := used; i < have; i++ {
		c.giveBack(op.namespace, i)
	}
	return true
}

// hasRecord says whether a key has a record.
func (c *Cache) hasRecord(ns *namespace, group uint16, key *wire.Key) bool {
	_, _, ok := c.index.Find(ns.handle, group, (*index.Key)(key))
	return ok
}

// cutUnlessReading ends a prefix at a page that finds no place, in the queue or in the pool, where nothing runs that can change that: reads that run
// leave the queue and bring pages that can be evicted later. It says false when the preparation waits for them.
func (c *Cache) cutUnlessReading(p *preparation) bool {
	if len(c.reads) > 0 {
		return false
	}
	c.cut(p, p.next)
	return true
}

// missingRun counts the adjacent pages from p.next on, at most most, that have no record and can be read.
func (c *Cache) missingRun(p *preparation, most int) (n int) {
	for n = 1; n < most && p.next+n < len(p.slots); n++ {
		if at := p.next + n; p.slots[at].held() || c.hasRecord(p.op.namespace, p.op.group, &p.op.keys[at]) {
			break
		}
	}
	return n
}

// startRead reads the page at p.next into the ith place of scratch.locations. It says false, with the prefix cut there, when the tier has lost it.
func (c *Cache) startRead(p *preparation, i int) bool {
	op := p.op
	r := c.startReadOf(op.namespace, op.group, &op.keys[p.next], i, readAs{c.entryClass(), index.Stored, ReadDemand})
	if r == nil {
		c.cut(p, p.next)
		return false
	}
	c.await(p, p.next, r)
	p.next++
	return true
}

// await makes a preparation wait for a read.
func (c *Cache) await(p *preparation, at int, r *read) {
	p.slots[at].read = r
	p.slots[at].slow = true
	p.reads++
	p.awaited++
	r.wanted = append(r.wanted, interest{p, at})
	if p.awaited == 1 {
		c.traceReadStart(p)
	}
}

// cut gives up the pages from a position on. What is held, was never read or is paid for by another is uncharged at once, what is being read with the end
// of its read (I4).
func (c *Cache) cut(p *preparation, at int) {
	back := uint64(0)
	for i := len(p.slots) - 1; i >= at; i-- {
		s := &p.slots[i]
		switch {
		case s.held():
			c.index.Drop(s.page)
			back++
		case s.read != nil:
			p.reads--
			if s.read.ended || !s.read.giveUp(p, i) {
				back++
				break
			}
			p.old++
		default:
			back++
		}
	}
	p.slots = p.slots[:at]
	p.next = min(p.next, at)
	c.uncharge(&p.charge, back*p.op.namespace.geometry.pageBytes)
}

// stopReading makes a query ready with the leading pages that are complete.
func (c *Cache) stopReading(op *operation) {
	switch op.state {
	case operationWaiting:
		c.conclude(op, nil, nil)
	case operationPreparing:
		p := op.preparation
		c.cut(p, p.complete())
		c.finish(p)
	}
}

// complete is the number of leading pages that are held.
func (p *preparation) complete() int {
	for i := range p.slots {
		if !p.slots[i].held() {
			return i
		}
	}
	return len(p.slots)
}

// stopOverdue ends the wait of queries whose time is over, for budget or for the tier, and of those that a disk that hangs keeps waiting.
func (c *Cache) stopOverdue() {
	overdue := func(op *operation) bool {
		return c.config.StopPolicy == Timeout && c.now.Sub(op.since) >= c.config.ReadTimeout
	}
	for _, op := range slices.Clone(c.waiting) {
		if op.state == operationWaiting && overdue(op) {
			c.stopReading(op)
		}
	}
	for _, p := range slices.Clone(c.preparations) {
		if p.op != nil && (overdue(p.op) || c.waitsInVain(p)) {
			c.stopReading(p.op)
		}
	}
}

// waitsInVain says whether a page of a prefix is being read by a disk that hangs.
func (c *Cache) waitsInVain(p *preparation) bool {
	return slices.ContainsFunc(p.slots, func(s slot) bool { return s.read != nil && c.hangs(s.read) })
}

// finish makes the query of a preparation ready: every page of its prefix is held. A rank may have lost an arena meanwhile.
func (c *Cache) finish(p *preparation) {
	op := p.op
	for i := range p.slots {
		if !c.usable(p.slots[i].page, &op.instance.usable) {
			op.notMapped += uint32(len(p.slots) - i)
			c.cut(p, i)
			break
		}
	}
	pages, slow := make([]index.Handle, len(p.slots)), make([]bool, len(p.slots))
	for i := range p.slots {
		pages[i], slow[i] = p.slots[i].page, p.slots[i].slow
	}
	c.uncharge(&p.charge, uint64(len(pages))*op.namespace.geometry.pageBytes)
	c.traceHostReady(p)
	p.op, p.slots = nil, nil
	c.conclude(op, pages, slow)
	c.drain(p)
}

// giveUp ends the reading of a query that retires.
func (c *Cache) giveUp(op *operation) {
	p := op.preparation
	if p == nil || p.op == nil {
		return
	}
	c.cut(p, 0)
	p.op = nil
	c.drain(p)
}

// drain labels a preparation whose query went on, and forgets it when no read of it runs any more.
func (c *Cache) drain(p *preparation) {
	if p.old > 0 {
		c.setPhase(&p.charge, phaseDraining)
		return
	}
	c.setPhase(&p.charge, phaseEnded)
	c.preparations = slices.DeleteFunc(c.preparations, func(other *preparation) bool { return other == p })
	p.instance.preparations--
	if p.owing {
		c.operations--
		if p.owes != nil {
			p.owes.draining--
		}
	}
	c.removeIfIdle(p.instance)
}

// drained ends one read that a preparation gave up.
func (c *Cache) drained(p *preparation, bytes uint64) {
	p.old--
	c.uncharge(&p.charge, bytes)
	if p.op == nil && p.old == 0 {
		c.drain(p)
	}
}

// givePermit returns the permit of a query that counted in a session's table, if in any, or leaves it with the reads that still run for it (I4).
func (c *Cache) givePermit(op *operation, s *session) {
	if p := op.preparation; p != nil && p.old > 0 {
		p.owing, p.owes = true, s
		if s != nil {
			s.draining++
		}
		return
	}
	c.operations--
}
