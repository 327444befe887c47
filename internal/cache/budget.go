package cache

// budget is the query byte budget: what leases, prefixes that are being read and hints hold, by phase. Each charges the padded footprint of its pages
// once, never once a rank, to the global and to its instance's budget.
type budget struct {
	globalMax   uint64
	instanceMax uint64
	byPhase     [phases]uint64
}

// global is what counts against the global budget: a stalled session must not starve the others.
func (b *budget) global() uint64 {
	return b.byPhase[phaseReady] + b.byPhase[phaseRestoring] + b.byPhase[phasePreparing] + b.byPhase[phaseDraining] + b.byPhase[phaseWarming]
}

// inBudget is what counts against an instance's own budget: stalled bytes still do.
func (inst *instance) inBudget() uint64 {
	return inst.charged[phaseReady] + inst.charged[phaseRestoring] + inst.charged[phaseStalled] + inst.charged[phasePreparing] +
		inst.charged[phaseDraining] + inst.charged[phaseWarming]
}

// demandMax is the most bytes that one query may ask for.
func (b *budget) demandMax() uint64 { return min(b.globalMax, b.instanceMax) }

// fitsGlobal and fitsInstance say whether bytes more can be charged now. What returns from stalled may pass the global maximum for a
// while, so that neither subtracts.
func (b *budget) fitsGlobal(bytes uint64) bool { return b.global()+bytes <= b.globalMax }

func (b *budget) fitsInstance(inst *instance, bytes uint64) bool {
	return inst.inBudget()+bytes <= b.instanceMax
}

// charge is bytes that one owner holds in the budgets of its phase.
type charge struct {
	instance *instance
	phase    phase
	charged  uint64 // bytes
}

// charge adds bytes to the budgets of an owner's phase.
func (c *Cache) charge(o *charge, bytes uint64) {
	o.charged += bytes
	o.instance.charged[o.phase] += bytes
	c.budget.byPhase[o.phase] += bytes
}

// uncharge returns bytes of an owner: a reference dropped, or a read ended (I4).
func (c *Cache) uncharge(o *charge, bytes uint64) {
	if o.charged < bytes {
		panic("cache: an owner returned more bytes than it was charged")
	}
	o.charged -= bytes
	o.instance.charged[o.phase] -= bytes
	c.budget.byPhase[o.phase] -= bytes
	c.bytesReturned = c.bytesReturned || bytes > 0
}

// setPhase moves an owner and its bytes to another phase.
func (c *Cache) setPhase(o *charge, next phase) {
	if o.phase == next {
		return
	}
	bytes := o.charged
	c.uncharge(o, bytes)
	phaseMachine.To(&o.phase, next)
	c.charge(o, bytes)
}
