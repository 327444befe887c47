package cache

import (
	"slices"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Reserve asks for extents to publish pages into. Keys are read during the call only.
type Reserve struct {
	Operation uint64 // increasing within the session, beside that of queries
	Revision  uint32 // starts at 1
	Namespace uint32
	Group     uint16
	Instance  string // ignored for a private namespace
	Keys      []wire.Key
}

// Reserved is the answer: one grant a key in key order, run-length coded, and the places of the granted pages, part by part.
type Reserved struct {
	Operation   uint64
	Revision    uint32
	Reservation uint64 // zero when nothing was granted
	Pages       uint32 // granted
	Grants      []wire.GrantRun
	Runs        []wire.Run
}

// reservation is granted pages that the storage ranks of one instance write. It lives until every slice is terminal.
type reservation struct {
	id        uint64
	instance  *instance
	owners    []*session // who handed the slices out: one of all storage ranks, or by storage rank where they schedule together; nil as in a lease
	joint     bool       // the ranks schedule together
	answer    *answer    // of a joint one, while a storage rank may still ask for it
	payer     *session   // the owner in whose count of open reservations it is; nil when it is closed or none is left
	namespace *namespace
	pages     []index.Handle // by ordinal; stale once a page is sealed and gone
	slices    []sliceState   // by ordinal, then storage rank
	openBy    []int          // by storage rank: reserved slices
	open      int            // reserved slices
	closed    bool           // no slice is reserved; kept only for late reports of quarantined ones
	since     time.Time
}

func (r *reservation) slice(page, storage int) *sliceState {
	return &r.slices[page*len(r.openBy)+storage]
}

// Reserve answers for each key whether to write it: granted, present (sealed already), being written, or no room. Room is made by reclaim; a pool
// that is too small, or full of pages in use, is no error (I10). StatusBusy: too many open reservations. StatusStale: the operation was
// answered before, or the epoch was replaced. StatusUnknown and StatusTooLarge as for SubmitQuery.
func (c *Cache) Reserve(id SessionID, q Reserve) (Reserved, error) {
	c.enter()
	defer c.leave()
	a, err := c.admitReserve(id, q)
	var refused []bool
	if err == nil && a.known == nil {
		refused = c.weigh(a.instance, q)
		if c.makeRoom(a.instance, c.wanted(a.instance, q, refused)) {
			a, err = c.admitReserve(id, q) // another rank may have asked meanwhile
		}
	}
	if err != nil {
		return Reserved{}, err
	}
	if a.known != nil {
		return c.joinReserve(a.known, a.session), nil
	}
	inst := a.instance
	granted := c.allocate(inst, c.wanted(inst, q, refused))
	pages := c.grant(inst, q, granted, refused)
	reserved := Reserved{Operation: q.Operation, Revision: q.Revision, Pages: uint32(len(pages)), Grants: slices.Clone(c.scratch.grants)}
	var r *reservation
	if len(pages) > 0 {
		r = c.newReservation(inst, a.session, pages)
		reserved.Reservation = r.id
		reserved.Runs = c.runsOf(inst.namespace, pages)
	}
	if inst.joint != nil {
		c.keepAnswer(a.session, inst, q, reserved, r)
	} else {
		a.session.reserved = q.Operation
	}
	return reserved, nil
}

// admitted is a reserve that may be served.
type admitted struct {
	session  *session
	instance *instance
	known    *answer // the one that another rank got, to be joined
}

// admitReserve checks a reserve against its session and its instance as they are now.
func (c *Cache) admitReserve(id SessionID, q Reserve) (admitted, error) {
	s, err := c.open(id)
	if err != nil {
		return admitted{}, err
	}
	inst, err := c.target(s, q.Instance, q.Namespace)
	if err != nil {
		return admitted{}, err
	}
	if err := checkOperation("reserve", q.Revision, len(q.Keys)); err != nil {
		return admitted{}, err
	}
	last := s.reserved
	if inst.joint != nil {
		known, err := c.findAnswer(s, inst, q)
		if known != nil || err != nil {
			return admitted{s, inst, known}, err
		}
		last = inst.joint.reserves[s.joint.rank]
	}
	if q.Operation <= last {
		return admitted{}, wire.Errorf(wire.StatusStale, "reserve %d was answered or overtaken by %d; use a new operation", q.Operation, last)
	}
	if s.writing >= c.config.SessionOperations || c.openReservations >= c.config.GlobalOperations {
		c.counters.busy++
		return admitted{}, wire.Errorf(wire.StatusBusy, "%d reservations of this session and %d in all are open; commit or abandon some first",
			s.writing, c.openReservations)
	}
	return admitted{s, inst, nil}, nil
}

// wanted counts the keys that have no page and that may be granted; refused says by position which ones were weighed and may not, nil is none.
func (c *Cache) wanted(inst *instance, q Reserve, refused []bool) (wanted int) {
	if inst.joint != nil && inst.skippedBySome(q.Operation) {
		return 0 // such a page could never seal
	}
	for i := range q.Keys {
		if _, _, ok := c.index.Find(inst.namespace.handle, q.Group, (*index.Key)(&q.Keys[i])); !ok && (refused == nil || !refused[i]) {
			wanted++
		}
	}
	if inst.private {
		wanted = min(wanted, PrivatePagesMax-min(PrivatePagesMax, int(inst.namespace.pages)))
	}
	return wanted
}

// grant makes records for the first granted missing keys that were not refused, at the places in scratch.locations, and answers every key in scratch.grants.
func (c *Cache) grant(inst *instance, q Reserve, granted int, refused []bool) (pages []index.Handle) {
	ns := inst.namespace
	class := c.entryClass()
	if inst.private {
		class = index.Unlisted
	}
	pages = make([]index.Handle, 0, granted)
	parts := make([]uint64, len(ns.geometry.partBytes))
	c.scratch.grants = c.scratch.grants[:0]
	for i := range q.Keys {
		h, state, ok := c.index.Find(ns.handle, q.Group, (*index.Key)(&q.Keys[i]))
		answer := wire.GrantNoRoom
		switch {
		case ok && state == index.Sealed:
			answer = wire.GrantPresent
			c.index.Touch(h)
		case ok:
			answer = wire.GrantBeingWritten
		case len(pages) < granted && (refused == nil || !refused[i]):
			answer = wire.GrantGranted
			for part := range parts {
				parts[part] = c.scratch.locations[part][len(pages)]
			}
			pages = append(pages, c.newPage(ns, q.Group, &q.Keys[i], parts, class, index.Published))
		}
		c.scratch.grants = wire.AppendGrant(c.scratch.grants, answer, 1)
	}
	for n := len(pages); n < granted; n++ { // a key that was named twice took one page
		c.giveBack(ns, n)
		if c.stores(ns) {
			c.counters.writeSkips[skipDuplicate]++
		}
	}
	return pages
}

func (c *Cache) newReservation(inst *instance, s *session, pages []index.Handle) *reservation {
	storage := len(inst.geometry.storage)
	r := &reservation{
		id: newID(c, c.reservations), instance: inst, namespace: inst.namespace, pages: pages, since: c.now,
		slices: make([]sliceState, len(pages)*storage), openBy: make([]int, storage), open: len(pages) * storage,
		owners: make([]*session, 1), joint: inst.joint != nil,
	}
	at := 0
	if r.joint {
		r.owners, at = make([]*session, storage), inst.geometry.storageIndex(s.joint.rank)
	}
	for i := range r.openBy {
		r.openBy[i] = len(pages)
	}
	c.reservations[r.id] = r
	inst.reservations[r.id] = r
	c.openReservations++
	r.own(at, s)
	return r
}

// own makes a session one of the owners. The first pays.
func (r *reservation) own(at int, s *session) {
	r.owners[at] = s
	s.reservations[r.id] = r
	r.pay()
}

// pay has an open reservation counted once, for an owner that there is.
func (r *reservation) pay() {
	if r.closed || r.payer != nil {
		return
	}
	for _, s := range r.owners {
		if s != nil {
			r.payer = s
			s.writing++
			return
		}
	}
}

// paid ends the count of a reservation.
func (r *reservation) paid() {
	if r.payer != nil {
		r.payer.writing--
		r.payer = nil
	}
}

// disown takes a session off the owners; another one pays then.
func (c *Cache) disown(r *reservation, s *session) {
	for at := range r.owners {
		if r.owners[at] == s {
			r.owners[at] = nil
		}
	}
	delete(s.reservations, r.id)
	if r.payer == s {
		r.paid()
		r.pay()
	}
	c.endIfIdle(s)
}

// storages is the storage ranks [from, to) whose slices an owner hands out.
func (r *reservation) storages(at int) (from, to int) {
	if len(r.owners) == 1 {
		return 0, len(r.openBy)
	}
	return at, at + 1
}

// accounted says whether an owner may not have handed a storage rank its slices yet, or a rank of its own has not even asked for them.
func (r *reservation) accounted(storage int) bool {
	return r.owners[min(storage, len(r.owners)-1)] != nil || r.answer != nil && r.answer.open.has(storage)
}

// forgetReservation takes a reservation without open slices off the table. Its quarantined pages stay where they are.
func (c *Cache) forgetReservation(r *reservation) {
	for _, s := range r.owners {
		if s != nil {
			c.disown(r, s)
		}
	}
	delete(c.reservations, r.id)
	delete(r.instance.reservations, r.id)
}
