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
	session   *session // owner; nil when its process died or resumed without it
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
	s, inst, err := c.admitReserve(id, q)
	if err == nil && c.makeRoom(inst, c.wanted(inst, q)) {
		s, inst, err = c.admitReserve(id, q)
	}
	if err != nil {
		return Reserved{}, err
	}
	s.reserved = q.Operation

	granted := c.allocate(inst, c.wanted(inst, q))
	reserved := Reserved{Operation: q.Operation, Revision: q.Revision, Pages: uint32(granted)}
	pages := c.grant(inst, q, granted)
	reserved.Grants = slices.Clone(c.scratch.grants)
	if granted > 0 {
		r := c.newReservation(inst, s, pages)
		reserved.Reservation = r.id
		reserved.Runs = c.runsOf(inst.namespace, pages)
	}
	return reserved, nil
}

// admitReserve checks a reserve against its session and its instance as they are now.
func (c *Cache) admitReserve(id SessionID, q Reserve) (*session, *instance, error) {
	s, err := c.open(id)
	if err != nil {
		return nil, nil, err
	}
	inst, err := c.target(s, q.Instance, q.Namespace)
	if err != nil {
		return nil, nil, err
	}
	if err := checkOperation("reserve", q.Revision, len(q.Keys)); err != nil {
		return nil, nil, err
	}
	if q.Operation <= s.reserved {
		return nil, nil, wire.Errorf(wire.StatusStale, "reserve %d was answered or overtaken by %d; use a new operation", q.Operation, s.reserved)
	}
	if s.writing >= c.config.SessionOperations || c.openReservations >= c.config.GlobalOperations {
		c.counters.busy++
		return nil, nil, wire.Errorf(wire.StatusBusy, "%d reservations of this session and %d in all are open; commit or abandon some first",
			s.writing, c.openReservations)
	}
	return s, inst, nil
}

// wanted counts the keys that have no page.
func (c *Cache) wanted(inst *instance, q Reserve) (wanted int) {
	for i := range q.Keys {
		if _, _, ok := c.index.Find(inst.namespace.handle, q.Group, (*index.Key)(&q.Keys[i])); !ok {
			wanted++
		}
	}
	if inst.private {
		wanted = min(wanted, PrivatePagesMax-min(PrivatePagesMax, int(inst.namespace.pages)))
	}
	return wanted
}

// grant makes records for the first granted missing keys, at the places in scratch.locations, and answers every key in scratch.grants.
func (c *Cache) grant(inst *instance, q Reserve, granted int) (pages []index.Handle) {
	ns := inst.namespace
	class := index.Retained
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
		case len(pages) < granted:
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
	}
	return pages
}

func (c *Cache) newReservation(inst *instance, s *session, pages []index.Handle) *reservation {
	storage := len(inst.geometry.storage)
	r := &reservation{
		id: newID(c, c.reservations), instance: inst, namespace: inst.namespace, pages: pages, since: c.now,
		slices: make([]sliceState, len(pages)*storage), openBy: make([]int, storage), open: len(pages) * storage,
	}
	for i := range r.openBy {
		r.openBy[i] = len(pages)
	}
	c.reservations[r.id] = r
	inst.reservations[r.id] = r
	c.openReservations++
	c.own(r, s)
	return r
}

func (c *Cache) own(r *reservation, s *session) {
	r.session = s
	s.reservations[r.id] = r
	if !r.closed {
		s.writing++
	}
}

func (c *Cache) disown(r *reservation) {
	s := r.session
	if s == nil {
		return
	}
	r.session = nil
	delete(s.reservations, r.id)
	if !r.closed {
		s.writing--
	}
	c.endIfIdle(s)
}

// forgetReservation takes a reservation without open slices off the table. Its quarantined pages stay where they are.
func (c *Cache) forgetReservation(r *reservation) {
	c.disown(r)
	delete(c.reservations, r.id)
	delete(r.instance.reservations, r.id)
}
