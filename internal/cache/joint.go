package cache

import (
	"maps"
	"slices"

	"orbitkv/internal/wire"
)

// Bounds of what an instance keeps for ranks that have not asked yet; past them the oldest is dropped and those ranks are skipped.
const (
	JointAnswersMax  = 64       // results that found nothing, and as many answers of reserves, of one instance
	answersBytesMax  = 16 << 20 // of the grants that all kept answers of reserves hold
	replacedEpochMax = 64       // epochs of an instance that a rank may ask for late
)

// rankSet is a set of ranks by position.
type rankSet uint64

func (s rankSet) has(rank int) bool { return s&(1<<rank) != 0 }
func (s *rankSet) add(rank int)     { *s |= 1 << rank }
func (s *rankSet) remove(rank int)  { *s &^= 1 << rank }

// allOf is the set of the first n ranks.
func allOf(n int) rankSet { return ^rankSet(0) >> (wire.RanksMax - n) }

// joint is what the ranks of an instance share that schedule it together: each rank has a scheduler session, and operations of one number are one
// operation. The ranks take the number from the engine's own order of calls, which is the same on all of them, so that a rank that did not ask is
// known by the next number that it asks for: it skipped the operation, and nothing waits for it any more.
type joint struct {
	schedulers []*session // by rank; nil where none is registered; a closed one keeps its place while its process lives
	queries    []uint64   // by rank: the largest number that it asked for, over all its sessions
	reserves   []uint64   // the same of reserves
	operations map[uint64]*operation
	empty      []*operation // of these, results that found nothing, oldest first; they count in no session's table
	answers    []*answer    // of reserves that a storage rank may still ask for, oldest first
	replaced   []uint64     // the last epochs that the instance had before
}

// jointSeat is a session's place as the scheduler of one rank.
type jointSeat struct {
	instance *instance // nil when it has none
	rank     int
}

// content is what the ranks must say alike of an operation of one number.
type content struct {
	revision  uint32
	request   string // of a query
	namespace *namespace
	group     uint16
	digest    uint64 // of the keys
}

// agreeOn compares what a rank says now with what the rank that asked first said. The error names the first field that differs.
func (inst *instance) agreeOn(kind string, number uint64, rank int, first, now content) error {
	field := ""
	switch {
	case first.revision != now.revision:
		field = "revision"
	case first.request != now.request:
		field = "request"
	case first.namespace != now.namespace:
		field = "namespace"
	case first.group != now.group:
		field = "group"
	case first.digest != now.digest:
		field = "list of keys"
	default:
		return nil
	}
	return wire.Errorf(wire.StatusConflict, "%s %d of instance %q has another %s on rank %d than on the rank that asked first; every rank must take its numbers from the same order of calls",
		kind, number, inst.id, field, rank)
}

// scheduled says whether any session schedules the instance.
func (inst *instance) scheduled() bool { return inst.scheduler != nil || inst.joint != nil }

// scheduledBy says whether a session schedules the instance or one of its ranks.
func (inst *instance) scheduledBy(s *session) bool {
	return inst.scheduler == s || inst.joint != nil && slices.Contains(inst.joint.schedulers, s)
}

// schedulesWhole says whether a session is the only scheduler of an instance.
func (c *Cache) schedulesWhole(s *session) bool {
	for _, inst := range c.instances {
		if inst.scheduler == s {
			return true
		}
	}
	return false
}

// registerWhole makes a session the scheduler of all ranks.
func (c *Cache) registerWhole(inst *instance, s *session) error {
	if s.joint.instance != nil {
		return s.seated()
	}
	if j := inst.joint; j != nil {
		return wire.Errorf(wire.StatusConflict, "the ranks of instance %q schedule it together, with rank %d in process %d; register one rank, from its process",
			inst.id, j.first(), j.schedulers[j.first()].process.facts.PID)
	}
	before := inst.scheduler
	if err := mayReplace(inst, before, s); err != nil {
		return err
	}
	inst.scheduler = s
	c.endIfIdle(before)
	return nil
}

// registerRank makes a session the scheduler of one rank. It must run in the process that is attached as that rank: the two end together.
func (c *Cache) registerRank(inst *instance, s *session, rank int) error {
	switch {
	case inst.scheduler != nil:
		return wire.Errorf(wire.StatusConflict, "instance %q is scheduled as a whole by process %d (%s); register it for all ranks or use another instance id",
			inst.id, inst.scheduler.process.facts.PID, inst.scheduler.process.facts.Command)
	case rank >= len(inst.ranks) || inst.ranks[rank].process != s.process:
		return wire.Errorf(wire.StatusConflict, "process %d is not attached as rank %d of instance %q; attach it from the process that schedules for it",
			s.process.facts.PID, rank, inst.id)
	case s.joint.instance != nil && (s.joint.instance != inst || s.joint.rank != rank):
		return s.seated()
	case c.schedulesWhole(s):
		return wire.Errorf(wire.StatusConflict, "this session schedules another instance; open a session for rank %d of instance %q", rank, inst.id)
	}
	if inst.joint == nil {
		world := len(inst.ranks)
		inst.joint = &joint{
			schedulers: make([]*session, world), queries: make([]uint64, world), reserves: make([]uint64, world), operations: map[uint64]*operation{},
		}
	}
	before := inst.joint.schedulers[rank]
	if err := mayReplace(inst, before, s); err != nil {
		return err
	}
	inst.seat(s, rank)
	c.endIfIdle(before)
	return nil
}

// mayReplace says whether a session may take the place of another: it reconnects, or nobody is there.
func mayReplace(inst *instance, before, s *session) error {
	if before != nil && before != s && (before.process != s.process || before.state == sessionOpen) {
		return wire.Errorf(wire.StatusConflict, "instance %q is scheduled by process %d (%s), which lives", inst.id,
			before.process.facts.PID, before.process.facts.Command)
	}
	return nil
}

func (s *session) seated() error {
	return wire.Errorf(wire.StatusConflict, "this session schedules for rank %d of instance %q; open another session", s.joint.rank, s.joint.instance.id)
}

// first is the lowest rank that has a scheduler.
func (j *joint) first() int {
	return slices.IndexFunc(j.schedulers, func(s *session) bool { return s != nil })
}

// seat puts a session in a rank's place.
func (inst *instance) seat(s *session, rank int) {
	inst.joint.schedulers[rank] = s
	s.joint.instance, s.joint.rank = inst, rank
}

// reseat moves what a session schedules to the one that resumes it.
func (inst *instance) reseat(old, s *session) {
	if inst.scheduler == old {
		inst.scheduler = s
	}
	if inst.joint != nil && inst.scheduledBy(old) {
		inst.seat(s, old.joint.rank)
	}
}

// mayReseat says whether a session may take over what another one schedules.
func (c *Cache) mayReseat(old, s *session) error {
	switch {
	case s.joint.instance == nil && (old.joint.instance == nil || !c.schedulesWhole(s)):
		return nil
	case s.joint.instance == nil:
		return wire.Errorf(wire.StatusConflict, "the old session schedules for rank %d of instance %q, this one another instance; resume before registering elsewhere",
			old.joint.rank, old.joint.instance.id)
	case old.joint.instance == s.joint.instance && old.joint.rank == s.joint.rank || old.joint.instance == nil && !c.schedulesWhole(old):
		return nil
	}
	return s.seated()
}

// unseat takes a session off what it schedules of an instance. The instance may then be forgotten, and with the last rank's scheduler nothing is
// kept for the others.
func (c *Cache) unseat(inst *instance, s *session) {
	if !inst.scheduledBy(s) {
		return
	}
	if inst.scheduler == s {
		inst.scheduler = nil
	} else {
		inst.joint.schedulers[s.joint.rank] = nil
		s.joint.instance = nil
		s.handOver()
		if inst.joint.first() < 0 {
			c.dropKept(inst)
			inst.joint = nil
		}
	}
	c.removeIfIdle(inst)
}

// handOver has the queries that a session pays for counted by another rank that asked.
func (s *session) handOver() {
	for _, op := range slices.Collect(maps.Keys(s.pays)) {
		op.pay(op.payer(s))
	}
}

// leaveOpen ends what a rank's scheduler session, which closes or leaves, can use no more: what it did not ask for is skipped, and queries that
// have leased nothing are given up. What it asked for and may use stays (I2).
func (c *Cache) leaveOpen(inst *instance, rank int) {
	for _, op := range inOrder(inst.joint.operations) {
		if op.lease == nil || !op.asked.has(rank) {
			c.skip(op, rank)
		}
	}
	c.skipReserves(inst, rank)
}

// moveOn ends what the ranks can ask for no more when the instance's epoch is replaced.
func (c *Cache) moveOn(inst *instance) {
	j := inst.joint
	if len(j.replaced) >= replacedEpochMax {
		j.replaced = slices.Delete(j.replaced, 0, 1)
	}
	j.replaced = append(j.replaced, inst.epoch)
	for _, op := range inOrder(j.operations) {
		if op.lease != nil {
			c.decide(op.lease)
			c.settle(op.lease)
		}
	}
	c.dropKept(inst)
}

// dropKept forgets what an instance keeps for ranks that have not asked: they are skipped.
func (c *Cache) dropKept(inst *instance) {
	for len(inst.joint.empty) > 0 {
		c.retire(inst.joint.empty[0])
	}
	for len(inst.joint.answers) > 0 {
		c.dropAnswer(inst, inst.joint.answers[0])
	}
}

// rankStatus adds what a rank's scheduler asked for.
func (j *joint) rankStatus(rank int, status *RankStatus) {
	if s := j.schedulers[rank]; s != nil {
		status.SchedulerPID = s.process.facts.PID
	}
	status.LastQuery, status.LastReserve = j.queries[rank], j.reserves[rank]
}
