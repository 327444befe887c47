package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

// frequencyRig is a pool of ten pages that is full: pages 0 to 9, each saved once; those below used were found three times since.
func frequencyRig(t *testing.T, config Config, used int) (*rig, *engine) {
	t.Helper()
	config.PoolBytes, config.QueryBudgetBytes, config.LFUAdmission = 10*page, 10*page, true
	r := newRig(t, config)
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 10))
	for range 3 {
		if used > 0 && r.found(e, keysOf(0, used)) != used {
			t.Fatal("a page is missing")
		}
	}
	return r, e
}

// grants expands an answer to one grant a key.
func grants(got Reserved) (each []wire.Grant) {
	for _, run := range got.Grants {
		for range run.Count {
			each = append(each, run.Grant)
		}
	}
	return each
}

func TestAPageThatIsUsedLessThanItsVictimIsNotPublished(t *testing.T) {
	r, e := frequencyRig(t, Config{}, 10)
	got := r.reserve(e, keysOf(20, 3))
	if got.Pages != 0 || got.Reservation != 0 || len(got.Grants) != 1 || got.Grants[0] != (wire.GrantRun{Grant: wire.GrantNoRoom, Count: 3}) {
		t.Fatalf("%+v", got)
	}
	s := r.Stats()
	if s.AdmissionRejectionsTotal != 3 || s.PageEvictionsTotal["retained"] != 0 || s.PoolAllocFailuresTotal != 0 {
		t.Fatalf("%+v", s)
	}
	r.check()
	for range 4 {
		r.found(e, keysOf(20, 3)) // asked for, and not there
	}
	if got := r.publish(e, keysOf(20, 3)); got.Pages != 3 {
		t.Fatalf("pages that are used as often as their victims are refused: %+v", got)
	}
	if s := r.Stats(); s.AdmissionRejectionsTotal != 3 || s.PageEvictionsTotal["retained"] != 3 {
		t.Fatalf("%+v", s)
	}
	r.check()
}

func TestFreeRoomIsNotWeighed(t *testing.T) {
	r, e := frequencyRig(t, Config{}, 8)
	r.found(e, keysOf(8, 2))
	r.Cleanup()
	r.publish(e, keysOf(0, 8))
	if got := r.reserve(e, keysOf(20, 4)); got.Pages != 2 || grants(got)[0] != wire.GrantGranted || grants(got)[2] != wire.GrantNoRoom {
		t.Fatalf("two pages have room, two must not evict others: %+v", got)
	}
	if s := r.Stats(); s.AdmissionRejectionsTotal != 2 {
		t.Fatalf("%d were refused", s.AdmissionRejectionsTotal)
	}
	r.check()
}

// Victims stand in their order: the pages used least are the oldest here, so that the first keys win against them and the rest loses.
func TestEachKeyIsWeighedAgainstItsVictim(t *testing.T) {
	r, e := frequencyRig(t, Config{}, 7)
	if got := grants(r.publish(e, keysOf(20, 6))); got[2] != wire.GrantGranted || got[3] != wire.GrantNoRoom {
		t.Fatalf("three pages were used once: %v", got)
	}
	if n := r.found(e, keysOf(0, 8)); n != 7 {
		t.Fatalf("%d of the pages that are used often are left", n)
	}
	r.check()
}

// A key that loses does not take the next one's chance.
func TestTheNextKeyMeetsTheSameVictim(t *testing.T) {
	r, e := frequencyRig(t, Config{}, 10)
	for range 5 {
		r.found(e, keysOf(21, 1))
	}
	if got := grants(r.publish(e, keysOf(20, 3))); got[0] != wire.GrantNoRoom || got[1] != wire.GrantGranted || got[2] != wire.GrantNoRoom {
		t.Fatalf("%v", got)
	}
	r.check()
}

func TestAPageIsWeighedAgainstAllItsVictims(t *testing.T) {
	r, e := frequencyRig(t, Config{}, 9) // page 9 was used once, page 8 is the next victim
	large := r.engine("b", 200, one(2*page))
	if got := r.reserve(large, keysOf(0, 1)); got.Pages != 0 {
		t.Fatal("one of the two victims is used more")
	}
	if n := r.found(e, keysOf(0, 10)); n != 10 {
		t.Fatalf("a refused page cost %d others", 10-n)
	}
	r.check()
}

// The pages of a dead namespace are room, however often they were used, and where they are room enough nothing else is weighed.
func TestPagesOfADeadNamespaceCostNothing(t *testing.T) {
	const dead, others = 600, 100 // more than one batch of the sweep
	for _, hot := range []bool{true, false} {
		r, e := deadRig(t, dead, others, hot)
		want := dead
		if !hot {
			want += others / 2 // in place of pages that are used as little
		}
		if got := r.publish(e, keysOf(0, want)); int(got.Pages) != want || r.Stats().AdmissionRejectionsTotal != 0 {
			t.Fatalf("others are used often: %v: %d of %d pages were granted", hot, got.Pages, want)
		}
		r.check()
	}
}

// deadRig is a full pool: pages of an epoch that was left, which were used often, and those of another engine, found often when hot.
func deadRig(t *testing.T, dead, others int, hot bool) (*rig, *engine) {
	t.Helper()
	pool := uint64(dead+others) * 4 * mib
	r := newRig(t, Config{PoolBytes: pool, QueryBudgetBytes: pool, LFUAdmission: true})
	e := r.engine("a", 100, one(4*mib))
	other := r.engine("b", 200, shape{slices: []uint64{4 * mib}, facts: map[string]string{"model": "another"}})
	epoch := func(n uint64) {
		var err error
		e.ns, err = r.NewEpoch(e.scheduler.id, e.id, n)
		r.must(err)
	}
	epoch(1)
	r.publish(e, keysOf(0, dead))
	for range 3 {
		r.found(e, keysOf(0, dead))
	}
	r.publish(other, keysOf(0, others)) // last, so that the dead pages are the first victims
	for range 3 {
		if hot {
			r.found(other, keysOf(0, others))
		}
	}
	epoch(2)
	if used := r.Stats().PoolUsedBytes; used != pool-ReclaimBatchPages*4*mib {
		t.Fatalf("%d bytes are used after the first batch of the sweep", used)
	}
	return r, e
}

func TestWithoutItEveryPublishEvicts(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 10))
	for range 5 {
		r.found(e, keysOf(0, 10))
	}
	if got := r.publish(e, keysOf(20, 3)); got.Pages != 3 || r.Stats().AdmissionRejectionsTotal != 0 {
		t.Fatalf("%+v", got)
	}
}

// What no query asks for, a generated page, is used by its save: it is the equal of a page that was asked for once.
func TestASaveThatNobodyAskedForIsAFirstUse(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page, LFUAdmission: true})
	e := r.engine("a", 100, one(page))
	r.found(e, keysOf(0, 10))
	r.publish(e, keysOf(0, 10))
	if got := r.publish(e, keysOf(20, 2)); got.Pages != 2 {
		t.Fatalf("%+v", got)
	}
}
