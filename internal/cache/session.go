package cache

import (
	"slices"
	"time"

	"orbitkv/internal/wire"
)

// SessionID names one connection for the life of the Manager; ids are never reused.
type SessionID uint64

// NoticeKind says what a Notice asks the connection to send.
type NoticeKind uint8

// The kinds of notices.
const (
	NoticeQuery    NoticeKind = iota + 1 // a query changed state: ID is the operation, Revision its revision
	NoticeSealed                         // every page of the reservation ID is sealed or gone
	NoticeInstance                       // the instance that the session wanted to register was sealed
	NoticeRevoke                         // the unbegun lease ID is asked back
	NoticePing                           // answer with a pong that carries ID
)

// Notice is something to push to a client. The state of the cache is the truth; a notice is a hint.
type Notice struct {
	Kind     NoticeKind
	ID       uint64
	Revision uint32
}

// Sink takes a session's notices. Push is called with the cache's mutex held: it must not block and must not call the cache. It returns
// false when its bounded queue is full and the notice was dropped, which the cache counts.
type Sink interface {
	Push(Notice) bool
}

// session is one connection, or what is left of it while its process lives.
type session struct {
	id      SessionID
	process *process
	role    wire.Role
	name    string
	token   wire.ID16
	sink    Sink // nil once closed
	state   sessionState
	broken  bool // closed with frames unread

	instance *instance // attached to
	rank     int
	private  *instance
	wants    string // instance whose sealing it waits for

	joint jointSeat           // of a session that schedules for one rank
	pays  map[*operation]bool // queries of ranks that schedule together, which count in its table

	operations   map[uint64]*operation
	retired      uint64          // largest query id that was retired
	reserved     uint64          // largest reserve id that was answered
	echoes       map[uint64]bool // leases and reservations taken over: the client cannot know what was read of its old connection, and says it again
	yielded      []uint64        // the last queries that ended by a yielded lease
	leases       map[uint64]*lease
	reservations map[uint64]*reservation
	writing      int    // of the reservations: those with open slices
	draining     int    // queries that were given up while their reads run: they keep their place in the table
	hints        int    // that read or drain: so do they
	hinted       uint64 // largest ticket of a hint

	asked    time.Time // when the oldest unanswered ping or revoke was pushed; zero when none
	lastPing time.Time
	silent   bool // stalled: a label, it owns nothing less
}

// OpenSession starts a session of a process. The token names it in a later Resume.
// It fails with StatusUnknown for a process that exited and with StatusBusy when SessionsMax sessions exist.
func (c *Cache) OpenSession(id ProcessID, role wire.Role, name string, sink Sink) (SessionID, wire.ID16, error) {
	c.enter()
	defer c.leave()
	p := c.processes[id]
	if p == nil {
		return 0, wire.ID16{}, wire.Errorf(wire.StatusUnknown, "process %d is not known or has exited; connect again", id)
	}
	if len(c.sessions) >= SessionsMax {
		c.endOneThatHoldsNothing()
	}
	if len(c.sessions) >= SessionsMax {
		c.counters.busy++
		return 0, wire.ID16{}, wire.Errorf(wire.StatusBusy, "%d sessions exist, the most that a Manager keeps; stop some clients", len(c.sessions))
	}
	c.nextSession++
	s := &session{
		id: c.nextSession, process: p, role: role, name: name, token: c.newToken(), sink: sink, lastPing: c.now,
		operations: map[uint64]*operation{}, leases: map[uint64]*lease{}, reservations: map[uint64]*reservation{},
		echoes: map[uint64]bool{}, pays: map[*operation]bool{},
	}
	c.sessions[s.id] = s
	c.tokens[s.token] = s
	p.sessions[s.id] = s
	return s.id, s.token, nil
}

// CloseSession says that the connection ended, after every frame that it carried was handled. That is a disconnect, not a death:
// what the process may still use stays held until it resumes or exits (I2). Queries that wait are dropped and the private namespace
// is closed. Closing a session twice does nothing.
func (c *Cache) CloseSession(id SessionID) {
	c.enter()
	defer c.leave()
	if s := c.sessions[id]; s != nil && s.state == sessionOpen {
		c.closeSession(s)
	}
}

// BreakSession is CloseSession of a connection that was given up with frames unread, after a violation or at a full stop: a begin may be among
// them, so that an unbegun lease may be in use by ranks that live longer than their scheduler.
func (c *Cache) BreakSession(id SessionID) {
	c.enter()
	defer c.leave()
	if s := c.sessions[id]; s != nil && s.state == sessionOpen {
		s.broken = true
		c.closeSession(s)
	}
}

func (c *Cache) closeSession(s *session) {
	sessionMachine.To(&s.state, sessionClosed)
	s.sink = nil
	s.wants = ""
	if s.asked.IsZero() {
		s.asked = c.now
	}
	for _, op := range inOrder(s.operations) {
		if op.state == operationWaiting || op.lease == nil {
			c.retire(op)
		}
	}
	c.stopHints(hintDropped, func(h *hint) bool { return h.session == s })
	if s.joint.instance != nil {
		c.leaveOpen(s.joint.instance, s.joint.rank)
	}
	c.closePrivate(s)
	c.endIfIdle(s)
}

// Heard says that the client answered: a pong, a revoked, or any other sign that it reads what it is sent.
func (c *Cache) Heard(id SessionID) {
	c.enter()
	defer c.leave()
	if s := c.sessions[id]; s != nil && s.state == sessionOpen {
		c.heard(s)
	}
}

func (c *Cache) heard(s *session) {
	s.asked = time.Time{}
	if s.silent {
		s.silent = false
		c.relabelAll(s)
	}
}

// Resume gives what a disconnected session of the same process still uses to the session id: its leases and reservations by id,
// its place as a rank and its place as the scheduler. The rest of the old session is closed: unbegun leases that are not named are
// released, reservations that a scheduler does not name were handed to no rank, or every rank has ended its copies: they are abandoned; copies
// that no living process accounts for are quarantined (I8). It returns what was taken over. An old session that is still open is closed
// first. StatusUnknown: no such session of this process.
func (c *Cache) Resume(id SessionID, token wire.ID16, leases, reservations []uint64) (tookLeases, tookReservations []uint64, err error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return nil, nil, err
	}
	old := c.tokens[token]
	if old == nil || old == s || old.process != s.process {
		return nil, nil, wire.Errorf(wire.StatusUnknown, "no session of this process has that token; attach and register anew")
	}
	if old.role != s.role {
		return nil, nil, wire.Errorf(wire.StatusConflict, "the old session is a %v, this one a %v; resume with the same role", old.role, s.role)
	}
	if old.instance != nil && s.instance != nil {
		return nil, nil, wire.Errorf(wire.StatusConflict, "the old session is rank %d of instance %q, this one is rank %d of %q; resume before attaching elsewhere",
			old.rank, old.instance.id, s.rank, s.instance.id)
	}
	if err := c.mayReseat(old, s); err != nil {
		return nil, nil, err
	}
	if old.state == sessionOpen {
		old.broken = true
		c.closeSession(old)
	}
	c.takePlaces(old, s)
	tookLeases = c.resumeLeases(old, s, leases)
	tookReservations = c.resumeReservations(old, s, reservations)
	for _, id := range slices.Concat(tookLeases, tookReservations) {
		s.echoes[id] = true
	}
	if old.state != sessionEnded {
		c.endSession(old)
	}
	c.relabelAll(s)
	return tookLeases, tookReservations, nil
}

// takePlaces moves the old session's rank and its place as scheduler to the new one.
func (c *Cache) takePlaces(old, s *session) {
	if old.instance != nil && s.instance == nil {
		s.instance, s.rank = old.instance, old.rank
		slot := &old.instance.ranks[old.rank]
		slot.session, slot.mapped = s, arenaSet{} // its client maps the arenas of the new connection anew
		c.remap(old.instance)
		old.instance = nil
	}
	for _, inst := range c.instances {
		inst.reseat(old, s)
	}
	for _, private := range c.privates {
		if private.ranks[0].session == old {
			private.ranks[0].session = s
		}
	}
}

func (c *Cache) resumeLeases(old, s *session, claimed []uint64) (took []uint64) {
	for _, id := range claimed {
		l := c.leases[id]
		if l == nil || slices.Contains(took, id) {
			continue
		}
		if l.ownedBy(old) >= 0 || l.instance.rankOf(s) >= 0 {
			took = append(took, id)
		}
	}
	for _, l := range inOrder(old.leases) {
		if l.op != nil && !l.joint {
			c.retire(l.op) // its id belongs to the old session
		}
		i := l.ownedBy(old)
		since := l.owners[i].since
		l.letGo(i)
		if slices.Contains(took, l.id) {
			c.takeOn(l, i, s)
			l.owners[i].since = since
			continue
		}
		l.instance.rememberUnnamed(l.id) // its begin may have been lost, and the report of a copy that ended may be on the way
		c.endReady(l, i, consumerReleased)
		if rank := l.instance.rankOf(s); rank >= 0 && l.consumers[rank].state == consumerBegun {
			c.quarantineConsumer(l, rank)
		}
	}
	if s.instance != nil {
		for _, l := range inOrder(s.instance.leases) {
			// Whoever owns the lease may have begun it without having handed the copy to this rank yet: it accounts for it.
			if l.ownerOf(s.rank).session == nil && l.consumers[s.rank].state == consumerBegun && !slices.Contains(took, l.id) {
				c.quarantineConsumer(l, s.rank)
			}
		}
	}
	return took
}

// rememberUnnamed keeps what a resumed scheduler did not name, so that a late report of it is known as such.
func (inst *instance) rememberUnnamed(id uint64) {
	if len(inst.unnamed) >= unnamedMax {
		inst.unnamed = slices.Delete(inst.unnamed, 0, 1)
	}
	inst.unnamed = append(inst.unnamed, id)
}

// mayBeLate says whether a report of something that has ended is no violation.
func (s *session) mayBeLate(id uint64) bool {
	return s.echoes[id] || s.instance != nil && slices.Contains(s.instance.unnamed, id)
}

func (c *Cache) resumeReservations(old, s *session, claimed []uint64) (took []uint64) {
	for _, id := range claimed {
		r := c.reservations[id]
		if r == nil || slices.Contains(took, id) {
			continue
		}
		if slices.Contains(r.owners, old) || r.instance.rankOf(s) >= 0 {
			took = append(took, id)
		}
	}
	for _, r := range inOrder(old.reservations) {
		at := slices.Index(r.owners, old)
		c.disown(r, old)
		rank := r.instance.rankOf(s)
		switch {
		case slices.Contains(took, r.id):
			r.own(at, s)
		case rank >= 0:
			c.endSlices(r, rank, sliceQuarantined)
		case s.role == wire.RoleScheduler:
			from, to := r.storages(at)
			c.abandonUnnamed(r, from, to)
		}
	}
	if s.instance != nil {
		for _, r := range inOrder(s.instance.reservations) {
			// As above: the owner may not have handed the slices out.
			if storage := r.instance.geometry.storageIndex(s.rank); storage >= 0 && !r.accounted(storage) && !slices.Contains(took, r.id) {
				c.endSlicesAt(r, storage, sliceQuarantined)
			}
		}
	}
	return took
}

// endIfIdle forgets a closed session that holds nothing any more.
func (c *Cache) endIfIdle(s *session) {
	if s == nil || s.state != sessionClosed || s.instance != nil || s.private != nil || len(s.leases) > 0 || len(s.reservations) > 0 {
		return
	}
	for _, inst := range c.instances {
		if inst.scheduledBy(s) {
			return
		}
	}
	c.endSession(s)
}

// endOneThatHoldsNothing ends the oldest closed session of which a rank and a scheduler may use no page: it is a place that its process may take
// again, no more. Its rank leaves the instance, so that nothing is lent to it until it attaches anew.
func (c *Cache) endOneThatHoldsNothing() {
	for _, s := range inOrder(c.sessions) {
		if s.state != sessionClosed || c.mayUsePages(s) {
			continue
		}
		for _, inst := range inOrder(c.instances) {
			c.unseat(inst, s)
		}
		if s.instance != nil {
			c.leaveRank(s.instance, s.rank) // ends the session
		} else {
			c.endSession(s)
		}
		return
	}
}

// mayUsePages says whether a copy may run or start for which the session, or what its process was told on it, accounts (I2).
func (c *Cache) mayUsePages(s *session) bool {
	if len(s.leases) > 0 || len(s.reservations) > 0 || s.instance != nil && s.instance.holds() {
		return true
	}
	for _, inst := range c.everyInstance() {
		if (inst.scheduledBy(s) || inst.rankOf(s) >= 0) && (inst.private || inst.holds()) {
			return true
		}
	}
	return false
}

func (c *Cache) endSession(s *session) {
	for _, op := range inOrder(s.operations) {
		c.retire(op)
	}
	s.handOver()
	sessionMachine.To(&s.state, sessionEnded)
	delete(c.sessions, s.id)
	delete(c.tokens, s.token)
	delete(s.process.sessions, s.id)
}

// open returns a session that is connected.
func (c *Cache) open(id SessionID) (*session, error) {
	s := c.sessions[id]
	if s == nil || s.state != sessionOpen {
		return nil, wire.Errorf(wire.StatusUnknown, "session %d is closed; connect again", id)
	}
	return s, nil
}

// push hands a notice to a session, if it is connected and its queue has room.
func (c *Cache) push(s *session, n Notice) bool {
	if s == nil || s.sink == nil {
		return false
	}
	if !s.sink.Push(n) {
		c.counters.noticesDropped++
		return false
	}
	return true
}

// pingAndLabel pushes a session its ping and labels it when it stayed silent. Time changes the label, never what it owns.
func (c *Cache) pingAndLabel(s *session) {
	if s.state == sessionOpen && c.now.Sub(s.lastPing) >= c.config.PingEvery {
		s.lastPing = c.now
		c.push(s, Notice{Kind: NoticePing, ID: c.random.Uint64()})
		c.askedAt(s)
	}
	if !s.silent && !s.asked.IsZero() && c.now.Sub(s.asked) >= c.config.StalledAfter {
		s.silent = true
		c.relabelAll(s)
	}
}

// askedAt remembers when the oldest unanswered question was put. A full queue counts too: a client that does not read does not answer.
func (c *Cache) askedAt(s *session) {
	if s.asked.IsZero() {
		s.asked = c.now
	}
}
