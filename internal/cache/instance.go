package cache

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Attach is a process that copies joining an instance as one rank.
type Attach struct {
	Instance   string
	Rank       uint16
	World      uint16
	Storage    bool   // the rank stores bytes of its own
	SliceBytes uint64 // unpadded bytes of the rank's slice of one page; zero without storage
	NUMA       int    // node of the rank's device, -1 when unknown
	Writer     wire.Writer
	Backend    string
	Epoch      uint64
	Facts      map[string]string
}

// Registered is a namespace and how its pages lie.
type Registered struct {
	Namespace   uint32
	Epoch       uint64
	PageBytes   uint64
	BudgetBytes uint64 // that the leases of one instance may hold
	PartBytes   []uint64
	Slices      []wire.Slice
}

// arenaSet is a set of arena ids.
type arenaSet [ArenasMax / 64]uint64

func (s *arenaSet) add(id uint16)      { s[id/64] |= 1 << (id % 64) }
func (s *arenaSet) remove(id uint16)   { s[id/64] &^= 1 << (id % 64) }
func (s *arenaSet) has(id uint16) bool { return s[id/64]&(1<<(id%64)) != 0 }

// instance is one engine replica: several ranks and one scheduler, or one scheduler a rank.
type instance struct {
	id        string
	facts     map[string]string
	epoch     uint64
	ranks     []rankSlot
	attached  int
	state     instanceState
	namespace *namespace
	geometry  geometry
	scheduler *session // of all ranks; nil when none registered; a closed one keeps its place while its process lives
	joint     *joint   // of the ranks' own schedulers; nil when none registered
	usable    arenaSet // arenas that every rank has mapped
	private   bool
	pages     []index.Handle // sealed pages of a private namespace, which no list holds

	leases       map[uint64]*lease // quarantined ones excluded
	reservations map[uint64]*reservation
	unnamed      []uint64 // the last leases and reservations that its resumed scheduler did not name, at most unnamedMax
	charged      [phases]uint64
	preparations int    // prefixes and hints that are being read for it, or drain
	writer       uint16 // its ranks' number among the writers of pages, while they stay the same
}

// rankSlot is one rank. A slot without a process is vacant.
type rankSlot struct {
	number     uint16 // the rank on the wire: the position, but for a private namespace
	storage    bool
	sliceBytes uint64
	numa       int
	writer     wire.Writer
	backend    string
	process    *process
	session    *session
	mapped     arenaSet
	refusal    string // why the last arena could not be mapped
}

// Attach joins a session to an instance and returns the number of ranks that are attached. With the last rank the instance is sealed:
// its namespace exists and the session that wanted to register is told.
//
// StatusConflict names the fact in which this rank differs from the ones before it; StatusTooLarge names the bound; StatusDenied is a
// tool session. A rank whose process exited, or reconnected, may attach again with the same geometry.
func (c *Cache) Attach(id SessionID, a Attach) (ranks int, err error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return 0, err
	}
	if err := checkAttach(s, a); err != nil {
		return 0, err
	}
	inst := c.instances[a.Instance]
	if s.instance != nil {
		if s.instance == inst && s.rank == int(a.Rank) {
			return inst.attached, agree(inst, a)
		}
		return 0, wire.Errorf(wire.StatusConflict, "this session is rank %d of instance %q; detach it or open another session", s.rank, s.instance.id)
	}
	if inst == nil {
		if len(c.instances) >= InstancesMax {
			c.counters.busy++
			return 0, wire.Errorf(wire.StatusBusy, "%d instances exist, the most that a Manager keeps; stop some engines", len(c.instances))
		}
		inst = newInstance(a.Instance, maps.Clone(a.Facts), a.Epoch, int(a.World))
		c.instances[a.Instance] = inst
	} else if err := c.admit(inst, s, a); err != nil {
		return 0, err
	}
	c.takeSlot(inst, s, a)
	if inst.state == instanceGathering && inst.attached == len(inst.ranks) {
		if err := c.seal(inst); err != nil {
			c.leaveRank(inst, int(a.Rank))
			return 0, err
		}
	}
	return inst.attached, nil
}

func newInstance(id string, facts map[string]string, epoch uint64, world int) *instance {
	inst := &instance{
		id: id, facts: facts, epoch: epoch, ranks: make([]rankSlot, world),
		leases: map[uint64]*lease{}, reservations: map[uint64]*reservation{},
	}
	for rank := range inst.ranks {
		inst.ranks[rank].number = uint16(rank)
	}
	return inst
}

func checkAttach(s *session, a Attach) error {
	switch {
	case s.role == wire.RoleTool:
		return wire.Errorf(wire.StatusDenied, "a tool session cannot attach; open a worker session")
	case a.Instance == "" || len(a.Instance) > wire.StringBytesMax:
		return wire.Errorf(wire.StatusTooLarge, "an instance id has 1 to %d bytes, this one %d", wire.StringBytesMax, len(a.Instance))
	case a.World == 0 || a.World > wire.RanksMax:
		return wire.Errorf(wire.StatusTooLarge, "an instance has 1 to %d ranks, not %d", wire.RanksMax, a.World)
	case a.Rank >= a.World:
		return wire.Errorf(wire.StatusTooLarge, "rank %d is outside an instance of %d ranks", a.Rank, a.World)
	case !a.Writer.Valid():
		return wire.Errorf(wire.StatusConflict, "writer %d is not known; use host, cuda or cuda_shared", uint8(a.Writer))
	case a.Storage && (a.SliceBytes == 0 || a.SliceBytes > SliceBytesMax):
		return wire.Errorf(wire.StatusTooLarge, "a slice has 1 to %d bytes, rank %d has %d; use a smaller block size", SliceBytesMax, a.Rank, a.SliceBytes)
	case !a.Storage && a.SliceBytes != 0:
		return wire.Errorf(wire.StatusConflict, "rank %d stores nothing but has a slice of %d bytes; send zero", a.Rank, a.SliceBytes)
	}
	return nil
}

// admit says whether a rank may join an instance that exists.
func (c *Cache) admit(inst *instance, s *session, a Attach) error {
	if err := agree(inst, a); err != nil {
		return err
	}
	slot := &inst.ranks[a.Rank]
	if slot.process != nil && (slot.process != s.process || slot.session.state == sessionOpen) {
		return wire.Errorf(wire.StatusConflict, "rank %d of instance %q is held by process %d (%s), which lives; stop it or use another instance id",
			a.Rank, inst.id, slot.process.facts.PID, slot.process.facts.Command)
	}
	if inst.state == instanceSealed && (slot.storage != a.Storage || slot.sliceBytes != a.SliceBytes) {
		return wire.Errorf(wire.StatusConflict, "slice bytes of rank %d are %d, the instance %q was sealed with %d", a.Rank, a.SliceBytes, inst.id, slot.sliceBytes)
	}
	return nil
}

// agree compares what every rank of an instance must say alike.
func agree(inst *instance, a Attach) error {
	differs := func(fact, here, there any) error {
		return wire.Errorf(wire.StatusConflict, "%v is %v on rank %d and %v on the ranks of instance %q that attached before; start all ranks alike",
			fact, here, a.Rank, there, inst.id)
	}
	if len(inst.ranks) != int(a.World) {
		return differs("world", a.World, len(inst.ranks))
	}
	if inst.epoch != a.Epoch {
		return differs("epoch", a.Epoch, inst.epoch)
	}
	names := slices.Sorted(maps.Keys(inst.facts))
	for _, name := range slices.Sorted(maps.Keys(a.Facts)) {
		if _, known := inst.facts[name]; !known {
			names = append(names, name)
		}
	}
	for _, name := range names {
		here, hereHas := a.Facts[name]
		there, thereHas := inst.facts[name]
		if here != there || hereHas != thereHas {
			return differs("fact "+name, quoted(here, hereHas), quoted(there, thereHas))
		}
	}
	return nil
}

func quoted(value string, exists bool) string {
	if !exists {
		return "absent"
	}
	return `"` + strings.ToValidUTF8(value, "?") + `"`
}

func (c *Cache) takeSlot(inst *instance, s *session, a Attach) {
	slot := &inst.ranks[a.Rank]
	before := slot.session
	if slot.process == nil {
		inst.attached++
	}
	*slot = rankSlot{
		number: slot.number, storage: a.Storage, sliceBytes: a.SliceBytes, numa: a.NUMA, writer: a.Writer, backend: a.Backend,
		process: s.process, session: s,
	}
	s.instance, s.rank = inst, int(a.Rank)
	inst.writer = 0
	c.remap(inst)
	if before != nil && before != s {
		before.instance = nil // kept, so that its token can still be resumed
	}
	c.relabelAll(s)
}

// seal fixes the geometry of a page and opens the namespace.
func (c *Cache) seal(inst *instance) error {
	g := layOut(inst.ranks, c.config.Nodes)
	if len(g.storage) == 0 {
		return wire.Errorf(wire.StatusConflict, "no rank of instance %q stores bytes; at least one must attach with storage", inst.id)
	}
	ns, err := c.useNamespace(inst.facts, inst.epoch, len(inst.ranks), g)
	if err != nil {
		return err
	}
	instanceMachine.To(&inst.state, instanceSealed)
	inst.geometry, inst.namespace = g, ns
	for _, s := range inOrder(c.sessions) {
		if s.wants == inst.id {
			s.wants = ""
			c.push(s, Notice{Kind: NoticeInstance})
		}
	}
	return nil
}

// Mapped is a rank's word on one arena: ok when its pages may be named to the rank, else text says why not. It fails for an arena that is not
// lent; the word of a session that has detached meanwhile is a harmless race.
func (c *Cache) Mapped(id SessionID, arenaID uint16, ok bool, why string) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	if int(arenaID) >= ArenasMax || c.arenaByID[arenaID] == nil {
		return c.violation("mapped", wire.StatusUnknown, "mapped names arena %d, which is not lent", arenaID)
	}
	if s.instance == nil {
		c.counters.lateReports++
		return nil
	}
	slot := &s.instance.ranks[s.rank]
	if ok {
		slot.mapped.add(arenaID)
	} else {
		slot.mapped.remove(arenaID)
		slot.refusal = why
	}
	c.remap(s.instance)
	if s.private != nil {
		s.private.ranks[0].mapped = slot.mapped
		c.remap(s.private)
	}
	return nil
}

// remap recomputes the arenas that every rank has mapped.
func (c *Cache) remap(inst *instance) {
	inst.usable = inst.ranks[0].mapped
	for _, slot := range inst.ranks[1:] {
		for i := range inst.usable {
			inst.usable[i] &= slot.mapped[i]
		}
	}
}

// Register binds a scheduler session to a sealed instance, for one of its ranks or with AllRanks for the whole of it, and returns its namespace.
// The first one decides which of the two it is. StatusNotReady: not every rank attached yet; a notice follows when they have. StatusConflict:
// another living process schedules the instance, it is scheduled the other way, or the session's process is not attached as the rank.
// StatusDenied: not a scheduler session.
func (c *Cache) Register(id SessionID, instanceID string, rank uint16) (Registered, error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return Registered{}, err
	}
	if s.role != wire.RoleScheduler {
		return Registered{}, wire.Errorf(wire.StatusDenied, "a %v session cannot register instance %q; open a scheduler session", s.role, instanceID)
	}
	inst := c.instances[instanceID]
	if inst == nil || inst.state != instanceSealed {
		s.wants = instanceID
		attached, world := 0, "its"
		if inst != nil {
			attached, world = inst.attached, strconv.Itoa(len(inst.ranks))
		}
		return Registered{}, wire.Errorf(wire.StatusNotReady, "instance %q has %d of %s ranks attached; register again when it is sealed", instanceID, attached, world)
	}
	if rank == wire.AllRanks {
		err = c.registerWhole(inst, s)
	} else {
		err = c.registerRank(inst, s, int(rank))
	}
	if err != nil {
		return Registered{}, err
	}
	return c.registered(inst), nil
}

// NewEpoch moves an instance to another epoch of its namespace. The old pages are unreachable for it at once; what it is publishing under the
// old epoch never becomes visible (OWNERSHIP: reservations under the old epoch are abandoned at commit). Epoch zero is refused: it is shared by
// all instances with the same facts. Where the ranks schedule together each says it, and the first moves the instance. StatusStale: other ranks have
// moved on from this epoch; whoever computes with its weights must not get the pages of the next.
func (c *Cache) NewEpoch(id SessionID, instanceID string, epoch uint64) (Registered, error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return Registered{}, err
	}
	inst := c.instances[instanceID]
	if inst == nil || !inst.scheduledBy(s) {
		return Registered{}, wire.Errorf(wire.StatusUnknown, "this session does not schedule instance %q; register it first", instanceID)
	}
	if inst.joint != nil && slices.Contains(inst.joint.replaced, epoch) {
		return Registered{}, wire.Errorf(wire.StatusStale, "epoch %d of instance %q was replaced by %d; go on to the epoch that followed", epoch, instanceID, inst.epoch)
	}
	if epoch == 0 {
		return Registered{}, wire.Errorf(wire.StatusConflict, "epoch zero is shared by all instances; choose 64 random bits")
	}
	if epoch == inst.epoch {
		return c.registered(inst), nil
	}
	ns, err := c.useNamespace(inst.facts, epoch, len(inst.ranks), inst.geometry)
	if err != nil {
		return Registered{}, err
	}
	old := inst.namespace
	if inst.joint != nil {
		c.moveOn(inst)
	}
	inst.namespace, inst.epoch = ns, epoch
	c.dropWaiting(inst)
	for _, r := range inOrder(inst.reservations) {
		c.abandonPages(r)
	}
	c.leaveNamespace(old)
	return c.registered(inst), nil
}

func (c *Cache) registered(inst *instance) Registered {
	return Registered{
		Namespace: inst.namespace.handle, Epoch: inst.namespace.epoch, PageBytes: inst.geometry.pageBytes, BudgetBytes: c.budget.instanceMax,
		PartBytes: slices.Clone(inst.geometry.partBytes), Slices: slices.Clone(inst.geometry.slices),
	}
}
