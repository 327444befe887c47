package cache

// joint checks what ranks that schedule together share: no reference is held for a part that was skipped, every open query has a rank that asked,
// and each is charged once (I1, I4).
func (k *checker) joint() {
	c := k.c
	for _, s := range c.sessions {
		for op := range s.pays {
			if op.session != s || op.joint == nil || op.state == operationRetired {
				k.add(4, "session %d pays for query %d, which it does not have", s.id, op.id)
			}
		}
	}
	for _, l := range c.leases {
		if l.joint {
			k.shared(l)
		}
	}
	bytes := 0
	for _, inst := range c.instances {
		if inst.joint != nil {
			bytes += k.together(inst)
		}
	}
	if bytes != c.answersBytes {
		k.add(0, "answers of reserves keep %d bytes of grants, the counter says %d", bytes, c.answersBytes)
	}
}

// shared checks the parts of one lease.
func (k *checker) shared(l *lease) {
	decided, waiting := false, 0
	for rank := range l.consumers {
		ready, asked := l.consumers[rank].state == consumerReady, l.op != nil && l.op.asked.has(rank)
		switch {
		case ready && asked && l.owners[rank].session == nil:
			k.add(1, "lease %#x: rank %d has an unbegun part that no session can begin", l.id, rank)
		case ready && !asked:
			waiting++
		case asked && !ready:
			decided = true
		}
	}
	if waiting > 0 && (decided || l.op == nil) {
		k.add(1, "lease %#x keeps the parts of %d ranks that have not asked, although a rank that did has begun or given back its own", l.id, waiting)
	}
}

// together checks the tables of one instance and returns the bytes of the grants that it keeps.
func (k *checker) together(inst *instance) (bytes int) {
	j := inst.joint
	if j.first() < 0 {
		k.add(0, "instance %q has no scheduler and keeps what ranks share", inst.id)
	}
	for rank, s := range j.schedulers {
		if s != nil && (s.joint.instance != inst || s.joint.rank != rank || k.c.sessions[s.id] != s) {
			k.add(0, "session %d schedules for rank %d of instance %q and does not know it", s.id, rank, inst.id)
		}
	}
	for _, op := range j.operations {
		k.open(inst, op)
	}
	for _, op := range j.empty {
		if j.operations[op.id] != op || op.state != operationReady || op.lease != nil || op.session != nil {
			k.add(4, "query %d of instance %q is kept as one that found nothing", op.id, inst.id)
		}
	}
	if len(j.empty) > JointAnswersMax || len(j.answers) > JointAnswersMax {
		k.add(0, "instance %q keeps %d empty results and %d answers, the most is %d", inst.id, len(j.empty), len(j.answers), JointAnswersMax)
	}
	for _, a := range j.answers {
		bytes += len(a.grants) * grantRunBytes
		k.answer(inst, a)
	}
	return bytes
}

// open checks one query: some rank asked and can still be told, and those that may still ask have not passed it.
func (k *checker) open(inst *instance, op *operation) {
	empty := op.state == operationReady && op.lease == nil
	askers := 0
	for rank, passed := range inst.joint.queries {
		waits := op.waitsFor(rank)
		switch {
		case op.asked.has(rank) && waits:
			askers++
		case !op.asked.has(rank) && waits && passed >= op.id:
			k.add(1, "query %d of instance %q waits for rank %d, which has come to %d", op.id, inst.id, rank, passed)
		}
	}
	if op.asked == 0 || !empty && askers == 0 {
		k.add(1, "query %d of instance %q is open and no rank that asked waits for it", op.id, inst.id)
	}
	if !empty && (op.session == nil || !op.session.pays[op]) {
		k.add(4, "query %d of instance %q is in no session's table", op.id, inst.id)
	}
}

// answer checks that every rank that may still ask for a reserve has its slices, whole, and that no one can have handed them out.
func (k *checker) answer(inst *instance, a *answer) {
	r := a.reservation
	if a.open == 0 || r != nil && (r.answer != a || k.c.reservations[r.id] != r) {
		k.add(2, "the answer of reserve %d of instance %q is kept for nobody", a.number, inst.id)
	}
	for storage, rank := range inst.geometry.storage {
		if !a.open.has(storage) {
			continue
		}
		if inst.joint.reserves[rank] >= a.number {
			k.add(2, "reserve %d of instance %q waits for rank %d, which has come to %d", a.number, inst.id, rank, inst.joint.reserves[rank])
		}
		if r != nil && (r.openBy[storage] != len(r.pages) || r.owners[storage] != nil) {
			k.add(2, "reserve %d of instance %q waits for rank %d, whose slices were touched", a.number, inst.id, rank)
		}
	}
}
