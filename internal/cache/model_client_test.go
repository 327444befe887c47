package cache

import (
	"fmt"
	"slices"

	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

type mProcess struct {
	id      ProcessID
	dead    bool // it runs no more; what it sent may be on the way
	stopped bool
	exited  bool // the cache was told
}

// mSession is one end of a connection as its process sees it. queue is what it wrote and the cache has not read.
type mSession struct {
	client
	process   *mProcess
	engine    *mEngine
	rank      int // -1 for the scheduler
	connected bool
	queue     []func() error
}

func (s *mSession) acts() bool { return !s.process.dead && !s.process.stopped && s.connected }

func (s *mSession) send(message func() error) { s.queue = append(s.queue, message) }

type mEngine struct {
	id           string
	facts        string
	epoch        uint64 // of the weights that it computes with
	sh           shape
	ns           Registered
	scheduler    *mSession
	ranks        []*mSession
	leases       []*mLease
	reservations []*mReservation
	waiting      map[uint64][]int // operation to keys
	mapped       []bool           // by rank: it said that arena 1 may be named to it
	operation    uint64
	ticket       uint64
}

func (e *mEngine) members() []*mSession { return append([]*mSession{e.scheduler}, e.ranks...) }

// copyState is one rank's view of a begun lease.
type copyState int

const (
	copyNone   copyState = iota
	copySent             // the plan is on the engine's own way to the rank
	copyKnown            // the rank has the plan
	copyActive           // it reads
	copyEnded            // it reported
)

type mLease struct {
	id        uint64
	operation uint64
	epoch     uint64
	keys      []int
	places    [][]place
	held      bool  // the scheduler may still begin the ranks that it has not begun
	begun     []int // pages, by rank
	copies    []copyState
	arrived   []bool // by rank: what its report says
	engine    *mEngine
}

// mayRead is the number of leading pages that a living process may be reading or may start to read.
func (l *mLease) mayRead() int {
	pages := 0
	if l.held && !l.engine.scheduler.process.dead {
		pages = len(l.keys)
	}
	for rank, state := range l.copies {
		if state != copyNone && state != copyEnded && !l.engine.ranks[rank].process.dead {
			pages = max(pages, l.begun[rank])
		}
	}
	return pages
}

type sliceView int

const (
	sliceGranted sliceView = iota // with the scheduler
	sliceSent                     // on the engine's own way to the rank
	sliceHanded                   // the rank may write
	sliceWritten                  // it reported a commit
	sliceDropped                  // it reported that it will not write
	sliceGivenUp                  // the scheduler did, of a slice that it handed to no rank
	sliceLost                     // its writer died quietly
)

// mayWrite says whether a copy into the slice may run or start.
func (v sliceView) mayWrite() bool { return v == sliceGranted || v == sliceSent || v == sliceHanded }

type mReservation struct {
	id        uint64
	epoch     uint64
	keys      []int
	places    [][]place
	slices    [][]sliceView // by page, then storage rank
	pageBytes uint64
}

func (r *mReservation) mayWrite(page int) bool {
	return slices.ContainsFunc(r.slices[page], sliceView.mayWrite)
}

// handedOut says whether a rank may write, has the plan on the way to it, or died before it reported: its device may go on.
func (r *mReservation) handedOut() bool {
	return slices.ContainsFunc(r.slices, func(page []sliceView) bool {
		return slices.ContainsFunc(page, func(v sliceView) bool { return v == sliceSent || v == sliceHanded || v == sliceLost })
	})
}

// giveUp keeps the scheduler from handing out what it still has.
func (r *mReservation) giveUp() {
	for page := range r.keys {
		for storage, view := range r.slices[page] {
			if view == sliceGranted {
				r.slices[page][storage] = sliceGivenUp
			}
		}
	}
}

// start runs an engine: shapes 0 and 1 have equal facts and geometry, 2 has two ranks, 3 replicated content.
func (w *world) start(kind int) *mEngine {
	w.born++
	e := &mEngine{id: fmt.Sprint("e", w.born), waiting: map[uint64][]int{}}
	kinds := []wire.Writer{wire.WriterHost, wire.WriterCuda, wire.WriterCudaShared}
	e.sh = shape{slices: [][]uint64{{granule}, {granule}, {granule, granule - 96}, {granule, 0}}[kind]}
	for range e.sh.slices {
		e.sh.writers = append(e.sh.writers, rapid.SampledFrom(kinds).Draw(w.T, "writer"))
	}
	e.mapped = make([]bool, len(e.sh.slices))
	e.facts = []string{"one", "one", "two", "replicated"}[kind]
	e.sh.facts = map[string]string{"model": e.facts}
	for rank := range e.sh.slices {
		s := w.connect(&mProcess{id: w.rig.process(100*w.born + rank)}, e, rank)
		_, err := w.rig.Attach(s.id, e.sh.attach(e.id, rank))
		w.rig.must(err)
		w.rig.must(w.rig.Mapped(s.id, 0, true, ""))
		e.ranks = append(e.ranks, s)
	}
	e.scheduler = w.connect(&mProcess{id: w.rig.process(100*w.born + 99)}, e, -1)
	var err error
	e.ns, err = w.rig.Register(e.scheduler.id, e.id, wire.AllRanks)
	w.rig.must(err)
	return e
}

func (w *world) connect(p *mProcess, e *mEngine, rank int) *mSession {
	role := wire.RoleWorker
	if rank < 0 {
		role = wire.RoleScheduler
	}
	return &mSession{client: w.rig.connect(p.id, role), process: p, engine: e, rank: rank, connected: true}
}

func draw[T any](w *world, what string, from []T) (chosen T, ok bool) {
	if len(from) == 0 {
		return chosen, false
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(w.T, what)], true
}

func (w *world) sessions(fit func(*mSession) bool) (found []*mSession) {
	for _, e := range w.engines {
		for _, s := range e.members() {
			if fit(s) {
				found = append(found, s)
			}
		}
	}
	return found
}

func (w *world) schedulerThatActs() (*mEngine, bool) {
	s, ok := draw(w, "scheduler", w.sessions(func(s *mSession) bool { return s.rank < 0 && s.acts() }))
	if !ok {
		return nil, false
	}
	return s.engine, true
}

// deliverAll delivers what a connection carries, as a call with a reply does.
func (w *world) deliverAll(s *mSession) {
	for len(s.queue) > 0 {
		w.deliverOne(s)
	}
}

func (w *world) deliverOne(s *mSession) {
	message := s.queue[0]
	s.queue = s.queue[1:]
	w.rig.must(message())
}

func (w *world) deliver() {
	if s, ok := draw(w, "socket", w.sessions(func(s *mSession) bool { return len(s.queue) > 0 })); ok {
		w.deliverOne(s)
	}
}
