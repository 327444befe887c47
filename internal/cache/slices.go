package cache

import (
	"slices"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Committed says that a rank's slices of these granted pages are complete in the arena. A page is visible when the last storage rank said so
// (I9). Reports of another's rank, of slices that the rank has ended before, or beyond the reservation are violations; a quarantined slice
// stays one.
func (c *Cache) Committed(id SessionID, reservationID uint64, rank uint16, ranges []wire.Range) error {
	c.enter()
	defer c.leave()
	return c.endReported("committed", id, reservationID, rank, ranges, sliceCommitted)
}

// Abandoned says that slices will not be written and that no copy into them runs: those of the rank, or with AllRanks every slice of pages that
// the reservation's owner never handed to a rank. Where the ranks schedule together, a rank's scheduler session says so of that rank's slices.
// The page can never seal; it is freed when all its slices are terminal.
func (c *Cache) Abandoned(id SessionID, reservationID uint64, rank uint16, ranges []wire.Range) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	r := c.reservations[reservationID]
	if rank != wire.AllRanks && !s.handsOut(r) {
		return c.endReported("abandoned", id, reservationID, rank, ranges, sliceAbandoned)
	}
	if r == nil {
		c.counters.lateReports++ // its ranks may all have died meanwhile
		return nil
	}
	at := slices.Index(r.owners, s)
	if at < 0 || r.joint && r.instance.geometry.slices[at].Rank != rank {
		return c.violation("abandoned", wire.StatusUnknown, "abandoned names reservation %#x, rank %d, which this session does not hold", reservationID, rank)
	}
	from, to := r.storages(at)
	if err := c.neverHandedOut(r, from, to, ranges); err != nil {
		return err
	}
	for storage := from; storage < to; storage++ {
		c.endRanges(r, storage, ranges, sliceAbandoned)
	}
	return nil
}

// endReported takes a rank's terminal report of its own slices.
func (c *Cache) endReported(kind string, id SessionID, reservationID uint64, rank uint16, ranges []wire.Range, end sliceState) error {
	s, err := c.open(id)
	if err != nil {
		return err
	}
	r := c.reservations[reservationID]
	late := s.mayBeLate(reservationID)
	if r == nil && late {
		c.counters.lateReports++
		return nil
	}
	storage, err := c.writer(kind, s, r, reservationID, rank, ranges)
	if err != nil {
		return err
	}
	if r.answer != nil && r.answer.open.has(storage) {
		return c.violation(kind, wire.StatusUnknown, "%s names reservation %#x, whose slices rank %d has not been handed: its scheduler has not asked for them", kind, reservationID, rank)
	}
	if !late {
		if err := c.mustBeReserved(kind, r, storage, ranges); err != nil {
			return err
		}
	}
	c.endRanges(r, storage, ranges, end)
	return nil
}

// writer finds the storage rank of a reservation that a session may report for.
func (c *Cache) writer(kind string, s *session, r *reservation, id uint64, rank uint16, ranges []wire.Range) (storage int, err error) {
	if r == nil {
		return 0, c.violation(kind, wire.StatusUnknown, "%s names reservation %#x, which does not exist or has every report", kind, id)
	}
	at := r.instance.rankOf(s)
	if at < 0 || r.instance.ranks[at].number != rank {
		return 0, c.violation(kind, wire.StatusUnknown, "%s names rank %d of reservation %#x, which this session is not", kind, rank, id)
	}
	if storage = r.instance.geometry.storageIndex(at); storage < 0 {
		return 0, c.violation(kind, wire.StatusDenied, "%s names rank %d, which stores nothing", kind, rank)
	}
	if _, err := wire.CountRanges(ranges, uint32(len(r.pages))); err != nil {
		return 0, c.violation(kind, wire.StatusMalformed, "%s of reservation %#x: %v", kind, id, err)
	}
	return storage, nil
}

// mustBeReserved checks a whole report before any of it is taken.
func (c *Cache) mustBeReserved(kind string, r *reservation, storage int, ranges []wire.Range) error {
	for _, rg := range ranges {
		for page := rg.First; page < rg.First+rg.Count; page++ {
			if state := *r.slice(int(page), storage); state == sliceCommitted || state == sliceAbandoned {
				return c.violation(kind, wire.StatusConflict, "%s names page %d of reservation %#x, whose slice is already %s",
					kind, page, r.id, sliceMachine.Names[state])
			}
		}
	}
	return nil
}

func (c *Cache) neverHandedOut(r *reservation, from, to int, ranges []wire.Range) error {
	if _, err := wire.CountRanges(ranges, uint32(len(r.pages))); err != nil {
		return c.violation("abandoned", wire.StatusMalformed, "abandoned of reservation %#x: %v", r.id, err)
	}
	for _, rg := range ranges {
		for page := rg.First; page < rg.First+rg.Count; page++ {
			for storage := from; storage < to; storage++ {
				if *r.slice(int(page), storage) == sliceCommitted {
					return c.violation("abandoned", wire.StatusConflict,
						"abandoned names page %d of reservation %#x as never handed out, but a rank has committed its slice", page, r.id)
				}
			}
		}
	}
	return nil
}

// endRanges ends the slices of one storage rank that are still reserved, last page first, so that the head of a prefix is the one used last.
func (c *Cache) endRanges(r *reservation, storage int, ranges []wire.Range, end sliceState) {
	for i := len(ranges) - 1; i >= 0; i-- {
		for page := int(ranges[i].First+ranges[i].Count) - 1; page >= int(ranges[i].First); page-- {
			c.endSlice(r, page, storage, end)
		}
	}
	c.offerSaved(r.namespace)
	c.closeIfEnded(r)
}

// endSlices ends what a rank still had reserved.
func (c *Cache) endSlices(r *reservation, rank int, end sliceState) {
	if storage := r.instance.geometry.storageIndex(rank); storage >= 0 {
		c.endSlicesAt(r, storage, end)
	}
}

func (c *Cache) endSlicesAt(r *reservation, storage int, end sliceState) {
	for page := len(r.pages) - 1; page >= 0 && r.openBy[storage] > 0; page-- {
		c.endSlice(r, page, storage, end)
	}
	c.closeIfEnded(r)
}

// abandonUnnamed ends a reservation that its resumed scheduler does not name. The scheduler alone hands slices to ranks, and it named every
// reservation that a rank may still write, one that died before its report included, so no copy runs and none can start (I2). The report of a
// copy that ended just before may be on the way on the rank's own socket: it is late, not wrong.
func (c *Cache) abandonUnnamed(r *reservation, from, to int) {
	r.instance.rememberUnnamed(r.id)
	for storage := from; storage < to; storage++ {
		c.endSlicesAt(r, storage, sliceAbandoned)
	}
}

// endSlice moves one reserved slice to a terminal state, and its page with it. Another slice's state is left alone.
func (c *Cache) endSlice(r *reservation, page, storage int, end sliceState) {
	slice := r.slice(page, storage)
	if *slice != sliceReserved {
		if *slice == sliceQuarantined {
			c.counters.lateReports++
		}
		return
	}
	sliceMachine.To(slice, end)
	r.open--
	r.openBy[storage]--
	c.pageProgress(r, page)
}

// pageProgress derives a page's state from its slices.
func (c *Cache) pageProgress(r *reservation, page int) {
	var count [4]int
	for storage := range r.openBy {
		count[*r.slice(page, storage)]++
	}
	ns, h := r.namespace, r.pages[page]
	p := c.pageOf(h)
	switch {
	case count[sliceQuarantined] > 0:
		if p.State != index.Quarantined {
			c.quarantinePage(ns, h, p.State)
		}
	case count[sliceCommitted] == len(r.openBy) && p.State == index.Reserved:
		c.publishPage(r, h)
	case count[sliceReserved] == 0:
		if p.State == index.Reserved {
			c.abandonPage(ns, h)
		}
		c.index.Discard(h) // I2: every writer is terminal
	case count[sliceAbandoned] > 0 && p.State == index.Reserved:
		c.abandonPage(ns, h)
	}
}

// publishPage makes a page of which every slice is committed visible, and counts it.
func (c *Cache) publishPage(r *reservation, h index.Handle) {
	c.sealPage(r.namespace, h)
	if r.instance.private {
		r.instance.pages = append(r.instance.pages, h)
		return
	}
	c.counters.insertions++
	c.counters.saveBytes += r.namespace.geometry.dataBytes
	c.wrote(r, h)
	c.saved(r.namespace, h)
}

// abandonPages takes the reserved pages of a reservation off their keys: their bytes belong to an epoch that was replaced. Their writers go on.
func (c *Cache) abandonPages(r *reservation) {
	for page, h := range r.pages {
		if c.pageOpen(r, page) && c.pageOf(h).State == index.Reserved {
			c.abandonPage(r.namespace, h)
		}
	}
}

func (c *Cache) pageOpen(r *reservation, page int) bool {
	for storage := range r.openBy {
		if *r.slice(page, storage) == sliceReserved {
			return true
		}
	}
	return false
}

// closeIfEnded ends a reservation whose last slice is terminal, and says so to its owners.
func (c *Cache) closeIfEnded(r *reservation) {
	if r.open > 0 || r.closed {
		return
	}
	r.closed = true
	c.openReservations--
	r.paid()
	for _, s := range r.owners {
		c.push(s, Notice{Kind: NoticeSealed, ID: r.id})
	}
	inst := r.instance
	if !r.quarantined() {
		c.forgetReservation(r)
	}
	c.removeIfIdle(inst)
}

// quarantined says whether a late report may still name the reservation.
func (r *reservation) quarantined() bool {
	for _, state := range r.slices {
		if state == sliceQuarantined {
			return true
		}
	}
	return false
}
