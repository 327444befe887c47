package cache

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Query asks for the longest contiguous prefix of keys. Keys are read during the call only; the cache copies what it must keep.
type Query struct {
	Operation uint64 // increasing within the session
	Revision  uint32 // starts at 1
	Namespace uint32
	Group     uint16
	Instance  string // ignored for a private namespace, whose handle says it
	Request   string
	Keys      []wire.Key
}

// Result is the state of a query. With OutcomeReady the lease covers Pages leading pages, whose places are Runs, part by part of the page.
type Result struct {
	Operation uint64
	Revision  uint32
	Outcome   wire.Outcome
	Cut       bool // the demand was cut to the longest prefix that fits the budget
	Pages     uint32
	NotMapped uint32        // pages found but left out because a rank has not mapped their arena
	Lease     uint64        // zero when no page is leased
	Expected  time.Duration // with OutcomePreparing: until every page is there, zero when that is not known
	Missing   uint32        // with OutcomePreparing: pages that are not there yet
	Runs      []wire.Run
}

// operation is one query that was admitted.
type operation struct {
	id        uint64
	revision  uint32
	state     operationState
	session   *session // whose table it counts in; nil for a result that found nothing and that other ranks may ask for
	joint     *joint   // nil when one session schedules the instance
	asked     rankSet  // of a joint one: ranks that asked
	left      rankSet  // of a joint one, until it has a lease: ranks that have their answer, gave it up or were skipped
	instance  *instance
	namespace *namespace
	group     uint16
	request   string
	since     time.Time  // of its submission
	digest    uint64     // of the keys, to tell a repetition from another query
	keys      []wire.Key // until it is ready
	cut       bool
	kept      bool // it waited, so that its end is kept until it is polled
	notMapped uint32
	lease     *lease

	preparation *preparation // of one that read from the tier
}

// SubmitQuery starts a query, or reads it when it is a repetition. The outcomes are Ready, Waiting (a notice follows), Busy (a table
// is full; nothing is kept) and Stale (a newer revision or a retired operation). A higher revision of an outstanding operation replaces it.
//
// StatusUnknown: the session does not schedule that instance or namespace. StatusStale: the namespace's epoch was replaced.
// StatusConflict: the same operation with another content. StatusTooLarge: more than OperationKeysMax keys.
func (c *Cache) SubmitQuery(id SessionID, q Query) (Result, error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return Result{}, err
	}
	inst, err := c.target(s, q.Instance, q.Namespace)
	if err != nil {
		return Result{}, err
	}
	if err := checkOperation("query", q.Revision, len(q.Keys)); err != nil {
		return Result{}, err
	}
	digest := digestOf(q.Keys)
	c.demandEnds(inst, q.Request)
	if inst.joint != nil {
		return c.askJointly(s, inst, q, digest)
	}
	if op := s.operations[q.Operation]; op != nil {
		same := op.instance == inst && op.namespace == inst.namespace && op.group == q.Group && op.request == q.Request
		switch {
		case q.Revision < op.revision:
			return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeStale}, nil
		case !same || q.Revision == op.revision && op.digest != digest:
			return Result{}, wire.Errorf(wire.StatusConflict, "query %d revision %d differs from the one submitted before; use a new operation", q.Operation, q.Revision)
		case q.Revision == op.revision:
			return c.result(op), nil
		}
		c.cancel(op)
	} else if q.Operation <= s.retired {
		return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeStale}, nil
	}
	if c.full(s) {
		return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeBusy}, nil
	}
	op := newOperation(s, inst, q, digest)
	s.operations[op.id] = op
	if !c.start(op) {
		return Result{Operation: q.Operation, Revision: q.Revision, Outcome: wire.OutcomeBusy}, nil
	}
	return c.result(op), nil
}

// full says whether a session, or all together, have as many queries outstanding as they may.
func (c *Cache) full(s *session) bool {
	if !c.tableFull(s) {
		return false
	}
	c.counters.busy++
	return true
}

// tableFull says so without counting it: a hint that finds no permit is skipped.
func (c *Cache) tableFull(s *session) bool {
	return len(s.operations)+len(s.pays)+s.draining+s.hints >= c.config.SessionOperations || c.operations >= c.config.GlobalOperations
}

func newOperation(s *session, inst *instance, q Query, digest uint64) *operation {
	return &operation{
		id: q.Operation, revision: q.Revision, session: s, instance: inst, namespace: inst.namespace, group: q.Group,
		request: q.Request, digest: digest, keys: q.Keys,
	}
}

// start admits a query that is in its tables, and serves it at once when the budget allows. When it would have to wait and there is no room for
// its keys it ends, and start says false.
func (c *Cache) start(op *operation) bool {
	c.operations++
	op.since = c.now
	c.waiting = append(c.waiting, op)
	c.serveWaiting()
	return op.state != operationWaiting && op.state != operationPreparing || c.keepWaiting(op)
}

// keepWaiting copies the keys of a query that waits, for budget or for the tier. When those of all waiting queries leave it no room it ends at once, and
// says false.
func (c *Cache) keepWaiting(op *operation) bool {
	if bytes := len(op.keys) * wire.KeyBytes; c.waitingBytes+bytes > waitingBytesMax {
		c.counters.busy++
		s := op.session
		retired := s.retired
		c.retire(op)
		s.retired = retired // as if it had never come
		return false
	}
	op.keys = slices.Clone(op.keys)
	op.kept = true
	c.waitingBytes += len(op.keys) * wire.KeyBytes
	if op.state == operationWaiting {
		c.counters.budgetWaits++
	}
	return true
}

// dropKeys forgets the keys of a query that waits no longer.
func (c *Cache) dropKeys(op *operation) {
	if op.kept {
		c.waitingBytes -= len(op.keys) * wire.KeyBytes
	}
	op.keys = nil
}

// PollQuery reads a query. It never starts or restarts work. StatusUnknown: the operation was never submitted.
func (c *Cache) PollQuery(id SessionID, number uint64, revision uint32) (Result, error) {
	return c.pollQuery(id, number, revision, func(*operation) {})
}

// StopQuery takes what is there: a query that waits or is being read is ready at once, with the leading pages that are complete; no new read starts for
// it, and those that run drain (I3). Then it reads the query as PollQuery does. Where the ranks schedule together, one speaks for all.
func (c *Cache) StopQuery(id SessionID, number uint64, revision uint32) (Result, error) {
	return c.pollQuery(id, number, revision, c.stopReading)
}

// pollQuery reads a query after act has had it, unless it is another revision.
func (c *Cache) pollQuery(id SessionID, number uint64, revision uint32, act func(*operation)) (Result, error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return Result{}, err
	}
	op := s.operations[number]
	if op == nil && s.joint.instance != nil {
		return c.pollJointly(s, number, revision, act)
	}
	switch {
	case op == nil && slices.Contains(s.yielded, number):
		return Result{Operation: number, Revision: revision, Outcome: wire.OutcomeYielded}, nil
	case op == nil && number <= s.retired, op != nil && revision < op.revision:
		return Result{Operation: number, Revision: revision, Outcome: wire.OutcomeStale}, nil
	case op == nil || revision > op.revision:
		return Result{}, wire.Errorf(wire.StatusUnknown, "query %d revision %d was not submitted", number, revision)
	}
	act(op)
	result := c.result(op)
	if op.state == operationReady && op.lease == nil {
		c.retire(op)
	}
	return result, nil
}

// CancelQuery drops interest in a query; what it leased and nobody began is released. A query that ended meanwhile is a harmless race.
func (c *Cache) CancelQuery(id SessionID, operation uint64, revision uint32) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	op := s.operations[operation]
	if op == nil && s.joint.instance != nil {
		c.cancelJointly(s, operation)
		return nil
	}
	if op == nil || revision < op.revision {
		c.counters.lateReports++
		return nil
	}
	c.cancel(op)
	return nil
}

// target finds the instance that a session may query or publish for under a namespace handle.
func (c *Cache) target(s *session, instanceID string, handle uint32) (*instance, error) {
	if s.private != nil && s.private.namespace.handle == handle {
		return s.private, nil
	}
	inst := c.instances[instanceID]
	if inst == nil || !inst.scheduledBy(s) {
		return nil, wire.Errorf(wire.StatusUnknown, "this session does not schedule instance %q; register it first", instanceID)
	}
	if inst.namespace.handle != handle {
		if handle > 0 && handle <= c.nextHandle {
			return nil, wire.Errorf(wire.StatusStale, "namespace %d of instance %q was replaced by %d; use the new epoch's handle", handle, instanceID, inst.namespace.handle)
		}
		return nil, wire.Errorf(wire.StatusUnknown, "namespace %d does not exist; register instance %q again", handle, instanceID)
	}
	return inst, nil
}

func checkOperation(kind string, revision uint32, keys int) error {
	if revision == 0 {
		return wire.Errorf(wire.StatusMalformed, "a %s has revision 0; revisions start at 1", kind)
	}
	if keys > wire.OperationKeysMax {
		return wire.Errorf(wire.StatusTooLarge, "a %s has %d keys, the most is %d; ask for a shorter prefix", kind, keys, wire.OperationKeysMax)
	}
	return nil
}

// serveWaiting admits waiting queries in order of arrival. One that does not fit its instance's budget holds up the later ones of that
// instance; one that does not fit the global budget holds up all.
func (c *Cache) serveWaiting() {
	c.bytesReturned = false
	if len(c.waiting) == 0 {
		return
	}
	var blocked map[*instance]bool
	left, looked := c.waiting[:0], 0
	full := false
	for _, op := range c.waiting {
		if op.state != operationWaiting {
			continue
		}
		keys, bytes := c.demand(op)
		switch {
		case full || blocked[op.instance]:
		case looked > 0 && looked+keys > serveKeys:
			full = true // the next call goes on, so that none holds the mutex for long
			c.bytesReturned = true
		case !c.budget.fitsInstance(op.instance, bytes):
			if blocked == nil {
				blocked = map[*instance]bool{}
			}
			blocked[op.instance] = true
		case !c.budget.fitsGlobal(bytes):
			full = true
		default:
			looked += keys
			c.serve(op, keys)
			continue
		}
		left = append(left, op)
	}
	clear(c.waiting[len(left):])
	c.waiting = left
}

// demand is how many leading keys of a query fit the budget at all, and the bytes that they would charge: once an operation, never once a rank.
func (c *Cache) demand(op *operation) (keys int, bytes uint64) {
	pageBytes := op.namespace.geometry.pageBytes
	keys = int(min(uint64(len(op.keys)), c.budget.demandMax()/pageBytes))
	return keys, uint64(keys) * pageBytes
}

// serve looks the keys up and leases the contiguous pages that every rank can read; where more of them can be read from the tier, it prepares
// these. The demand fits the budget; what is charged is what was found.
func (c *Cache) serve(op *operation, keys int) {
	inst := op.instance
	found := index.FindRun(c.index, op.namespace.handle, op.group, op.keys[:keys], c.scratch.found[:0]) // I9
	c.scratch.found = found[:0]
	leased := 0
	for leased < len(found) && c.usable(found[leased], &inst.usable) {
		leased++
	}
	op.cut = keys < len(op.keys)
	if c.config.Tier != nil && !inst.private && leased == len(found) {
		if extent := c.extent(op, op.keys[:keys], leased); extent > leased {
			c.prepare(op, found, extent)
			return
		}
	}
	op.notMapped = uint32(len(found) - leased)
	for _, h := range found[:leased] {
		c.index.Hold(h)
	}
	c.conclude(op, slices.Clone(found[:leased]), nil)
}

// conclude makes a query ready with these pages, whose references become its lease's. slow says by position which of them came from the tier; nil is
// none.
func (c *Cache) conclude(op *operation, pages []index.Handle, slow []bool) {
	if !op.instance.private {
		c.countQuery(op, len(pages), slow)
		c.countUses(op)
		c.promote(op.namespace, pages, slow)
		if c.config.Tier != nil && len(pages) > 0 {
			c.config.Tier.Demanded(op.namespace.stored, op.group, op.keys[:len(pages)])
		}
	}
	c.dropKeys(op)
	operationMachine.To(&op.state, operationReady)
	if len(pages) > 0 {
		op.lease = c.newLease(op, pages)
	} else if op.joint != nil {
		c.keepForTheOthers(op)
	} else if !op.kept {
		c.retire(op)
	}
	if op.kept {
		c.tell(op)
	}
}

// tell pushes the notice that a query changed to every session that waits for it.
func (c *Cache) tell(op *operation) {
	notice := Notice{Kind: NoticeQuery, ID: op.id, Revision: op.revision}
	if op.joint == nil {
		c.push(op.session, notice)
		return
	}
	for rank, s := range op.joint.schedulers {
		if op.asked.has(rank) && !op.left.has(rank) {
			c.push(s, notice)
		}
	}
}

func (c *Cache) countQuery(op *operation, leased int, slow []bool) {
	c.counters.hits += uint64(leased)
	for _, fromTier := range slow {
		if fromTier {
			c.counters.tierHits++
		}
	}
	c.counters.misses += uint64(len(op.keys) - leased)
	c.counters.notMapped += uint64(op.notMapped)
	if op.cut {
		c.counters.budgetCuts++
	}
}

// result reads an operation.
func (c *Cache) result(op *operation) Result {
	result := Result{Operation: op.id, Revision: op.revision, Outcome: wire.OutcomeReady, Cut: op.cut, NotMapped: op.notMapped}
	switch {
	case op.state == operationWaiting:
		result.Outcome = wire.OutcomeWaiting
	case op.state == operationPreparing:
		result.Outcome = wire.OutcomePreparing
		result.Expected, result.Missing = c.expected(op.preparation)
	case op.lease != nil:
		result.Lease = op.lease.id
		result.Pages = uint32(len(op.lease.pages))
		result.Runs = c.runsOf(op.namespace, op.lease.pages)
	}
	return result
}

// runsOf lists where pages lie, part by part, adjacent ones as one run.
func (c *Cache) runsOf(ns *namespace, pages []index.Handle) []wire.Run {
	runs := c.scratch.runs[:0]
	for part, bytes := range ns.geometry.partBytes {
		for _, h := range pages {
			runs = wire.AppendRun(runs, uint16(part), c.part(h, part), bytes)
		}
	}
	c.scratch.runs = runs[:0]
	return slices.Clone(runs)
}

// cancel ends a query: its unbegun lease is released.
func (c *Cache) cancel(op *operation) {
	if op.lease == nil {
		c.retire(op)
		return
	}
	c.endReady(op.lease, 0, consumerReleased)
}

// retire takes a query off its table. Its id cannot come back.
func (c *Cache) retire(op *operation) {
	c.giveUp(op)
	operationMachine.To(&op.state, operationRetired)
	if op.lease != nil {
		op.lease.op = nil
	}
	c.dropKeys(op)
	if op.joint != nil {
		c.retireJointly(op)
		return
	}
	s := op.session
	delete(s.operations, op.id)
	s.retired = max(s.retired, op.id)
	c.givePermit(op, s)
}

// dropWaiting retires the queries of an instance whose namespace goes and that wait, for budget or for the tier, and tells who waits. Its hints end.
func (c *Cache) dropWaiting(inst *instance) {
	c.stopHints(hintDropped, func(h *hint) bool { return h.instance == inst })
	for _, op := range c.waiting {
		if op.state == operationWaiting && op.instance == inst {
			c.retire(op)
			c.tell(op)
		}
	}
	for _, p := range slices.Clone(c.preparations) {
		if op := p.op; op != nil && op.instance == inst {
			c.retire(op)
			c.tell(op)
		}
	}
}

// rememberYield keeps the ids of the last queries that ended by a yielded lease, so that a poll says so.
func (s *session) rememberYield(operation uint64, most int) {
	if len(s.yielded) >= most {
		s.yielded = slices.Delete(s.yielded, 0, 1)
	}
	s.yielded = append(s.yielded, operation)
}

func digestOf(keys []wire.Key) uint64 {
	digest := uint64(len(keys)) + 1
	for i := range keys {
		for at := 0; at < wire.KeyBytes; at += 16 {
			hi, lo := bits.Mul64(binary.LittleEndian.Uint64(keys[i][at:])^digest, binary.LittleEndian.Uint64(keys[i][at+8:])^0x9e3779b97f4a7c15)
			digest = hi ^ lo ^ uint64(i)
		}
	}
	return digest
}
