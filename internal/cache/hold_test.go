package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

// full is a pool of small pages, all of them published, none in use.
func full(t *testing.T, pages int, config Config) (*rig, *engine) {
	config.PoolBytes = uint64(pages) * page
	r := newRig(t, config)
	e := r.engine("a", 100, one(page))
	if got := r.publish(e, keysOf(0, pages)); int(got.Pages) != pages {
		t.Fatalf("%d pages", got.Pages)
	}
	return r, e
}

// between runs a test's call each time that a long call lets go of the mutex. It must not end the test: the long call holds nothing then.
func (r *rig) between(call func(rest int)) {
	rests := 0
	r.yield = func() {
		rests++
		call(rests)
	}
}

// A reserve that must evict much lets others go on, and no hold of the mutex evicts more than one batch.
func TestNoHoldEvictsMoreThanOneBatch(t *testing.T) {
	const pages = 5*ReclaimBatchPages + 7
	r, e := full(t, 2*pages, Config{})
	other := r.engine("b", 200, one(page))
	agrees := func() {
		for _, v := range r.Check() {
			t.Errorf("I%d: %s", v.Invariant, v.Text)
		}
	}
	evicted, rests := uint64(0), 0
	step := func(int) {
		t.Helper()
		rests++
		now := r.Stats().PageEvictionsTotal["retained"]
		if now-evicted > ReclaimBatchPages {
			t.Errorf("one hold evicted %d pages", now-evicted)
		}
		evicted = now
		agrees()
		if n := r.found(other, keysOf(0, 1)); n != 1 {
			t.Errorf("another instance finds %d pages meanwhile", n)
		}
	}
	r.between(step)
	if got := r.publish(e, keysOf(10000, pages)); got.Pages != pages {
		t.Fatalf("%d pages", got.Pages)
	}
	if step(0); rests != 6 || evicted != pages {
		t.Fatalf("%d rests, %d pages evicted", rests-1, evicted)
	}
	for _, drop := range []func() CleanupReport{r.Cleanup, r.Clear} {
		evicted, rests = r.Stats().PageEvictionsTotal["retained"], 0
		r.between(func(int) {
			rests++
			now := r.Stats().PageEvictionsTotal["retained"]
			if now-evicted > ReclaimBatchPages {
				t.Errorf("one hold evicted %d pages", now-evicted)
			}
			evicted = now
			agrees()
		})
		if got := drop(); got.EvictedPages != 2*pages || rests < 2*pages/ReclaimBatchPages {
			t.Fatalf("%+v in %d steps", got, rests)
		}
		r.yield = func() {}
		r.publish(e, keysOf(0, 2*pages))
	}
}

// What a reserve knew before it let go of the mutex may be wrong after it.
func TestReserveLooksAnewAfterARest(t *testing.T) {
	const pages = 2 * ReclaimBatchPages
	for what, test := range map[string]struct {
		between func(*rig, *engine)
		status  wire.Status
	}{
		"its session is gone":         {func(r *rig, e *engine) { r.BreakSession(e.scheduler.id) }, wire.StatusUnknown},
		"its process is gone":         {func(r *rig, e *engine) { r.kill(e.scheduler); r.kill(e.ranks[0]) }, wire.StatusUnknown},
		"its namespace was replaced":  {func(r *rig, e *engine) { r.NewEpoch(e.scheduler.id, "a", 5) }, wire.StatusStale},
		"its operation was overtaken": {func(r *rig, e *engine) { r.reserve(e, keysOf(20000, 1)) }, wire.StatusStale},
		"the tables are full":         {func(r *rig, _ *engine) { r.reserve(r.engine("c", 300, one(page)), keysOf(20000, 1)) }, wire.StatusBusy},
	} {
		t.Run(what, func(t *testing.T) {
			r, e := full(t, 2*pages, Config{GlobalOperations: 1})
			r.between(func(rest int) {
				if rest == 1 {
					test.between(r, e)
				}
			})
			e.operation++
			_, err := r.Reserve(e.scheduler.id, Reserve{Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Instance: "a", Keys: keysOf(10000, pages)})
			r.fails(err, test.status)
			r.check()
		})
	}
}

// Pages that others reserved meanwhile are theirs, and what they took is made up for.
func TestReserveAfterOthersTookRoomAndKeys(t *testing.T) {
	const pages = 2 * ReclaimBatchPages
	r, e := full(t, 4*pages, Config{})
	other := r.engine("b", 200, one(page))
	r.between(func(rest int) {
		if rest == 1 {
			r.reserve(other, keysOf(10000, 10))
			r.publish(other, keysOf(10010, 10))
		}
	})
	got := r.reserve(e, keysOf(10000, pages))
	want := []wire.GrantRun{
		{Grant: wire.GrantBeingWritten, Count: 10},
		{Grant: wire.GrantPresent, Count: 10},
		{Grant: wire.GrantGranted, Count: pages - 20},
	}
	if len(got.Grants) != 3 || got.Grants[0] != want[0] || got.Grants[1] != want[1] || got.Grants[2] != want[2] {
		t.Fatalf("%+v", got.Grants)
	}
	r.check()
}

// The pages of a replaced epoch go in steps too, and the next reserve that needs room takes them first.
func TestDeadPagesAreSweptInBatches(t *testing.T) {
	const pages = 3*ReclaimBatchPages + 5
	r := newRig(t, Config{PoolBytes: pages * page})
	e := r.engine("a", 100, one(page))
	var err error
	e.ns, err = r.NewEpoch(e.scheduler.id, "a", 4) // epoch 0 is shared and stays
	r.must(err)
	r.publish(e, keysOf(0, pages))
	e.ns, err = r.NewEpoch(e.scheduler.id, "a", 5)
	r.must(err)
	if left := r.Stats().ResidentPages["retained"]; left != pages-ReclaimBatchPages {
		t.Fatalf("one call swept all but %d pages", left)
	}
	last := r.Stats().ResidentPages["retained"]
	r.between(func(int) {
		now := r.Stats().ResidentPages["retained"]
		if last-now > ReclaimBatchPages {
			t.Errorf("one hold swept %d pages", last-now)
		}
		last = now
	})
	r.publish(e, keysOf(0, ReclaimBatchPages+1))
	if s := r.Stats(); s.ResidentPages["retained"] < pages-ReclaimBatchPages || s.PageEvictionsTotal["retained"] != 0 {
		t.Fatalf("a page was evicted while dead ones were left: %+v", s)
	}
	last = r.Stats().ResidentPages["retained"]
	r.Tick()
	r.Tick()
	if left := r.Stats().ResidentPages["retained"]; left != ReclaimBatchPages+1 {
		t.Fatalf("%d pages are left", left)
	}
	r.check()
}
