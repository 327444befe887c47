package cache

import (
	"fmt"
	"strings"
	"testing"

	"orbitkv/internal/wire"
)

func TestRanksMustAgree(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	sh := shape{slices: []uint64{page, page}, facts: map[string]string{"dtype": "bf16", "layout": "hnd"}}
	first := r.connect(r.process(1), wire.RoleWorker)
	if n, err := r.Attach(first.id, sh.attach("a", 0)); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	second := r.connect(r.process(2), wire.RoleWorker)
	for name, test := range map[string]struct {
		change func(*Attach)
		words  []string
	}{
		"fact":   {func(a *Attach) { a.Facts = map[string]string{"dtype": "fp8", "layout": "hnd"} }, []string{"dtype", `"fp8"`, `"bf16"`}},
		"absent": {func(a *Attach) { a.Facts = map[string]string{"layout": "hnd"} }, []string{"dtype", "absent", `"bf16"`}},
		"extra": {func(a *Attach) {
			a.Facts = map[string]string{"dtype": "bf16", "layout": "hnd", "salt": "x"}
		}, []string{"salt", `"x"`, "absent"}},
		"world": {func(a *Attach) { a.World = 3 }, []string{"world", "3", "2"}},
		"epoch": {func(a *Attach) { a.Epoch = 5 }, []string{"epoch", "5", "0"}},
		"rank":  {func(a *Attach) { a.Rank = 0 }, []string{"rank 0", "process 1", "engine-1"}},
	} {
		a := sh.attach("a", 1)
		test.change(&a)
		_, err := r.Attach(second.id, a)
		r.fails(err, wire.StatusConflict)
		for _, word := range test.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not name %s", name, err, word)
			}
		}
	}
	scheduler := r.connect(r.process(3), wire.RoleScheduler)
	_, err := r.Register(scheduler.id, "a", wire.AllRanks)
	r.fails(err, wire.StatusNotReady)
	if n, err := r.Attach(second.id, sh.attach("a", 1)); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	if ids := scheduler.queue.take(NoticeInstance); len(ids) != 1 {
		t.Fatalf("notices %v", ids)
	}
	if _, err := r.Register(scheduler.id, "a", wire.AllRanks); err != nil {
		t.Fatal(err)
	}
	for _, rank := range []uint16{0, 2} {
		_, err = r.Register(scheduler.id, "a", rank)
		r.fails(err, wire.StatusConflict)
	}
	rival := r.connect(r.process(4), wire.RoleScheduler)
	_, err = r.Register(rival.id, "a", wire.AllRanks)
	r.fails(err, wire.StatusConflict)
	_, err = r.Register(first.id, "a", wire.AllRanks)
	r.fails(err, wire.StatusDenied)
	r.check()
}

func TestBoundsOfAttach(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	worker := r.connect(r.process(1), wire.RoleWorker)
	for name, change := range map[string]func(*Attach){
		"no instance":   func(a *Attach) { a.Instance = "" },
		"long instance": func(a *Attach) { a.Instance = strings.Repeat("x", 513) },
		"no world":      func(a *Attach) { a.World = 0 },
		"large world":   func(a *Attach) { a.World = 65 },
		"rank":          func(a *Attach) { a.Rank = 1 },
		"no slice":      func(a *Attach) { a.SliceBytes = 0 },
		"large slice":   func(a *Attach) { a.SliceBytes = SliceBytesMax + 1 },
	} {
		a := one(page).attach("a", 0)
		change(&a)
		if _, err := r.Attach(worker.id, a); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	a := one(page).attach("a", 0)
	a.Storage, a.SliceBytes = false, 0
	_, err := r.Attach(worker.id, a)
	r.fails(err, wire.StatusConflict) // nobody stores anything
	tool := r.connect(r.process(2), wire.RoleTool)
	_, err = r.Attach(tool.id, one(page).attach("a", 0))
	r.fails(err, wire.StatusDenied)
	if s := r.Stats(); s.Instances != 0 || s.Namespaces != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestIdentityDecidesWhoSharesPages(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 64 * mib})
	base := r.engine("base", 100, shape{slices: []uint64{page}, facts: map[string]string{"weights": "1", "dtype": "bf16"}})
	r.publish(base, keysOf(0, 4))
	for i, test := range []struct {
		name string
		sh   shape
		want int
	}{
		{"equal", shape{slices: []uint64{page}, facts: map[string]string{"dtype": "bf16", "weights": "1"}}, 4},
		{"weights", shape{slices: []uint64{page}, facts: map[string]string{"dtype": "bf16", "weights": "2"}}, 0},
		{"more facts", shape{slices: []uint64{page}, facts: map[string]string{"dtype": "bf16", "weights": "1", "salt": ""}}, 0},
		{"moved text", shape{slices: []uint64{page}, facts: map[string]string{"dtypeb": "f16", "weights": "1"}}, 0},
		{"slice", shape{slices: []uint64{page + 1}, facts: map[string]string{"dtype": "bf16", "weights": "1"}}, 0},
		{"world", shape{slices: []uint64{page, 0}, facts: map[string]string{"dtype": "bf16", "weights": "1"}}, 0},
	} {
		e := r.engine(fmt.Sprint("e", i), 1000*(i+1), test.sh)
		if got := r.found(e, keysOf(0, 4)); got != test.want {
			t.Errorf("%s: %d pages, want %d", test.name, got, test.want)
		}
	}
	r.check()
}

func TestPagesOutliveTheEngine(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("first", 100, one(page))
	r.publish(e, keysOf(0, 4))
	r.must(r.Detach(e.scheduler.id, "first"))
	r.must(r.Detach(e.ranks[0].id, "first"))
	if s := r.Stats(); s.Instances != 0 || s.Namespaces != 1 {
		t.Fatalf("%+v", s)
	}
	again := r.engine("second", 200, one(page))
	if n := r.found(again, keysOf(0, 4)); n != 4 {
		t.Fatalf("%d pages", n)
	}
	r.check()
}

func TestDetachGivesEverythingBack(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}, writers: []wire.Writer{wire.WriterCudaShared, wire.WriterHost}})
	r.publish(e, keysOf(0, 8))
	begun := r.query(e, keysOf(0, 4))
	r.query(e, keysOf(4, 4))
	r.must(r.Begin(e.scheduler.id, begun.Lease, wire.AllRanks, 4))
	r.reserve(e, keysOf(20, 2))
	r.must(r.Detach(e.ranks[0].id, "a"))
	r.check()
	if s := r.Stats(); s.Leases != 2 || s.AbandonedBytes != 2*2*page {
		t.Fatalf("%+v", s)
	}
	r.must(r.Detach(e.scheduler.id, "a"))
	r.must(r.Detach(e.ranks[1].id, "a"))
	r.check()
	if s := r.Stats(); s.Leases != 0 || s.QueryReservedBytes != 0 || s.PoolUsedBytes != 8*2*page || s.Instances != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestOnlyArenasThatEveryRankMapped(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 4 * page, QueryBudgetBytes: 16 * page})
	e := r.engine("a", 100, shape{slices: []uint64{page / 2, page / 2}})
	r.publish(e, keysOf(0, 4))
	r.AddArena(1, -1, 4*page)
	r.must(r.Mapped(e.ranks[0].id, 1, true, ""))
	if got := r.publish(e, keysOf(4, 2)); got.Pages != 2 || r.Stats().PageEvictionsTotal["retained"] != 2 {
		t.Fatalf("an arena that rank 1 cannot read was written to: %+v", got)
	}
	r.must(r.Mapped(e.ranks[1].id, 1, true, ""))
	r.Cleanup()
	got := r.publish(e, keysOf(0, 8))
	if got.Pages != 8 || len(got.Runs) != 2 || got.Runs[1].First.Arena() != 1 {
		t.Fatalf("%+v", got)
	}
	r.must(r.Mapped(e.ranks[0].id, 1, false, "cuMemHostRegister: out of memory"))
	lease := r.query(e, keysOf(0, 8))
	if lease.Pages != 4 || lease.NotMapped != 4 {
		t.Fatalf("%+v", lease)
	}
	if s := r.Stats(); s.PagesNotMappedTotal != 4 || s.PageHitsTotal != 4 || s.PageMissesTotal != 4 {
		t.Fatalf("%+v", s)
	}
	r.fails(r.Mapped(e.ranks[0].id, 2, true, ""), wire.StatusUnknown)
	r.must(r.Mapped(e.scheduler.id, 0, true, "")) // as after a detach
	if refusal := r.Status().Instances[0].Ranks[0].Refusal; !strings.Contains(refusal, "cuMemHostRegister") {
		t.Fatalf("refusal %q", refusal)
	}
	r.check()
}

func TestPagesOfTwoNodesHaveTwoParts(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, Nodes: []int{0, 1}, Seed: 3})
	r.AddArena(4, 0, 8*page)
	r.AddArena(5, 1, 8*page)
	e := r.engine("a", 100, shape{slices: []uint64{page, page / 2, page / 2}, numa: []int{1, 0, -1}, arenas: []uint16{0, 4, 5}})
	if len(e.ns.PartBytes) != 2 || e.ns.PartBytes[0] != page || e.ns.PartBytes[1] != page || e.ns.Slices[2].Offset != page/2 || e.ns.Slices[2].Part != 1 {
		t.Fatalf("%+v", e.ns)
	}
	got := r.publish(e, keysOf(0, 4))
	if len(got.Runs) != 2 || got.Runs[0].First.Arena() != 5 || got.Runs[1].First.Arena() != 4 || got.Runs[1].Part != 1 {
		t.Fatalf("parts do not lie on their nodes: %+v", got.Runs)
	}
	lease := r.query(e, keysOf(0, 4))
	if len(lease.Runs) != 2 || lease.Runs[0] != got.Runs[0] || lease.Runs[1] != got.Runs[1] {
		t.Fatalf("%+v", lease.Runs)
	}
	r.check()
	r.restore(e, lease)
	r.Clear()
	if r.Stats().PoolUsedBytes != 0 || len(r.moreParts) != 0 {
		t.Fatal("a part was not freed")
	}
	r.check()
}

func TestPrivateNamespace(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, shape{slices: []uint64{page, page}})
	worker := e.ranks[1]
	ns, err := r.OpenPrivate(worker.id, 5000)
	r.must(err)
	if ns.PageBytes != 8*kib || len(ns.Slices) != 1 || ns.Slices[0].Rank != 1 {
		t.Fatalf("%+v", ns)
	}
	_, err = r.OpenPrivate(worker.id, 5000)
	r.fails(err, wire.StatusConflict)
	_, err = r.OpenPrivate(e.scheduler.id, 5000)
	r.fails(err, wire.StatusNotReady)

	golden := &engine{scheduler: worker, ns: ns}
	got := r.reserve(golden, keysOf(0, 100))
	if got.Pages != PrivatePagesMax {
		t.Fatalf("%d pages, the bound is %d", got.Pages, PrivatePagesMax)
	}
	r.must(r.Committed(worker.id, got.Reservation, 1, all(got.Pages)))
	if n := r.found(e, keysOf(0, 4)); n != 0 {
		t.Fatal("private pages are visible to the instance")
	}
	lease := r.query(golden, keysOf(0, 2))
	if lease.Pages != 2 {
		t.Fatalf("%+v", lease)
	}
	_, err = r.SubmitQuery(e.ranks[0].id, Query{Operation: 1, Revision: 1, Namespace: ns.Namespace, Instance: "a", Keys: keysOf(0, 2)})
	r.fails(err, wire.StatusUnknown)
	if report := r.Cleanup(); report.EvictedPages != 0 {
		t.Fatalf("%+v", report)
	}
	r.must(r.Begin(worker.id, lease.Lease, wire.AllRanks, 2))
	r.check()
	r.must(r.ClosePrivate(worker.id))
	r.check()
	if s := r.Stats(); s.PoolUsedBytes != 2*8*kib {
		t.Fatalf("%d bytes used, two pages are being read", s.PoolUsedBytes)
	}
	r.must(r.Restored(worker.id, lease.Lease, 1, true, 10000, all(2)))
	s := r.Stats()
	if s.PoolUsedBytes != 0 || s.Namespaces != 1 || s.LoadBytesTotal != 0 || s.SaveBytesTotal != 0 || s.PageHitsTotal != 0 || s.PageInsertionsTotal != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()

	ns, err = r.OpenPrivate(worker.id, 4096)
	r.must(err)
	golden.ns = ns
	r.reserve(golden, keysOf(0, 2))
	r.CloseSession(worker.id)
	if s := r.Stats(); s.AbandonedBytes != 2*4*kib {
		t.Fatalf("a disconnect freed pages that its process may write: %+v", s)
	}
	r.check()
	r.ProcessExited(worker.process)
	if s := r.Stats(); s.PoolUsedBytes != 0 || s.Namespaces != 1 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestReconnectingWithoutResumeDoesNotFillTheTable(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	e := r.engine("a", 100, one(page))
	worker := e.ranks[0]
	for range SessionsMax + 10 {
		r.CloseSession(worker.id)
		worker = r.connect(worker.process, wire.RoleWorker)
		if _, err := r.Attach(worker.id, one(page).attach("a", 0)); err != nil {
			t.Fatal(err)
		}
	}
	r.check()
}

func TestSessionsAreBounded(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	p := r.process(1)
	for range SessionsMax {
		r.connect(p, wire.RoleTool)
	}
	_, _, err := r.OpenSession(p, wire.RoleTool, "one more", &queue{})
	r.fails(err, wire.StatusBusy)
	r.ProcessExited(p)
	if s := r.Stats(); s.Sessions != 0 || s.Processes != 0 {
		t.Fatalf("%+v", s)
	}
	_, _, err = r.OpenSession(p, wire.RoleTool, "late", &queue{})
	r.fails(err, wire.StatusUnknown)
}

func TestARankOfAWorldOfOneMaySchedule(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib, QueryBudgetBytes: 8 * mib, InstanceBudgetBytes: 4 * mib})
	process := r.process(1)
	worker, scheduler := r.connect(process, wire.RoleWorker), r.connect(process, wire.RoleScheduler)
	if _, err := r.Attach(worker.id, one(page).attach("a", 0)); err != nil {
		t.Fatal(err)
	}
	ns, err := r.Register(scheduler.id, "a", 0)
	if err != nil || ns.BudgetBytes != 4*mib {
		t.Fatal(ns, err)
	}
	r.check()
}

// TestRanksByBackend counts attached ranks by the backend that they name: an unknown name is other, and a rank that left is not counted.
func TestRanksByBackend(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 16 * mib})
	for i, backend := range []string{"direct", "direct", "kernel", "warp"} {
		id := fmt.Sprintf("engine %d", i)
		a := shape{slices: []uint64{page}}.attach(id, 0)
		a.Backend = backend
		worker := r.connect(r.process(i+1), wire.RoleWorker)
		if _, err := r.Attach(worker.id, a); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			r.must(r.Detach(worker.id, id))
		}
	}
	if got, want := fmt.Sprint(r.Stats().RanksByBackend), "map[direct:1 host:0 kernel:1 other:1]"; got != want {
		t.Errorf("ranks %s, want %s", got, want)
	}
}
