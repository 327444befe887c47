package cache

import (
	"fmt"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Detach gives back everything that the session holds of an instance: the client has said that no copy of it runs. As a rank, its
// part of every lease and reservation ends; as the scheduler, its waiting queries, unbegun leases and place end. StatusUnknown: the session
// neither is a rank of the instance nor schedules it.
func (c *Cache) Detach(id SessionID, instanceID string) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	inst := c.instances[instanceID]
	if inst == nil || s.instance != inst && !inst.scheduledBy(s) {
		return wire.Errorf(wire.StatusUnknown, "this session is no rank of instance %q and does not schedule it", instanceID)
	}
	c.closePrivate(s)
	for _, private := range inOrder(c.privates) {
		if private.ranks[0].session == s {
			c.detachRank(private, 0)
		}
	}
	if inst.scheduledBy(s) {
		c.detachScheduler(inst, s)
	}
	if s.instance == inst {
		c.detachRank(inst, s.rank)
	}
	return nil
}

func (c *Cache) detachScheduler(inst *instance, s *session) {
	c.stopHints(hintDropped, func(h *hint) bool { return h.instance == inst && h.session == s })
	if inst.joint == nil {
		c.dropWaiting(inst)
	} else {
		c.leaveOpen(inst, s.joint.rank)
	}
	for _, l := range inOrder(s.leases) {
		if l.instance == inst {
			c.endReady(l, l.ownedBy(s), consumerReleased)
		}
	}
	for _, r := range inOrder(s.reservations) {
		if r.instance == inst {
			c.disown(r, s)
		}
	}
	c.unseat(inst, s)
}

func (c *Cache) detachRank(inst *instance, rank int) {
	c.skipReserves(inst, rank)
	for _, l := range inOrder(inst.leases) {
		c.endCopy(l, rank, consumerDone)
	}
	for _, r := range inOrder(inst.reservations) {
		c.endSlices(r, rank, sliceAbandoned)
	}
	c.leaveRank(inst, rank)
}

// leaveRank makes a rank vacant. Its geometry stays: the instance keeps its layout while it exists.
func (c *Cache) leaveRank(inst *instance, rank int) {
	slot := &inst.ranks[rank]
	if slot.process == nil {
		return
	}
	s := slot.session
	slot.process, slot.session, slot.mapped = nil, nil, arenaSet{}
	inst.attached--
	if s.instance == inst {
		s.instance = nil
	}
	c.remap(inst)
	c.removeIfIdle(inst)
	c.endIfIdle(s)
}

// removeIfIdle forgets an instance that no process belongs to and that holds nothing. Its pages stay in their namespace.
func (c *Cache) removeIfIdle(inst *instance) {
	if inst.state == instanceGone || inst.scheduled() || inst.holds() {
		return
	}
	if inst.private && inst.attached > 0 {
		c.leaveRank(inst, 0) // a closed private namespace kept its rank only for the reports of its copies
		return
	}
	if inst.attached > 0 {
		return
	}
	c.dropWaiting(inst)
	if inst.state == instanceGone || inst.preparations > 0 {
		return // reads run for it under its charge: the end of the last one comes here again
	}
	instanceMachine.To(&inst.state, instanceGone)
	for _, r := range inOrder(inst.reservations) {
		c.forgetReservation(r)
	}
	if inst.private {
		delete(c.privates, inst.namespace.handle)
	} else {
		delete(c.instances, inst.id)
	}
	if inst.namespace != nil {
		c.leaveNamespace(inst.namespace)
	}
}

// holds says whether a copy of the instance may run or start.
func (inst *instance) holds() bool {
	if len(inst.leases) > 0 {
		return true
	}
	for _, r := range inst.reservations {
		if r.open > 0 {
			return true
		}
	}
	return false
}

// everyInstance lists instances, private ones last, in a fixed order.
func (c *Cache) everyInstance() []*instance {
	return append(inOrder(c.instances), inOrder(c.privates)...)
}

// OpenPrivate opens the one-slice namespace of an attached session for its golden round trip: the session is its scheduler and, under its own
// rank number, its only rank. Its pages are in no list and no counter of pages, at most PrivatePagesMax. StatusConflict: one is open already;
// StatusNotReady: the session is attached to nothing.
func (c *Cache) OpenPrivate(id SessionID, sliceBytes uint64) (Registered, error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return Registered{}, err
	}
	switch {
	case s.instance == nil:
		return Registered{}, wire.Errorf(wire.StatusNotReady, "this session is no rank of an instance; attach it before it opens a private namespace")
	case s.private != nil:
		return Registered{}, wire.Errorf(wire.StatusConflict, "this session has a private namespace open; drop it first")
	case sliceBytes == 0 || sliceBytes > SliceBytesMax:
		return Registered{}, wire.Errorf(wire.StatusTooLarge, "a slice has 1 to %d bytes, not %d", SliceBytesMax, sliceBytes)
	case len(c.privates) >= InstancesMax:
		c.counters.busy++
		return Registered{}, wire.Errorf(wire.StatusBusy, "%d private namespaces are open, the most that a Manager keeps", len(c.privates))
	}
	of := s.instance.ranks[s.rank]
	inst := newInstance(fmt.Sprintf("%s (private, rank %d)", s.instance.id, of.number), nil, 0, 1)
	inst.private = true
	inst.ranks[0] = of
	inst.ranks[0].storage, inst.ranks[0].sliceBytes = true, sliceBytes
	inst.geometry = layOut(inst.ranks, c.config.Nodes)
	ns, err := c.makeNamespace(0, inst.geometry)
	if err != nil {
		return Registered{}, err
	}
	ns.private, ns.users = true, 1
	inst.namespace, inst.attached, inst.scheduler = ns, 1, s
	instanceMachine.To(&inst.state, instanceSealed)
	c.remap(inst)
	c.privates[ns.handle] = inst
	s.private = inst
	return c.registered(inst), nil
}

// ClosePrivate drops the session's private namespace; without one it does nothing. Pages that a copy may still use are freed when it ended.
func (c *Cache) ClosePrivate(id SessionID) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	c.closePrivate(s)
	return nil
}

// closePrivate makes the private namespace unreachable and, while the session is connected, takes its word that what it did not begin it never
// will. A disconnected process may have begun: its leases then wait for the resume or the exit.
func (c *Cache) closePrivate(s *session) {
	inst := s.private
	if inst == nil {
		return
	}
	s.private = nil
	c.dropWaiting(inst)
	for _, r := range inOrder(inst.reservations) {
		c.abandonPages(r)
	}
	c.retirePrivatePages(inst)
	if s.state == sessionOpen {
		for _, l := range inOrder(inst.leases) {
			c.endReady(l, 0, consumerReleased)
		}
	}
	inst.scheduler = nil
	c.removeIfIdle(inst)
}

// retirePrivatePages takes the sealed pages of a private namespace off their keys.
func (c *Cache) retirePrivatePages(inst *instance) {
	for _, h := range inst.pages {
		if p, live := c.index.Page(h); live && p.State == index.Sealed {
			c.retirePage(p)
		}
	}
	inst.pages = nil
}
