package cache

import "orbitkv/internal/wire"

// ProcessID names one process for the life of the Manager; ids are never reused.
type ProcessID uint64

// Process is a client's process, as the kernel proved it when it connected.
type Process struct {
	PID       int
	StartTime uint64 // clock ticks after boot, so that a reused pid is another process
	Command   string
	UID       int
}

type process struct {
	id       ProcessID
	facts    Process
	sessions map[SessionID]*session
}

// OpenProcess makes a process known. The caller asks once for each process (pid and start time) and watches its pidfd.
func (c *Cache) OpenProcess(facts Process) ProcessID {
	c.enter()
	defer c.leave()
	c.nextProcess++
	c.processes[c.nextProcess] = &process{id: c.nextProcess, facts: facts, sessions: map[SessionID]*session{}}
	return c.nextProcess
}

// ProcessExited says that the process's pidfd fired. The caller has first handled every frame that the process's sockets still held and
// closed its sessions: a begin that was sent but not read would otherwise end with its lease while a living worker copies. Sessions that are
// still open are closed here. A second call does nothing.
//
// A dead reader is harmless, so its part of every lease is dropped (I1: confirmed dead). A dead writer leaves its reserved slices quiet when
// it declared host or cuda, and quarantined when it declared cuda_shared (I8). Unbegun leases of its sessions are dropped; copies
// that its begin gave to living workers go on until these report.
func (c *Cache) ProcessExited(id ProcessID) {
	c.enter()
	defer c.leave()
	p := c.processes[id]
	if p == nil {
		return
	}
	delete(c.processes, id)
	for _, s := range inOrder(p.sessions) {
		if s.state == sessionOpen {
			c.closeSession(s)
		}
	}
	for _, inst := range c.everyInstance() {
		for rank := range inst.ranks {
			if inst.ranks[rank].process == p {
				c.rankDied(inst, rank)
			}
		}
	}
	for _, s := range inOrder(p.sessions) {
		c.ownerDied(s)
	}
}

// rankDied ends every copy of a rank. What is unbegun is its owner's to begin or give back.
func (c *Cache) rankDied(inst *instance, rank int) {
	c.skipReserves(inst, rank)
	end := sliceAbandoned
	if inst.ranks[rank].writer == wire.WriterCudaShared {
		end = sliceQuarantined
	}
	for _, l := range inOrder(inst.leases) {
		c.endCopy(l, rank, consumerDropped)
	}
	for _, r := range inOrder(inst.reservations) {
		c.endSlices(r, rank, end)
	}
	c.leaveRank(inst, rank)
}

// ownerDied ends what only the session itself could still start.
func (c *Cache) ownerDied(s *session) {
	for _, l := range inOrder(s.leases) {
		i := l.ownedBy(s)
		l.letGo(i)
		if l.op != nil && !l.joint {
			c.retire(l.op)
		}
		if s.broken && !l.joint { // a rank that schedules for itself copies in its own process
			c.beginForTheLiving(l, s.process)
		}
		c.endReady(l, i, consumerDropped)
	}
	for _, r := range inOrder(s.reservations) {
		c.disown(r, s)
	}
	for _, inst := range c.everyInstance() {
		c.unseat(inst, s)
	}
	if s.state == sessionClosed {
		c.endSession(s)
	}
}

// beginForTheLiving assumes that the begin of an unbegun lease was lost with its connection: ranks in other processes may be copying all of it, until
// they report or exit (I1).
func (c *Cache) beginForTheLiving(l *lease, dead *process) {
	for rank := range l.consumers {
		if p := l.instance.ranks[rank].process; p != nil && p != dead {
			c.beginConsumer(l, rank, uint32(len(l.pages)))
		}
	}
}
