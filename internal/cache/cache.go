package cache

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"orbitkv/internal/extent"
	"orbitkv/internal/index"
	"orbitkv/internal/policy"
	"orbitkv/internal/wire"
)

// Bounds of the cache's tables. The ones of operations stand in Config.
const (
	ArenasMax         = 1024 // arenas of one Manager
	SessionsMax       = 1024 // sessions, disconnected ones included
	InstancesMax      = 1024 // instances, private ones included
	NamespacesMax     = 4096 // namespaces that an instance uses or that have pages
	SliceBytesMax     = 256 << 20
	PrivatePagesMax   = 64       // pages of one private namespace
	unnamedMax        = 1024     // reservations of an instance whose late reports are known as such
	ReclaimBatchPages = 256      // pages that one hold of the mutex evicts
	sweepRecords      = 8192     // records that one step of a sweep looks at
	tickSweeps        = 16       // steps of a sweep that one tick takes
	serveKeys         = 16384    // keys that one call looks up for waiting queries
	waitingBytesMax   = 64 << 20 // of the keys that all waiting queries keep; the next one is answered busy
)

// Defaults of Config.
const (
	DefaultSessionOperations = 128
	DefaultGlobalOperations  = 1024
	DefaultRevokeAfter       = 60 * time.Second
	DefaultStalledAfter      = 10 * time.Second
	DefaultPingEvery         = 5 * time.Second
	DefaultReadBatchBytes    = 32 << 20
)

// Config is what the cache is made with. A zero field takes its default.
type Config struct {
	PoolBytes           uint64           // configured pool, bytes; the arenas that AddArena brings sum to it
	QueryBudgetBytes    uint64           // bytes that leases may hold over all instances; default three quarters of the pool
	InstanceBudgetBytes uint64           // bytes that the leases of one instance may hold; default the query budget
	Nodes               []int            // NUMA nodes that the pool is placed on; none when it is not placed
	SessionOperations   int              // outstanding queries, and open reservations, of one session
	GlobalOperations    int              // outstanding queries, and open reservations, of all sessions
	RevokeAfter         time.Duration    // age at which an unbegun lease is asked back
	StalledAfter        time.Duration    // silence after a ping or revoke that makes a session stalled
	PingEvery           time.Duration    // distance of pings to a session
	Now                 func() time.Time // the clock; default time.Now
	Seed                uint64           // of ids, tokens and the index's hash; zero takes one from the system
	Tier                Tier             // below the pool; nil for none
	ReadBatchBytes      uint64           // of unfinished reads of one query, and at least one page
	StopPolicy          StopPolicy       // of queries that read from the tier
	ReadTimeout         time.Duration    // of the policy Timeout, from the submission of the query
	WritePolicy         WritePolicy      // which pages are offered to the tier when they are saved
	ProtectedPercent    uint64           // of the pool, for pages that queries found resident; zero protects none
	LFUAdmission        bool             // a page that is used less than its victim is not published
	Scrub               bool             // digests and writers of pages are kept for ScrubNext
	Trace               func(Milestone)  // is told what queries that read from the tier reach; it neither waits nor calls the cache; nil for none
}

func (cfg Config) withDefaults() Config {
	setDefault(&cfg.QueryBudgetBytes, cfg.PoolBytes/4*3)
	setDefault(&cfg.InstanceBudgetBytes, cfg.QueryBudgetBytes)
	setDefault(&cfg.SessionOperations, DefaultSessionOperations)
	setDefault(&cfg.GlobalOperations, DefaultGlobalOperations)
	setDefault(&cfg.RevokeAfter, DefaultRevokeAfter)
	setDefault(&cfg.StalledAfter, DefaultStalledAfter)
	setDefault(&cfg.PingEvery, DefaultPingEvery)
	setDefault(&cfg.ReadBatchBytes, DefaultReadBatchBytes)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Seed == 0 {
		var seed [8]byte
		crand.Read(seed[:])
		cfg.Seed = binary.LittleEndian.Uint64(seed[:])
	}
	return cfg
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Cache is the machine. Create it with New.
type Cache struct {
	mu     sync.Mutex
	config Config
	now    time.Time // of the call that holds the mutex
	yield  func()    // lets others have the mutex between two holds of one call
	random *rand.ChaCha8

	arenas     []*arena
	arenaByID  [ArenasMax]*arena
	index      *index.Index
	moreParts  map[uint32][]uint64 // by record: locations of parts 1 and up
	stateBytes [6]uint64           // footprints of page records by index.State

	namespaces  map[uint32]*namespace
	identities  map[identity]*namespace
	nextHandle  uint32
	sweepCursor uint32
	deadPages   uint64 // pages of dead namespaces, to be swept

	processes    map[ProcessID]*process
	sessions     map[SessionID]*session
	tokens       map[wire.ID16]*session
	instances    map[string]*instance
	privates     map[uint32]*instance // by namespace handle
	leases       map[uint64]*lease
	reservations map[uint64]*reservation
	nextProcess  ProcessID
	nextSession  SessionID

	budget           budget
	waiting          []*operation // in order of arrival
	operations       int          // outstanding queries, and hints
	waitingBytes     int          // of the keys that waiting queries keep
	answersBytes     int          // of the grants that answers of joint reserves keep
	openReservations int
	bytesReturned    bool // budget bytes came back in this call

	reads        map[uint32]*read // by record: pages that the tier brings
	preparations []*preparation   // in order of arrival; draining ones too
	hints        []*hint          // the same, at most WarmGlobalMax
	writes       map[index.Handle]uint64
	writeBytes   uint64                // of the pages that are being written to the tier, which are referenced
	byStored     map[uint32]*namespace // by the tier's number
	clearing     int                   // calls of Clear that run: nothing is offered to the tier

	history        *policy.History // of saves; nil without WriteReuse
	uses           *policy.Sketch  // nil without LFUAdmission
	protectedBytes uint64          // of retained pages, where a segment is protected
	digests        *digests        // nil without Scrub
	scrubbed       index.Handle    // pinned; zero when no page is out
	scrubCursor    uint32
	damages        []Damage // found and not yet told, at most damagesMax

	counters counters
	useful   usefulness
	scratch  scratch
}

// scratch is reused by calls so that none allocates for each key.
type scratch struct {
	found     []index.Handle
	runs      []wire.Run
	grants    []wire.GrantRun
	locations [][]uint64     // by part
	saved     []index.Handle // sealed by this call and to be offered to the tier
}

// arena is one arena that is lent.
type arena struct {
	id   uint16
	node int
	free *extent.Allocator
}

// ArenaInfo is one arena that sessions may map.
type ArenaInfo struct {
	Arena uint16
	Node  int // NUMA node, -1 when not placed
	Bytes uint64
}

// New returns a cache without arenas.
func New(config Config) *Cache {
	config = config.withDefaults()
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], config.Seed)
	c := &Cache{
		config:       config,
		yield:        runtime.Gosched,
		random:       rand.NewChaCha8(seed),
		moreParts:    map[uint32][]uint64{},
		namespaces:   map[uint32]*namespace{},
		identities:   map[identity]*namespace{},
		processes:    map[ProcessID]*process{},
		sessions:     map[SessionID]*session{},
		tokens:       map[wire.ID16]*session{},
		instances:    map[string]*instance{},
		privates:     map[uint32]*instance{},
		leases:       map[uint64]*lease{},
		reservations: map[uint64]*reservation{},
		reads:        map[uint32]*read{},
		writes:       map[index.Handle]uint64{},
		byStored:     map[uint32]*namespace{},
		history:      newHistory(config),
		uses:         newSketch(config),
		digests:      newDigests(config),
		budget:       budget{globalMax: config.QueryBudgetBytes, instanceMax: min(config.InstanceBudgetBytes, config.QueryBudgetBytes)},
	}
	c.useful.ready = map[index.Handle]time.Time{}
	c.index = index.New(config.Seed, c.lastReference)
	return c
}

// AddArena lends an arena's extents from now on: the caller has populated it. id is below ArenasMax and new; node is -1 when the
// arena is not placed.
func (c *Cache) AddArena(id uint16, node int, bytes uint64) {
	c.enter()
	defer c.leave()
	if int(id) >= ArenasMax || c.arenaByID[id] != nil {
		panic(fmt.Sprintf("cache: arena %d is not a new id below %d", id, ArenasMax))
	}
	a := &arena{id: id, node: node, free: extent.New(bytes)}
	c.arenas = append(c.arenas, a)
	c.arenaByID[id] = a
}

// Arenas lists the arenas that are lent, in the order in which they were added.
func (c *Cache) Arenas() []ArenaInfo {
	c.enter()
	defer c.leave()
	infos := make([]ArenaInfo, len(c.arenas))
	for i, a := range c.arenas {
		infos[i] = ArenaInfo{Arena: a.id, Node: a.node, Bytes: a.free.Bytes()}
	}
	return infos
}

// enter takes the mutex and reads the clock.
func (c *Cache) enter() {
	c.mu.Lock()
	c.now = c.config.Now()
}

// leave serves the queries that wait for budget when bytes came back in this call, and gives the mutex up.
func (c *Cache) leave() {
	if c.bytesReturned {
		c.serveWaiting()
	}
	c.mu.Unlock()
}

// rest gives the mutex up within a long call, so that no other call waits for all of it, and takes it again. Whatever the call knew of the cache
// may have changed.
func (c *Cache) rest() {
	c.leave()
	c.yield()
	c.enter()
}

// newID draws an id that is not zero and that taken does not know.
func newID[V any](c *Cache, taken map[uint64]V) uint64 {
	for {
		id := c.random.Uint64()
		if _, exists := taken[id]; id != 0 && !exists {
			return id
		}
	}
}

func (c *Cache) newToken() wire.ID16 {
	var token wire.ID16
	binary.LittleEndian.PutUint64(token[:8], c.random.Uint64())
	binary.LittleEndian.PutUint64(token[8:], c.random.Uint64())
	return token
}

// Tick does what time asks for: pings and revokes are pushed, silent sessions are labelled stalled, reading that took too long is stopped, as are old hints, pages of dead
// namespaces are swept and waiting queries are tried again. Call it every 250 ms. It never frees anything that may be in use.
func (c *Cache) Tick() {
	c.enter()
	defer c.leave()
	for _, s := range inOrder(c.sessions) {
		c.pingAndLabel(s)
	}
	c.askBack()
	c.stopOverdue()
	c.expireHints()
	c.serveWaiting()
	c.advanceAll()
	c.advanceHints()
	for step := 0; c.deadPages > 0 && step < tickSweeps; step++ {
		c.sweepDead(ReclaimBatchPages)
		c.rest()
	}
}
