package cache

import (
	"slices"

	"orbitkv/internal/wire"
)

// askJointly starts a query for all ranks, or takes part in the one that another rank started.
func (c *Cache) askJointly(s *session, inst *instance, q Query, digest uint64) (Result, error) {
	j, rank := inst.joint, s.joint.rank
	if op := j.operations[q.Operation]; op != nil {
		now := content{q.Revision, q.Request, inst.namespace, q.Group, digest}
		if err := inst.agreeOn("query", q.Operation, rank, op.content(), now); err != nil {
			return Result{}, err
		}
		c.pass(inst, rank, q.Operation)
		return c.join(op, s), nil
	}
	switch {
	case q.Operation <= j.queries[rank]:
		return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeStale}, nil
	case c.full(s):
		return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeBusy}, nil
	}
	op := newOperation(nil, inst, q, digest)
	op.joint = j
	op.asked.add(rank)
	for other := range j.queries {
		if other != rank && j.queries[other] >= q.Operation {
			op.left.add(other)
		}
	}
	j.operations[op.id] = op
	op.pay(s)
	if !c.start(op) {
		return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeBusy}, nil
	}
	c.pass(inst, rank, q.Operation)
	return c.answer(op, rank), nil
}

// content is what the rank that asked first put into a query.
func (op *operation) content() content {
	return content{op.revision, op.request, op.namespace, op.group, op.digest}
}

// pass remembers that a rank has come to a number: it skipped every older query that it did not ask for.
func (c *Cache) pass(inst *instance, rank int, number uint64) {
	j := inst.joint
	if number <= j.queries[rank] {
		return
	}
	j.queries[rank] = number
	var skipped []uint64
	for id, op := range j.operations {
		if id < number && !op.asked.has(rank) && op.waitsFor(rank) {
			skipped = append(skipped, id)
		}
	}
	slices.Sort(skipped)
	for _, id := range skipped {
		if op := j.operations[id]; op != nil {
			c.skip(op, rank)
		}
	}
}

// waitsFor says whether the query is open for a rank.
func (op *operation) waitsFor(rank int) bool {
	if op.lease != nil {
		return op.lease.consumers[rank].state == consumerReady
	}
	return !op.left.has(rank)
}

// join lets a rank take part in a query, or reads it when it takes part already.
func (c *Cache) join(op *operation, s *session) Result {
	rank, l := s.joint.rank, op.lease
	stale := Result{Operation: op.id, Revision: op.revision, Outcome: wire.OutcomeStale}
	switch {
	case !op.waitsFor(rank): // what the others did ended it for this rank, or its own session did
		return stale
	case op.asked.has(rank) && l != nil && l.owners[rank].session != s: // it asked on a connection that it has not resumed
		return stale
	case op.asked.has(rank):
		return c.answer(op, rank)
	}
	op.asked.add(rank)
	if l != nil {
		c.takeOn(l, rank, s)
		c.relabel(l)
	}
	return c.answer(op, rank)
}

// answer reads a query for one rank. A result that found nothing ends with the last rank that has it.
func (c *Cache) answer(op *operation, rank int) Result {
	result := c.result(op)
	if op.state == operationReady && op.lease == nil {
		op.left.add(rank)
		c.endIfLeft(op)
	}
	return result
}

// pollJointly reads a query that the rank takes part in.
func (c *Cache) pollJointly(s *session, number uint64, revision uint32, act func(*operation)) (Result, error) {
	j, rank := s.joint.instance.joint, s.joint.rank
	op := j.operations[number]
	result := Result{Operation: number, Revision: revision, Outcome: wire.OutcomeStale}
	takesPart := op != nil && op.revision == revision && op.asked.has(rank) && op.waitsFor(rank)
	switch {
	case takesPart && (op.lease == nil || op.lease.owners[rank].session == s):
		act(op)
		return c.answer(op, rank), nil
	case slices.Contains(s.yielded, number):
		result.Outcome = wire.OutcomeYielded
		return result, nil
	case number <= j.queries[rank] && (op == nil || revision <= op.revision):
		return result, nil
	}
	return Result{}, wire.Errorf(wire.StatusUnknown, "query %d revision %d was not submitted by rank %d", number, revision, rank)
}

// cancelJointly ends a rank's part in a query. The ranks' common answer is then decided, so that those which have not asked are skipped.
func (c *Cache) cancelJointly(s *session, number uint64) {
	rank := s.joint.rank
	op := s.joint.instance.joint.operations[number]
	switch {
	case op == nil || !op.asked.has(rank) || !op.waitsFor(rank) || op.lease != nil && op.lease.owners[rank].session != s:
		c.counters.lateReports++
	case op.lease != nil:
		c.endReady(op.lease, rank, consumerReleased)
	default:
		op.left |= ^op.asked
		op.left.add(rank)
		c.endIfLeft(op)
	}
}

// skip ends the part of a rank that did not ask, or that can no longer be told.
func (c *Cache) skip(op *operation, rank int) {
	if !op.waitsFor(rank) {
		return
	}
	if op.lease == nil {
		if op.asked.has(rank) {
			op.left |= ^op.asked // as when it gives up: the ranks' common answer is decided
		}
		op.left.add(rank)
		c.endIfLeft(op)
		return
	}
	consumerMachine.To(&op.lease.consumers[rank].state, consumerReleased)
	c.settle(op.lease)
}

// endIfLeft ends a query without a lease when no rank that asked waits for it, or that nobody may ask for any more.
func (c *Cache) endIfLeft(op *operation) {
	everyone := allOf(len(op.joint.schedulers))
	waits := op.asked &^ op.left
	if op.state == operationReady {
		waits = everyone &^ op.left
	}
	if waits == 0 {
		c.retire(op)
	}
}

// share makes a new lease the ranks': those that asked own their parts, and those that were skipped have none.
func (c *Cache) share(l *lease) {
	op := l.op
	l.owners = make([]owner, len(l.consumers))
	for rank := range l.consumers {
		switch {
		case op.left.has(rank):
			consumerMachine.To(&l.consumers[rank].state, consumerReleased)
		case op.asked.has(rank):
			c.takeOn(l, rank, op.joint.schedulers[rank])
		}
	}
}

// decide ends the parts of ranks that have not asked, because a rank that did has begun its part or given it up: by then the ranks have agreed on
// their answer, and no reference may wait for a rank that never asks.
func (c *Cache) decide(l *lease) {
	if !l.joint || l.op == nil {
		return
	}
	for rank := range l.consumers {
		if k := &l.consumers[rank]; k.state == consumerReady && !l.op.asked.has(rank) {
			consumerMachine.To(&k.state, consumerReleased)
		}
	}
}

// keepForTheOthers keeps a result that found nothing for the ranks that have not read it. It counts in no session's table.
func (c *Cache) keepForTheOthers(op *operation) {
	j := op.joint
	c.endPay(op)
	if len(j.empty) >= JointAnswersMax {
		c.counters.jointDropped++
		c.retire(j.empty[0])
	}
	j.empty = append(j.empty, op)
}

// retireJointly takes a query off the ranks' table.
func (c *Cache) retireJointly(op *operation) {
	j := op.joint
	delete(j.operations, op.id)
	if at := slices.Index(j.empty, op); at >= 0 {
		j.empty = slices.Delete(j.empty, at, at+1)
		return
	}
	c.endPay(op)
}

// endPay takes a query out of the count of the session that pays for it, and returns its permit.
func (c *Cache) endPay(op *operation) {
	c.givePermit(op, op.session)
	op.pay(nil)
}

// pay moves a query into a session's count, or out of any with nil.
func (op *operation) pay(s *session) {
	if op.session != nil {
		delete(op.session.pays, op)
	}
	if op.session = s; s != nil {
		s.pays[op] = true
	}
}

// payer is the session of the lowest rank that takes part in a query, but for one that ends.
func (op *operation) payer(but *session) *session {
	for rank, s := range op.joint.schedulers {
		if op.lease != nil {
			s = op.lease.owners[rank].session
		}
		if s != nil && s != but && op.asked.has(rank) && op.waitsFor(rank) {
			return s
		}
	}
	return nil
}
