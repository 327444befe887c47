package cache

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

// The model knows nothing of the cache's tables. It is the clients: what each process believes that it may read or write, and a memory of one
// stamp a granule that copies really read and write. After each step every extent that a living copy may read must hold its bytes, every granted
// extent must be free of possible readers and writers, and the cache's own Check must be clean.
//
// Messages travel in one queue a connection and are delivered in random order between connections, so a report may overtake the begin that it
// belongs to. Processes stop, die with messages in flight, lose their connection with the tail of its messages, come back and resume.

const (
	modelKeys     = 14
	modelSteps    = 400
	granule       = 4 << 10
	granulesFirst = 14
	granulesNext  = 9
	teamBurst     = 8 // steps that teams do between two looks at the cache
	teamLead      = 3 // calls that a rank may be ahead of one that runs
)

type place struct {
	arena   uint16
	granule uint64
}

type world struct {
	*rapid.T
	rig     *rig
	memory  map[place]string
	engines []*mEngine
	teams   []*mTeam
	random  *rand.Rand // of the teams' choices, which rapid would make again and again in favour of the first
	zombies []place    // slices that a dead cuda_shared writer may still write
	born    int

	tier      *bench            // nil when there is none
	tierFacts map[uint32]string // by the tier's number of a namespace: what its pages were of
	out       *outPage          // nil when none is being scrubbed

	warmed        map[place]*warmPage   // by the place of the first slice
	ahead         map[index.Handle]bool // of the tier's reads: a hint started it
	preparedBytes uint64
	restoredBytes uint64

	restoredByteSeconds float64
}

// warmPage is a page that was read ahead of demand.
type warmPage struct {
	bytes    uint64
	restored bool
	since    time.Time
}

// stamp is the content of one slice of one page.
func stamp(facts string, epoch uint64, key, rank int) string {
	return fmt.Sprint(facts, "/", epoch, "/", key, "/", rank)
}

func newWorld(t *rapid.T) *world {
	w := &world{T: t, memory: map[place]string{}, warmed: map[place]*warmPage{}, ahead: map[index.Handle]bool{}, tierFacts: map[uint32]string{}}
	config := Config{
		PoolBytes: 0, QueryBudgetBytes: 16 * granule, InstanceBudgetBytes: 10 * granule, SessionOperations: 4, GlobalOperations: 9,
		Seed: rapid.Uint64Range(1, 1<<40).Draw(t, "seed"),
	}
	if rapid.IntRange(0, 3).Draw(t, "tier") > 0 {
		config.Tier = w.startTier()
		config.ReadBatchBytes = uint64(rapid.IntRange(1, 4).Draw(t, "batch")) * granule
		config.StopPolicy = rapid.SampledFrom([]StopPolicy{WaitComplete, WaitComplete, BestEffort, Timeout}).Draw(t, "policy")
		config.ReadTimeout = time.Second
	}
	drawPolicies(t, &config)
	w.rig = newRig(t, config)
	w.rig.config.PoolBytes = (granulesFirst + granulesNext) * granule // of the arenas that follow
	w.rig.AddArena(0, -1, granulesFirst*granule)
	w.rig.AddArena(1, -1, granulesNext*granule)
	return w
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		shapes := rapid.IntRange(0, 3).Draw(t, "first")
		for i := range 2 {
			w.engines = append(w.engines, w.start((shapes+i*rapid.IntRange(0, 3).Draw(t, "second"))%4))
		}
		t.Repeat(w.actions())
		w.quiesce()
	})
}

// TestTeamModel runs instances of one and two ranks that schedule together beside one that a scheduler does.
func TestTeamModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.random = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "choices"), 1))
		w.engines = append(w.engines, w.start(0))
		for range 2 {
			w.teams = append(w.teams, w.startTeam(w.random.IntN(3)))
		}
		t.Repeat(w.actions())
		w.quiesce()
	})
}

// TestMain makes a run of the model long enough for a page to be reused several times.
func TestMain(m *testing.M) {
	flag.Parse()
	if steps := flag.Lookup("rapid.steps"); steps.Value.String() == steps.DefValue {
		if err := steps.Value.Set(strconv.Itoa(modelSteps)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// actions names each step as often as it should be drawn.
func (w *world) actions() map[string]func(*rapid.T) {
	steps := map[string]func(){
		"query": w.query, "poll": w.poll, "cancel": w.cancel, "begin": w.begin, "release": w.release, "notices": w.answerNotices,
		"plan": w.takePlan, "copy": w.startCopy, "copied": w.endCopy,
		"reserve": w.reserve, "hand": w.hand, "write": w.write, "drop": w.dropSlice, "abandon": w.abandonAll,
		"epoch": w.newEpoch, "warm": w.warmPage, "map": w.mapArena,
		"kill": w.kill, "exit": w.exit, "disconnect": w.disconnect, "reconnect": w.reconnect, "zombie": w.zombieWrites,
		"stop": w.stop, "time": w.passTime, "cleanup": w.cleanup, "restart": w.restart, "deliver": w.deliver,
	}
	weights := map[string]int{
		"query": 4, "begin": 4, "plan": 4, "copy": 3, "copied": 4, "reserve": 4, "hand": 5, "write": 8, "poll": 2, "notices": 2, "map": 2,
		"deliver": 14, "reconnect": 3, "restart": 4, "kill": 2, "disconnect": 2,
	}
	if w.tier != nil {
		steps["tier reads"], steps["tier writes"], steps["tier loses"], steps["tier asks"] = w.tierReads, w.tierWrites, w.tierLoses, w.tierAsks
		steps["stop reading"], steps["hint"], steps["cancel hint"] = w.stopQuery, w.hint, w.cancelHint
		weights["tier reads"], weights["tier writes"], weights["cleanup"], weights["hint"] = 8, 6, 3, 6
	}
	if w.rig.config.Scrub {
		steps["scrub"], weights["scrub"] = w.scrub, 6
	}
	if len(w.teams) > 0 {
		steps["a team works"], weights["a team works"] = w.teamsWork, 60
	}
	actions := map[string]func(*rapid.T){"": func(*rapid.T) { w.verify() }}
	for name, step := range steps {
		for i := range max(1, weights[name]) {
			actions[fmt.Sprint(name, " ", i)] = func(*rapid.T) { step() }
		}
	}
	return actions
}

// verify compares the cache with what the clients may be doing.
func (w *world) verify() {
	w.Helper()
	for _, v := range w.rig.Check() {
		w.Fatalf("I%d: %s", v.Invariant, v.Text)
	}
	read, written := uint64(0), uint64(0)
	for _, e := range w.engines {
		for _, l := range e.leases {
			pages := l.mayRead()
			if held := w.held(l); held < pages {
				w.Fatalf("engine %s may read %d pages of lease %#x, the cache keeps %d", e.id, pages, l.id, held)
			}
			read += uint64(pages) * e.ns.PageBytes
			for page := range pages {
				w.mustHold(e, l, page)
			}
		}
		for _, r := range e.reservations {
			for page := range r.keys {
				if r.mayWrite(page) {
					written += r.pageBytes
				}
			}
		}
	}
	for _, e := range w.teams {
		r, wr := w.verifyTeam(e)
		read, written = read+r, written+wr
	}
	stats := w.rig.Stats()
	charged := uint64(0)
	for _, bytes := range stats.QueryReservedByPhase {
		charged += bytes
	}
	if charged < read {
		w.Fatalf("clients may read %d bytes, the cache charges %d", read, charged)
	}
	if held := stats.WritingBytes + stats.AbandonedBytes + stats.QuarantinedBytes; held < written {
		w.Fatalf("clients may write %d bytes, the cache keeps %d", written, held)
	}
	w.verifyUsefulness(stats)
	w.check(stats.DamagedPagesTotal == 0, "%d pages hold other bytes than were written: %+v", stats.DamagedPagesTotal, w.rig.Damages())
	for _, inst := range w.rig.Status().Instances {
		used := uint64(0)
		for _, phase := range []string{"ready", "restoring", "stalled", "preparing", "draining", "warming"} {
			used += inst.ChargedBytes[phase]
		}
		if used > 10*granule {
			w.Fatalf("instance %s has %d bytes leased, its budget is %d", inst.Instance, used, 10*granule)
		}
	}
}

// held is the number of leading pages that the cache has referenced and charged for a lease.
func (w *world) held(l *mLease) int {
	if known := w.rig.leases[l.id]; known != nil {
		return known.held
	}
	return 0
}

// verifyUsefulness checks that prepared = restored + unused + pending, with the first two known from what was warmed and reported. The report of a
// quarantined copy is not heard, so restored may then be less.
func (w *world) verifyUsefulness(stats Stats) {
	w.Helper()
	prepared, restored := stats.WarmupPreparedBytesTotal, stats.WarmupRestoredBytesTotal
	if prepared != w.preparedBytes || restored+stats.WarmupUnusedBytesTotal+stats.WarmupPendingBytes != prepared {
		w.Fatalf("%d bytes were prepared: %+v", w.preparedBytes, stats)
	}
	waited := stats.WarmupByteSecondsTotal["restored"]
	if restored > w.restoredBytes || waited > w.restoredByteSeconds || stats.LateReportsTotal == 0 && (restored < w.restoredBytes || waited < w.restoredByteSeconds) {
		w.Fatalf("%d prepared bytes arrived that waited %g byte-seconds, the cache counts %d and %g", w.restoredBytes, w.restoredByteSeconds, restored, waited)
	}
}

// mustBeMapped checks that pages named to an engine lie where all its ranks can reach them.
func (w *world) mustBeMapped(e *mEngine, places [][]place) {
	w.Helper()
	for _, page := range places {
		for _, at := range page {
			if at.arena == 1 && slices.Contains(e.mapped, false) {
				w.Fatalf("engine %s was given %v, ranks mapped arena 1: %v", e.id, at, e.mapped)
			}
		}
	}
}

// mustHold checks every byte of a page that a client may read.
func (w *world) mustHold(e *mEngine, l *mLease, page int) {
	w.Helper()
	for i, at := range l.places[page] {
		want := stamp(e.facts, l.epoch, l.keys[page], int(e.ns.Slices[i].Rank))
		if got := w.memory[at]; got != want {
			w.Fatalf("engine %s may read key %d of lease %#x at %v: it holds %q, want %q", e.id, l.keys[page], l.id, at, got, want)
		}
	}
}

// mustBeFree checks an extent that the cache grants for writing.
func (w *world) mustBeFree(at place) {
	w.Helper()
	for _, e := range w.engines {
		for _, l := range e.leases {
			for page := range l.mayRead() {
				for _, other := range l.places[page] {
					if other == at {
						w.Fatalf("granted %v, which engine %s may read as key %d of lease %#x", at, e.id, l.keys[page], l.id)
					}
				}
			}
		}
		for _, r := range e.reservations {
			for page := range r.keys {
				for storage, other := range r.places[page] {
					if other == at && r.slices[page][storage].mayWrite() {
						w.Fatalf("granted %v, which engine %s may write for key %d of reservation %#x", at, e.id, r.keys[page], r.id)
					}
				}
			}
		}
	}
	for _, e := range w.teams {
		w.mustBeFreeIn(e, at)
	}
	for _, other := range w.zombies {
		if other == at {
			w.Fatalf("granted %v, which a dead writer may still write", at)
		}
	}
	if w.isOut(at) {
		w.Fatalf("granted %v, which is being scrubbed", at)
	}
	if w.inTransit(at) {
		w.Fatalf("granted %v, which the tier reads or writes", at)
	}
}

// mustBeFreeIn is the same for one team.
func (w *world) mustBeFreeIn(e *mTeam, at place) {
	w.Helper()
	for _, call := range e.calls {
		for rank, k := range e.ranks {
			part := &call.parts[rank]
			for page := range part.mayRead(k) {
				if slices.Contains(part.places[page], at) {
					w.Fatalf("granted %v, which rank %d of %s may read under lease %#x", at, rank, e.id, part.lease)
				}
			}
		}
	}
	for _, r := range e.reservations {
		for page := range r.keys {
			for storage, other := range r.places[page] {
				if other == at && r.slices[page][storage].mayWrite() {
					w.Fatalf("granted %v, which team %s may write for key %d of reservation %#x", at, e.id, r.keys[page], r.id)
				}
			}
		}
	}
}

// placesOf expands runs to the granule of each slice of each page. Every slice of the model is one granule, and every page one part.
func placesOf(runs []wire.Run, slices []wire.Slice, pageBytes uint64) (places [][]place) {
	for _, run := range runs {
		for i := range run.Count {
			at := uint64(run.First.Offset()) + uint64(i)*pageBytes
			page := make([]place, len(slices))
			for s, slice := range slices {
				page[s] = place{run.First.Arena(), (at + slice.Offset) / granule}
			}
			places = append(places, page)
		}
	}
	return places
}

// finish lets every engine of which no process died do all that it has begun, and wants everything back from it.
func (w *world) finish() {
	w.tierEnds()
	for _, e := range w.engines {
		if slices.ContainsFunc(e.members(), func(s *mSession) bool { return s.process.dead }) {
			continue
		}
		for _, s := range e.members() {
			s.process.stopped = false
			if !s.connected {
				w.comeBack(s)
			}
		}
		for range 3 * (len(e.leases) + len(e.waiting)) {
			w.finishOnce(e)
		}
		w.finishOnce(e)
		for _, inst := range w.rig.Status().Instances {
			if inst.Instance == e.id && (inst.Leases != 0 || inst.Reservations != 0) {
				w.Fatalf("engine %s has finished, the cache holds %d leases and %d reservations for it", e.id, inst.Leases, inst.Reservations)
			}
		}
	}
	w.verify()
}

func (w *world) finishOnce(e *mEngine) {
	for _, l := range e.leases {
		if l.held {
			l.held = false
			id := e.scheduler.id
			e.scheduler.send(func() error { return w.rig.Release(id, l.id, wire.AllRanks) })
		}
		for rank, state := range l.copies {
			if state != copyNone && state != copyEnded {
				l.copies[rank] = copyEnded
				w.sendRestored(l, rank)
			}
		}
	}
	for _, r := range e.reservations {
		for page := range r.keys {
			for storage, view := range r.slices[page] {
				if view.mayWrite() {
					r.slices[page][storage] = sliceDropped
					w.reportSlice(mSlice{e, r, page, storage})
				}
			}
		}
	}
	for _, s := range e.members() {
		w.deliverAll(s)
	}
	w.tierEnds()
	for _, operation := range inOrder(reverse(e.waiting)) {
		got, err := w.rig.PollQuery(e.scheduler.id, operation, 1)
		w.rig.must(err)
		w.take(e, e.waiting[operation], got)
	}
}

// quiesce lets every process end and wants everything back but what was quarantined.
func (w *world) quiesce() {
	w.finish()
	w.finishTeams()
	for _, e := range w.teams {
		for _, k := range e.ranks {
			if !k.process.exited {
				w.deliverAll(k.scheduler)
				w.deliverAll(k.worker)
				w.endRank(k)
			}
		}
	}
	for _, e := range w.engines {
		for _, s := range e.members() {
			if !s.process.exited {
				w.deliverAll(s)
				w.end(s)
			}
		}
	}
	w.tierEnds()
	w.rig.clock.forward(time.Hour)
	w.rig.Tick()
	w.verify()
	s := w.rig.Stats()
	phases := s.QueryReservedByPhase
	if phases["ready"]+phases["restoring"]+phases["stalled"]+phases["preparing"]+phases["draining"]+phases["warming"]+s.WritingBytes+s.AbandonedBytes != 0 {
		w.Fatalf("bytes are held for processes that are gone: %+v", s)
	}
	if s.Sessions+s.SessionsDisconnected+s.Processes+s.Instances+s.OperationsReady+s.OperationsWaiting+s.OperationsPreparing+s.OperationsDraining+s.OperationsWarming+s.Reservations != 0 {
		w.Fatalf("tables are not empty: %+v", s)
	}
	w.scrubEnds()
	w.rig.Clear()
	w.verify()
	s = w.rig.Stats()
	if s.PoolUsedBytes != s.QuarantinedBytes+s.RetiredBytes || s.RetiredBytes > phases["quarantined"] {
		w.Fatalf("bytes leaked: %+v", s)
	}
}
