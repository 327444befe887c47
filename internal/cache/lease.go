package cache

import (
	"math/bits"
	"slices"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// lease is strong references to pages for the ranks of one instance. It lives until every consumer is terminal: through the copy, not
// through the engine's step, and never by a clock.
type lease struct {
	charge
	id        uint64
	op        *operation // while the query is outstanding
	pages     []index.Handle
	held      int        // leading pages that are still referenced
	consumers []consumer // by rank
	owners    []owner    // one of all ranks; by rank where the ranks schedule together
	joint     bool       // the ranks schedule together
	started   bool       // a rank has begun: it is restoring until its last report
}

// owner is who may begin the parts of a lease or give them back: the scheduler session of all ranks, or of one.
type owner struct {
	session *session  // nil when it died or resumed without the lease, and while a rank of its own has not asked
	since   time.Time // of readiness, or of the last answer that it is in use
	revoked bool      // asked back and not answered
}

// parts is the consumers [from, to) that an owner speaks for.
func (l *lease) parts(owner int) (from, to int) {
	if len(l.owners) == 1 {
		return 0, len(l.consumers)
	}
	return owner, owner + 1
}

// ownedBy is the position of a session among the owners, -1 when it is none.
func (l *lease) ownedBy(s *session) int {
	return slices.IndexFunc(l.owners, func(o owner) bool { return o.session == s })
}

// ownerOf is who speaks for a rank.
func (l *lease) ownerOf(rank int) *owner { return &l.owners[min(rank, len(l.owners)-1)] }

// startedBy says whether a part that an owner speaks for was ever begun.
func (l *lease) startedBy(owner int) bool {
	from, to := l.parts(owner)
	return slices.ContainsFunc(l.consumers[from:to], func(k consumer) bool { return k.begun > 0 })
}

// readyOf says whether a part that an owner speaks for can still be begun.
func (l *lease) readyOf(owner int) bool {
	from, to := l.parts(owner)
	return slices.ContainsFunc(l.consumers[from:to], func(k consumer) bool { return k.state == consumerReady })
}

// takeOn makes a session an owner from now on.
func (c *Cache) takeOn(l *lease, i int, s *session) {
	l.owners[i] = owner{session: s, since: c.now}
	s.leases[l.id] = l
}

// letGo takes a lease off one owner.
func (l *lease) letGo(i int) {
	delete(l.owners[i].session.leases, l.id)
	l.owners[i].session = nil
}

// consumer is one rank's part of a lease.
type consumer struct {
	state    consumerState
	begun    uint32   // pages that it copies
	reported uint32   // of these: pages with a terminal report
	seen     []uint64 // bitmap of reported pages
}

// ended says whether the consumer holds no page any more.
func (s consumerState) ended() bool {
	return s == consumerReleased || s == consumerDone || s == consumerDropped
}

// limit is the number of leading pages that the consumer may be reading, or may start to.
func (k *consumer) limit(pages int) int {
	switch {
	case k.state == consumerReady:
		return pages
	case k.state.ended():
		return 0
	}
	return int(k.begun)
}

// rankOf is the position of the rank that a session is, -1 when it is none of this instance.
func (inst *instance) rankOf(s *session) int {
	for rank := range inst.ranks {
		if inst.ranks[rank].session == s && s != nil {
			return rank
		}
	}
	return -1
}

// newLease takes over a reference on each page (I1) and charges them.
func (c *Cache) newLease(op *operation, pages []index.Handle) *lease {
	inst := op.instance
	l := &lease{
		charge: charge{instance: inst}, id: newID(c, c.leases), op: op, pages: pages, held: len(pages),
		consumers: make([]consumer, len(inst.ranks)), owners: make([]owner, 1), joint: op.joint != nil,
	}
	c.charge(&l.charge, uint64(len(pages))*inst.geometry.pageBytes)
	c.leases[l.id] = l
	inst.leases[l.id] = l
	if l.joint {
		c.share(l)
	} else {
		c.takeOn(l, 0, op.session)
	}
	c.relabel(l)
	return l
}

// Begin says that rank, or AllRanks, will copy the first pages of a lease that the session holds. Pages beyond are released for these
// consumers. A second begin of equal length is the echo of a resume and does nothing.
func (c *Cache) Begin(id SessionID, leaseID uint64, rank uint16, pages uint32) error {
	c.enter()
	defer c.leave()
	l, from, to, err := c.consumers("begin", id, leaseID, rank)
	if err != nil {
		return err
	}
	if l == nil && c.sessions[id].echoes[leaseID] {
		c.counters.lateReports++
		return nil
	}
	if l == nil {
		return c.violation("begin", wire.StatusUnknown, "begin names lease %#x, which does not exist", leaseID)
	}
	if int(pages) > len(l.pages) {
		return c.violation("begin", wire.StatusTooLarge, "begin names %d pages of a lease of %d", pages, len(l.pages))
	}
	for r := from; r < to; r++ {
		k := &l.consumers[r]
		changed := k.state != consumerReady && k.begun != pages && k.state != consumerDropped && k.state != consumerQuarantined
		if changed && rank != wire.AllRanks {
			return c.violation("begin", wire.StatusConflict, "rank %d has already %d pages of lease %#x, begin now says %d", r, k.begun, leaseID, pages)
		}
	}
	for r := from; r < to; r++ {
		c.beginConsumer(l, r, pages)
	}
	c.decide(l)
	c.settle(l)
	return nil
}

func (c *Cache) beginConsumer(l *lease, rank int, pages uint32) {
	k := &l.consumers[rank]
	switch {
	case k.state != consumerReady:
	case pages == 0:
		consumerMachine.To(&k.state, consumerReleased)
	case l.instance.ranks[rank].process == nil || l.joint && l.instance.ranks[rank].process != l.owners[rank].session.process:
		consumerMachine.To(&k.state, consumerDropped) // a vacant rank, or one that another process took, reads nothing
	default:
		consumerMachine.To(&k.state, consumerBegun)
		l.started = true
		k.begun = pages
		k.reported = 0 // reports travel on the rank's own socket and may be read before the begin of the scheduler's
		for i := range k.seen {
			word := k.seen[i]
			if rest := int(pages) - 64*i; rest < 64 {
				word &= 1<<max(rest, 0) - 1
			}
			k.reported += uint32(bits.OnesCount64(word))
		}
		if k.reported == k.begun {
			consumerMachine.To(&k.state, consumerDone)
		}
	}
}

// Release gives back what rank, or AllRanks, did not begin of a lease. A lease that has ended meanwhile is a harmless race; one that the
// rank has begun, or that the session does not hold, is a violation.
func (c *Cache) Release(id SessionID, leaseID uint64, rank uint16) error {
	c.enter()
	defer c.leave()
	l, from, to, err := c.consumers("release", id, leaseID, rank)
	if err != nil {
		return err
	}
	if l == nil {
		c.counters.lateReports++
		return nil
	}
	if rank != wire.AllRanks && l.consumers[from].state == consumerBegun {
		return c.violation("release", wire.StatusConflict, "release names lease %#x, which rank %d has begun; report its copy instead", leaseID, rank)
	}
	for r := from; r < to; r++ {
		if l.consumers[r].state == consumerReady {
			consumerMachine.To(&l.consumers[r].state, consumerReleased)
		}
	}
	c.decide(l)
	c.settle(l)
	return nil
}

// Revoked answers a revoke: yielded gives the unbegun lease back, else it is in use and asked for again later. The lease, or the rank's part of it,
// may have ended meanwhile.
func (c *Cache) Revoked(id SessionID, leaseID uint64, yielded bool) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	c.heard(s)
	l := c.leases[leaseID]
	if l == nil {
		c.counters.lateReports++
		return nil
	}
	i := l.ownedBy(s)
	if i < 0 {
		return c.violation("revoked", wire.StatusUnknown, "revoked names lease %#x of another session", leaseID)
	}
	l.owners[i].revoked, l.owners[i].since = false, c.now
	switch {
	case !yielded:
		return nil
	case l.joint && !l.readyOf(i):
		c.counters.lateReports++ // the other ranks keep the lease alive
		return nil
	case l.startedBy(i):
		return c.violation("revoked", wire.StatusConflict, "revoked yields lease %#x, which was begun", leaseID)
	}
	if l.op != nil {
		s.rememberYield(l.op.id, c.config.SessionOperations)
	}
	c.endReady(l, i, consumerReleased)
	return nil
}

// Restored is the terminal report of one rank's copy of some pages: ok when every byte arrived. bytes must not pass the slices that were
// leased; a page that was reported before, or a report of another's rank, is a violation, but for the echo of a session that
// resumed. Pages stay valid after a failure.
func (c *Cache) Restored(id SessionID, leaseID uint64, rank uint16, ok bool, bytes uint64, ranges []wire.Range) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	l := c.leases[leaseID]
	if l == nil && s.mayBeLate(leaseID) {
		c.counters.lateReports++
		return nil
	}
	if l == nil {
		return c.violation("restored", wire.StatusUnknown, "restored names lease %#x, which does not exist or has every report", leaseID)
	}
	at := l.instance.rankOf(s)
	if at < 0 || l.instance.ranks[at].number != rank {
		return c.violation("restored", wire.StatusUnknown, "restored names rank %d of lease %#x, which this session is not", rank, leaseID)
	}
	k := &l.consumers[at]
	if k.state == consumerQuarantined || s.mayBeLate(leaseID) && k.state.ended() {
		c.counters.lateReports++
		return nil
	}
	pages := k.limit(len(l.pages))
	count, err := wire.CountRanges(ranges, uint32(pages))
	if err != nil {
		return c.violation("restored", wire.StatusMalformed, "restored of lease %#x, %d pages of rank %d: %v", leaseID, pages, rank, err)
	}
	if most := uint64(count) * l.instance.geometry.sliceBytes(at); bytes > most {
		return c.violation("restored", wire.StatusTooLarge, "restored reports %d bytes of %d pages, their slices have %d", bytes, count, most)
	}
	if k.saw(ranges) {
		if !s.echoes[leaseID] {
			return c.violation("restored", wire.StatusConflict, "restored reports pages of lease %#x, rank %d, a second time", leaseID, rank)
		}
		c.counters.lateReports++
		ranges, count = k.unseen(ranges)
		bytes = min(bytes, uint64(count)*l.instance.geometry.sliceBytes(at))
	}
	c.report(l, k, ok, bytes, ranges, count)
	return nil
}

// report takes a checked terminal report: the only place that credits bytes that arrived.
func (c *Cache) report(l *lease, k *consumer, ok bool, bytes uint64, ranges []wire.Range, count uint32) {
	if k.seen == nil {
		k.seen = make([]uint64, (len(l.pages)+63)/64)
	}
	for _, r := range ranges {
		for i := r.First; i < r.First+r.Count; i++ {
			k.seen[i/64] |= 1 << (i % 64)
			if ok {
				c.creditPage(l.instance, l.pages[i])
			}
		}
	}
	if !l.instance.private {
		if ok {
			c.counters.loadBytes += bytes
		} else {
			c.counters.loadFailures += uint64(count)
		}
	}
	if k.state != consumerBegun {
		return // its begin is on the way
	}
	if k.reported += count; k.reported == k.begun {
		consumerMachine.To(&k.state, consumerDone)
		c.settle(l)
	}
}

func (k *consumer) saw(ranges []wire.Range) bool {
	if k.seen == nil {
		return false
	}
	for _, r := range ranges {
		for i := r.First; i < r.First+r.Count; i++ {
			if k.seen[i/64]&(1<<(i%64)) != 0 {
				return true
			}
		}
	}
	return false
}

// unseen is the part of an echo that was not read before.
func (k *consumer) unseen(ranges []wire.Range) (rest []wire.Range, count uint32) {
	for _, r := range ranges {
		for i := r.First; i < r.First+r.Count; i++ {
			if k.seen[i/64]&(1<<(i%64)) == 0 {
				rest = wire.AppendRange(rest, i, 1)
				count++
			}
		}
	}
	return rest, count
}

// consumers finds a lease and the consumers [from, to) that rank names. Only the session that holds the lease may speak for what is unbegun.
// The lease is nil, without error, when there is none of that id.
func (c *Cache) consumers(kind string, id SessionID, leaseID uint64, rank uint16) (l *lease, from, to int, err error) {
	s, err := c.open(id)
	if err != nil {
		return nil, 0, 0, err
	}
	if l = c.leases[leaseID]; l == nil {
		return nil, 0, 0, nil
	}
	i := l.ownedBy(s)
	if i < 0 {
		return nil, 0, 0, c.violation(kind, wire.StatusUnknown, "%s names lease %#x, which this session does not hold", kind, leaseID)
	}
	from, to = l.parts(i)
	if rank == wire.AllRanks && !l.joint {
		return l, from, to, nil
	}
	for r := from; r < to; r++ {
		if l.instance.ranks[r].number == rank {
			return l, r, r + 1, nil
		}
	}
	if l.joint {
		return nil, 0, 0, c.violation(kind, wire.StatusUnknown, "%s names rank %d of lease %#x, this session speaks for rank %d alone", kind, rank, leaseID, from)
	}
	return nil, 0, 0, c.violation(kind, wire.StatusTooLarge, "%s names rank %d of an instance of %d", kind, rank, len(l.consumers))
}

func (l *lease) anyIn(state consumerState) bool {
	for i := range l.consumers {
		if l.consumers[i].state == state {
			return true
		}
	}
	return false
}
