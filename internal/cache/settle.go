package cache

// settle brings a lease in line with its consumers: references that no consumer can use any more drop with their charge (I1, I4), the query
// retires when nothing of it is unbegun, and the lease ends with its last consumer.
func (c *Cache) settle(l *lease) {
	held := 0
	for i := range l.consumers {
		held = max(held, l.consumers[i].limit(len(l.pages)))
	}
	c.shrink(l, held)
	if l.op != nil && !l.anyIn(consumerReady) {
		c.retire(l.op)
	}
	for i := range l.consumers {
		if !l.consumers[i].state.ended() {
			c.relabel(l)
			return
		}
	}
	c.setPhase(&l.charge, phaseEnded)
	c.unlist(l)
	delete(c.leases, l.id)
}

// shrink drops the references on all but the first held pages, last page first: the head of a prefix is used last, so that reclaim
// takes its tail before it.
func (c *Cache) shrink(l *lease, held int) {
	if held >= l.held {
		return
	}
	c.uncharge(&l.charge, uint64(l.held-held)*l.instance.geometry.pageBytes)
	for i := l.held - 1; i >= held; i-- {
		c.index.Drop(l.pages[i])
	}
	l.held = held
}

// unlist takes a lease off its owner and its instance, which may then be forgotten.
func (c *Cache) unlist(l *lease) {
	inst := l.instance
	delete(inst.leases, l.id)
	for i := range l.owners {
		if s := l.owners[i].session; s != nil {
			l.letGo(i)
			c.endIfIdle(s)
		}
	}
	c.removeIfIdle(inst)
}

// relabel moves a lease's bytes to the phase that its consumers are in and that the silence of their sessions asks for.
func (c *Cache) relabel(l *lease) {
	if l.phase == phaseEnded || l.phase == phaseQuarantined {
		return
	}
	ready, begun, silent := false, false, false
	for rank := range l.consumers {
		switch l.consumers[rank].state {
		case consumerReady:
			ready = true
			s := l.ownerOf(rank).session // nil while the rank has not asked: those that did hold the lease
			silent = silent || s != nil && s.silent
		case consumerBegun:
			begun = true
			s := l.instance.ranks[rank].session
			silent = silent || s == nil || s.silent
		}
	}
	switch {
	case !ready && !begun:
		c.setPhase(&l.charge, phaseQuarantined) // I8: charged to the pool, never reused
		c.unlist(l)
	case silent:
		c.setPhase(&l.charge, phaseStalled)
	case l.started:
		c.setPhase(&l.charge, phaseRestoring)
	default:
		c.setPhase(&l.charge, phaseReady)
	}
}

// relabelAll relabels the leases that a session's silence bears on.
func (c *Cache) relabelAll(s *session) {
	for _, l := range inOrder(s.leases) {
		c.relabel(l)
	}
	for _, inst := range c.everyInstance() {
		if inst == s.instance || inst.private && inst.ranks[0].session == s {
			for _, l := range inOrder(inst.leases) {
				c.relabel(l)
			}
		}
	}
}

// endCopy ends one rank's begun part of a lease, if there is one.
func (c *Cache) endCopy(l *lease, rank int, end consumerState) {
	k := &l.consumers[rank]
	if k.state == consumerBegun {
		consumerMachine.To(&k.state, end)
		c.settle(l)
	}
}

// endReady ends the unbegun parts that an owner speaks for.
func (c *Cache) endReady(l *lease, owner int, end consumerState) {
	from, to := l.parts(owner)
	for rank := from; rank < to; rank++ {
		if l.consumers[rank].state == consumerReady {
			consumerMachine.To(&l.consumers[rank].state, end)
		}
	}
	c.decide(l)
	c.settle(l)
}

// quarantineConsumer keeps for ever what a rank begun and nobody accounts for (I8).
func (c *Cache) quarantineConsumer(l *lease, rank int) {
	consumerMachine.To(&l.consumers[rank].state, consumerQuarantined)
	c.settle(l)
}

// askBack pushes a revoke for every lease that an owner did not begin for RevokeAfter. Only the answer can end its parts.
func (c *Cache) askBack() {
	for _, l := range inOrder(c.leases) {
		for i := range l.owners {
			o := &l.owners[i]
			if o.revoked || o.session == nil || o.session.sink == nil || l.startedBy(i) || !l.readyOf(i) {
				continue
			}
			if c.now.Sub(o.since) < c.config.RevokeAfter {
				continue
			}
			o.revoked = c.push(o.session, Notice{Kind: NoticeRevoke, ID: l.id})
			c.askedAt(o.session)
		}
	}
}
