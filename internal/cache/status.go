package cache

import "time"

// Status is who holds what, for people and for the status page.
type Status struct {
	Arenas    []ArenaStatus    `json:"arenas"`
	Instances []InstanceStatus `json:"instances"`
	Sessions  []SessionStatus  `json:"sessions"`
	Hints     []HintStatus     `json:"hints"` // that read or drain
	Stats     Stats            `json:"stats"`
}

// ArenaStatus is one arena that is lent.
type ArenaStatus struct {
	Arena            uint16 `json:"arena"`
	Node             int    `json:"numa_node"` // -1 when not placed
	Bytes            uint64 `json:"bytes"`
	FreeBytes        uint64 `json:"free_bytes"`
	LargestFreeBytes uint64 `json:"largest_free_bytes"`
	FreeExtents      int    `json:"free_extents"`
}

// InstanceStatus is one engine replica.
type InstanceStatus struct {
	Instance       string            `json:"instance"`
	State          string            `json:"state"`
	Facts          map[string]string `json:"facts"`
	Namespace      uint32            `json:"namespace"` // zero until sealed
	NamespacePages uint64            `json:"namespace_pages"`
	Epoch          uint64            `json:"epoch"`
	PageBytes      uint64            `json:"page_bytes"`
	SchedulerPID   int               `json:"scheduler_pid"` // zero when none registered, and when each rank has its own
	Joint          *JointStatus      `json:"joint,omitempty"`
	Ranks          []RankStatus      `json:"ranks"`
	Leases         int               `json:"leases"`
	Reservations   int               `json:"reservations"`
	ChargedBytes   map[string]uint64 `json:"charged_bytes"` // by phase
}

// JointStatus is what the ranks of an instance share that schedule it together.
type JointStatus struct {
	Operations int `json:"operations"` // queries that are open
	Empty      int `json:"empty"`      // of these: found nothing, and kept for ranks that have not asked
	Answers    int `json:"answers"`    // of reserves, kept for ranks that have not asked
}

// RankStatus is one rank of an instance.
type RankStatus struct {
	Rank         uint16 `json:"rank"`
	PID          int    `json:"pid"` // zero when vacant
	Command      string `json:"command"`
	Backend      string `json:"backend"`
	Writer       string `json:"writer"`
	SliceBytes   uint64 `json:"slice_bytes"`
	NUMA         int    `json:"numa_node"`
	MappedArenas int    `json:"mapped_arenas"`
	Refusal      string `json:"refusal,omitempty"`       // why an arena could not be mapped
	SchedulerPID int    `json:"scheduler_pid,omitempty"` // of the rank's own scheduler
	LastQuery    uint64 `json:"last_query,omitempty"`    // the largest number that it asked for
	LastReserve  uint64 `json:"last_reserve,omitempty"`  // the same of reserves
}

// SessionStatus is one connection, or what a disconnected process left of it.
type SessionStatus struct {
	Session      uint64  `json:"session"`
	State        string  `json:"state"`
	Stalled      bool    `json:"stalled"`
	SilentFor    float64 `json:"silent_seconds"` // since the oldest unanswered ping or revoke
	Role         string  `json:"role"`
	Name         string  `json:"name"`
	PID          int     `json:"pid"`
	Command      string  `json:"command"`
	Operations   int     `json:"operations"`
	Hints        int     `json:"hints"`
	Leases       int     `json:"leases"`
	LeasedBytes  uint64  `json:"leased_bytes"`
	Reservations int     `json:"reservations"`
}

// Status reads who holds what.
func (c *Cache) Status() Status {
	stats := c.Stats()
	c.enter()
	defer c.leave()
	status := Status{Stats: stats, Arenas: []ArenaStatus{}, Instances: []InstanceStatus{}, Sessions: []SessionStatus{}, Hints: c.hintStatuses()}
	for _, a := range c.arenas {
		status.Arenas = append(status.Arenas, ArenaStatus{
			Arena: a.id, Node: a.node, Bytes: a.free.Bytes(), FreeBytes: a.free.FreeBytes(),
			LargestFreeBytes: a.free.LargestFree(), FreeExtents: a.free.Extents(),
		})
	}
	for _, inst := range inOrder(c.instances) {
		status.Instances = append(status.Instances, c.instanceStatus(inst))
	}
	for _, s := range inOrder(c.sessions) {
		status.Sessions = append(status.Sessions, c.sessionStatus(s))
	}
	return status
}

func (c *Cache) instanceStatus(inst *instance) InstanceStatus {
	status := InstanceStatus{
		Instance: inst.id, State: instanceMachine.Names[inst.state], Facts: inst.facts, Epoch: inst.epoch, PageBytes: inst.geometry.pageBytes,
		Leases: len(inst.leases), Reservations: len(inst.reservations), ChargedBytes: map[string]uint64{},
	}
	if inst.namespace != nil {
		status.Namespace, status.NamespacePages = inst.namespace.handle, inst.namespace.pages
	}
	if inst.scheduler != nil {
		status.SchedulerPID = inst.scheduler.process.facts.PID
	}
	if j := inst.joint; j != nil {
		status.Joint = &JointStatus{Operations: len(j.operations), Empty: len(j.empty), Answers: len(j.answers)}
	}
	for p := phaseReady; p < phaseEnded; p++ {
		status.ChargedBytes[phaseMachine.Names[p]] = inst.charged[p]
	}
	for at, slot := range inst.ranks {
		rank := RankStatus{Rank: slot.number, SliceBytes: slot.sliceBytes, NUMA: slot.numa, Backend: slot.backend, Refusal: slot.refusal}
		if inst.joint != nil {
			inst.joint.rankStatus(at, &rank)
		}
		for _, a := range c.arenas {
			if slot.mapped.has(a.id) {
				rank.MappedArenas++
			}
		}
		if slot.process != nil {
			rank.PID, rank.Command, rank.Writer = slot.process.facts.PID, slot.process.facts.Command, slot.writer.String()
		}
		status.Ranks = append(status.Ranks, rank)
	}
	return status
}

func (c *Cache) sessionStatus(s *session) SessionStatus {
	status := SessionStatus{
		Session: uint64(s.id), State: sessionMachine.Names[s.state], Stalled: s.silent, Role: s.role.String(), Name: s.name,
		PID: s.process.facts.PID, Command: s.process.facts.Command,
		Operations: len(s.operations) + len(s.pays), Hints: s.hints, Leases: len(s.leases), Reservations: len(s.reservations),
	}
	if !s.asked.IsZero() {
		status.SilentFor = c.now.Sub(s.asked).Truncate(time.Millisecond).Seconds()
	}
	for _, l := range s.leases {
		status.LeasedBytes += l.charged
	}
	return status
}
