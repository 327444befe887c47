package cache

import (
	"slices"

	"orbitkv/internal/wire"
)

// answer is what a reserve of one number was answered, kept until every storage rank asked for it or skipped it. The reservation outlives it.
type answer struct {
	number      uint64
	content     content
	pages       uint32
	grants      []wire.GrantRun
	reservation *reservation // nil when nothing was granted
	open        rankSet      // storage ranks, by position among them, that have neither asked nor skipped
}

// grantRunBytes is what one run of grants takes in memory.
const grantRunBytes = 8

// findAnswer finds the answer that another rank got for the same reserve. The answer of a reserve that the rank itself asked for, or skipped, is
// stale; a rank that stores nothing has no part in a reserve, nor has a process that has left the rank: its slices would have no writer.
func (c *Cache) findAnswer(s *session, inst *instance, q Reserve) (*answer, error) {
	rank := s.joint.rank
	storage := inst.geometry.storageIndex(rank)
	if storage < 0 {
		return nil, wire.Errorf(wire.StatusDenied, "rank %d of instance %q stores nothing; only the ranks that have a slice reserve", rank, inst.id)
	}
	if inst.ranks[rank].process != s.process {
		return nil, wire.Errorf(wire.StatusConflict, "process %d is no longer attached as rank %d of instance %q; attach it again", s.process.facts.PID, rank, inst.id)
	}
	at := slices.IndexFunc(inst.joint.answers, func(a *answer) bool { return a.number == q.Operation })
	if at < 0 {
		return nil, nil
	}
	a := inst.joint.answers[at]
	now := content{revision: q.Revision, namespace: inst.namespace, group: q.Group, digest: digestOf(q.Keys)}
	if err := inst.agreeOn("reserve", q.Operation, rank, a.content, now); err != nil {
		return nil, err
	}
	if !a.open.has(storage) {
		return nil, wire.Errorf(wire.StatusStale, "reserve %d of rank %d was answered or skipped; use a new operation", q.Operation, rank)
	}
	return a, nil
}

// skippedBySome says whether a rank that writes has passed a reserve without asking for it, or is disconnected and will not ask: its slices would
// never come.
func (inst *instance) skippedBySome(number uint64) bool {
	j := inst.joint
	return slices.ContainsFunc(inst.geometry.storage, func(rank int) bool {
		s := j.schedulers[rank]
		return j.reserves[rank] >= number || s != nil && s.state != sessionOpen
	})
}

// keepAnswer keeps what a rank was answered for the others, as far as the bounds go.
func (c *Cache) keepAnswer(s *session, inst *instance, q Reserve, got Reserved, r *reservation) {
	j, rank := inst.joint, s.joint.rank
	a := &answer{
		number: q.Operation, content: content{revision: q.Revision, namespace: inst.namespace, group: q.Group, digest: digestOf(q.Keys)},
		pages: got.Pages, grants: got.Grants, reservation: r,
	}
	for storage, other := range inst.geometry.storage {
		if other != rank && j.reserves[other] < q.Operation {
			a.open.add(storage)
		}
	}
	if a.open != 0 {
		j.answers = append(j.answers, a)
		c.answersBytes += len(a.grants) * grantRunBytes
		if r != nil {
			r.answer = a
		}
	}
	for len(j.answers) > JointAnswersMax {
		c.counters.jointDropped++
		c.dropAnswer(inst, j.answers[0])
	}
	for c.answersBytes > answersBytesMax {
		most := c.keepsMost()
		c.counters.jointDropped++
		c.dropAnswer(most, most.joint.answers[0])
	}
	c.passReserve(inst, rank, q.Operation)
}

// joinReserve hands a rank the grants that another rank was answered with: its slices of the same pages.
func (c *Cache) joinReserve(a *answer, s *session) Reserved {
	inst, r := s.joint.instance, a.reservation
	storage := inst.geometry.storageIndex(s.joint.rank)
	got := Reserved{Operation: a.number, Revision: a.content.revision, Pages: a.pages, Grants: a.grants}
	if r != nil {
		r.own(storage, s)
		got.Reservation = r.id
		got.Runs = c.runsOf(r.namespace, r.pages) // every page has a slice of this rank reserved, so that none has gone
	}
	a.open.remove(storage)
	if a.open == 0 {
		c.dropAnswer(inst, a)
	}
	c.passReserve(inst, s.joint.rank, a.number)
	return got
}

// passReserve remembers that a rank has come to a number: it skipped every older reserve that it did not ask for.
func (c *Cache) passReserve(inst *instance, rank int, number uint64) {
	j := inst.joint
	if number <= j.reserves[rank] {
		return
	}
	j.reserves[rank] = number
	for _, a := range slices.Clone(j.answers) {
		if a.number < number {
			c.skipReserve(inst, a, rank)
		}
	}
}

// skipReserves ends what a rank has not asked for of every reserve.
func (c *Cache) skipReserves(inst *instance, rank int) {
	if inst.joint == nil {
		return
	}
	for _, a := range slices.Clone(inst.joint.answers) {
		c.skipReserve(inst, a, rank)
	}
}

// skipReserve abandons the slices of a rank that did not ask for them: they were never handed to it, so that no copy runs and none can start (I2).
func (c *Cache) skipReserve(inst *instance, a *answer, rank int) {
	storage := inst.geometry.storageIndex(rank)
	if storage < 0 || !a.open.has(storage) {
		return
	}
	a.open.remove(storage)
	if a.open == 0 {
		c.dropAnswer(inst, a)
	}
	if a.reservation != nil {
		c.endSlicesAt(a.reservation, storage, sliceAbandoned)
	}
}

// dropAnswer forgets an answer; who has not asked for it is skipped.
func (c *Cache) dropAnswer(inst *instance, a *answer) {
	j := inst.joint
	at := slices.Index(j.answers, a)
	j.answers = slices.Delete(j.answers, at, at+1)
	c.answersBytes -= len(a.grants) * grantRunBytes
	open := a.open
	a.open = 0
	if a.reservation == nil {
		return
	}
	a.reservation.answer = nil
	for storage := range inst.geometry.storage {
		if open.has(storage) {
			c.endSlicesAt(a.reservation, storage, sliceAbandoned)
		}
	}
}

// handsOut says whether a session schedules for one rank and so hands out that rank's slices of a reservation, which is nil when it has ended.
func (s *session) handsOut(r *reservation) bool {
	return s.joint.instance != nil && (r == nil || r.joint && slices.Contains(r.owners, s))
}

// keepsMost is the instance whose kept answers hold the most grants: past the bound of all together it gives up, not the one that asks.
func (c *Cache) keepsMost() (most *instance) {
	held := 0
	for _, inst := range inOrder(c.instances) {
		if inst.joint == nil {
			continue
		}
		bytes := 0
		for _, a := range inst.joint.answers {
			bytes += len(a.grants) * grantRunBytes
		}
		if bytes > held {
			most, held = inst, bytes
		}
	}
	return most
}
