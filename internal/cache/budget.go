package cache

// budget is the query byte budget: what leases hold, by phase. A lease charges the padded footprint of its pages once, never once a
// rank, to the global and to its instance's budget.
type budget struct {
	globalMax   uint64
	instanceMax uint64
	byPhase     [phases]uint64
}

// global is what counts against the global budget: a stalled session must not starve the others.
func (b *budget) global() uint64 { return b.byPhase[phaseReady] + b.byPhase[phaseRestoring] }

// inBudget is what counts against an instance's own budget: stalled bytes still do.
func (inst *instance) inBudget() uint64 {
	return inst.charged[phaseReady] + inst.charged[phaseRestoring] + inst.charged[phaseStalled]
}

// demandMax is the most bytes that one query may ask for.
func (b *budget) demandMax() uint64 { return min(b.globalMax, b.instanceMax) }

// fitsGlobal and fitsInstance say whether bytes more can be charged now. What returns from stalled may pass the global maximum for a
// while, so that neither subtracts.
func (b *budget) fitsGlobal(bytes uint64) bool { return b.global()+bytes <= b.globalMax }

func (b *budget) fitsInstance(inst *instance, bytes uint64) bool {
	return inst.inBudget()+bytes <= b.instanceMax
}

// charge adds bytes to a lease and to the budgets of its phase.
func (c *Cache) charge(l *lease, bytes uint64) {
	l.charged += bytes
	l.instance.charged[l.phase] += bytes
	c.budget.byPhase[l.phase] += bytes
}

// uncharge returns bytes of a lease: a reference dropped (I4).
func (c *Cache) uncharge(l *lease, bytes uint64) {
	if l.charged < bytes {
		panic("cache: a lease returned more bytes than it was charged")
	}
	l.charged -= bytes
	l.instance.charged[l.phase] -= bytes
	c.budget.byPhase[l.phase] -= bytes
	c.bytesReturned = c.bytesReturned || bytes > 0
}

// setPhase moves a lease and its bytes to another phase.
func (c *Cache) setPhase(l *lease, next phase) {
	if l.phase == next {
		return
	}
	bytes := l.charged
	c.uncharge(l, bytes)
	phaseMachine.to(&l.phase, next)
	c.charge(l, bytes)
}
