package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

func (r *rig) classes(probationary, retained uint64) {
	r.t.Helper()
	r.check()
	s := r.Stats()
	if s.ResidentPages["probationary"] != probationary || s.ResidentPages["retained"] != retained {
		r.t.Fatalf("%d pages are probationary and %d retained, want %d and %d", s.ResidentPages["probationary"], s.ResidentPages["retained"], probationary, retained)
	}
}

func TestWithoutProtectionEverythingOfUseIsRetained(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 4))
	r.classes(0, 4)
	r.found(e, keysOf(0, 4))
	r.classes(0, 4)
	if s := r.Stats(); s.ProtectedBytes != 0 || s.PagePromotionsTotal != 0 || s.PageDemotionsTotal != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestFoundPagesAreProtectedUpToTheShare(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page, ProtectedPercent: 30})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 6))
	r.classes(6, 0)
	r.found(e, keysOf(0, 2))
	r.classes(4, 2)
	r.found(e, keysOf(3, 2)) // one finds room, for the other one the oldest falls back
	r.classes(3, 3)
	s := r.Stats()
	if s.ProtectedBytes != 3*page || s.PagePromotionsTotal != 4 || s.PageDemotionsTotal != 1 {
		t.Fatalf("%+v", s)
	}
	// Page 1 is the tail of what was found first: it was used before page 0, and fell back.
	r.publish(e, keysOf(10, 6)) // 4 places are free
	r.classes(7, 3)
	for from, want := range map[int]int{0: 1, 1: 1, 2: 0, 3: 1, 4: 1, 5: 0, 10: 1} {
		if n := r.found(e, keysOf(from, 1)); n != want {
			t.Errorf("page %d: found %d", from, n)
		}
	}
}

func TestAPrefixLargerThanTheShareProtectsItsHead(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page, ProtectedPercent: 30})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 8))
	r.found(e, keysOf(0, 8))
	r.classes(5, 3)
	if s := r.Stats(); s.PageDemotionsTotal != 0 {
		t.Fatalf("%d pages fell back although the whole prefix is referenced", s.PageDemotionsTotal)
	}
	r.publish(e, keysOf(20, 7))
	if n := r.found(e, keysOf(0, 8)); n != 3 {
		t.Fatalf("%d pages of the head are left", n)
	}
}

func TestAPageLargerThanTheShareIsNeverPromoted(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 100 * page, ProtectedPercent: 1})
	small, large := r.engine("a", 100, one(page)), r.engine("b", 200, one(2*page))
	r.publish(small, keysOf(0, 1))
	r.found(small, keysOf(0, 1))
	r.publish(large, keysOf(0, 2))
	r.found(large, keysOf(0, 2))
	r.classes(2, 1)
	if s := r.Stats(); s.PageDemotionsTotal != 0 || s.ProtectedBytes != page {
		t.Fatalf("what cannot fit pushed others out: %+v", s)
	}
}

func TestManySmallPagesFallBackForALargeOne(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 20 * page, ProtectedPercent: 50})
	small, large := r.engine("a", 100, one(page)), r.engine("b", 200, one(4*page))
	r.publish(small, keysOf(0, 9))
	r.found(small, keysOf(0, 9))
	r.publish(large, keysOf(0, 1))
	r.found(large, keysOf(0, 1))
	r.classes(3, 7)
	if s := r.Stats(); s.ProtectedBytes != 10*page || s.PageDemotionsTotal != 3 {
		t.Fatalf("%+v", s)
	}
}

func TestEvictionLeavesTheShare(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page, ProtectedPercent: 30})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 3))
	got := r.query(e, keysOf(0, 3))
	r.Cleanup() // they are leased: out of the index, not yet free
	if s := r.Stats(); s.ProtectedBytes != 0 || s.RetiredBytes != 3*page {
		t.Fatalf("%+v", s)
	}
	r.check()
	r.restore(e, got)
	r.publish(e, keysOf(0, 3))
	r.found(e, keysOf(0, 3))
	r.classes(0, 3)
}

func TestAWarmedPageThatIsFoundIsNoLongerTheFirstVictim(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 10 * page, ProtectedPercent: 10})
	e := r.engine("a", 100, one(page))
	r.warm(e, keyOf(0))
	r.warm(e, keyOf(1))
	r.found(e, keysOf(0, 2))
	r.classes(1, 1) // one fits the share, the other begins where pages of use begin
}

// What the tier brings for a query was not found: it begins as probationary. The pages that were resident when the query asked were.
func TestAReadForAQueryIsNoHit(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 20 * page, ProtectedPercent: 50}, 6)
	r.publish(e, keysOf(0, 2))
	r.classes(2, 0)
	got := r.query(e, keysOf(0, 6))
	r.endReads(b)
	r.classes(4, 2)
	r.restore(e, r.outcome(e, got.Operation, 1, wire.OutcomeReady))
	r.found(e, keysOf(0, 6))
	r.classes(0, 6)
}

// Pages that a query holds may leave the index before it is ready: they are leased, and no part of the segment.
func TestAPageThatLeftMeanwhileIsNotProtected(t *testing.T) {
	r, b, e := tierRig(t, Config{PoolBytes: 20 * page, ProtectedPercent: 50}, 6)
	r.publish(e, keysOf(0, 2))
	got := r.query(e, keysOf(0, 6))
	r.Cleanup()
	r.endReads(b)
	r.classes(4, 0)
	r.restore(e, r.outcome(e, got.Operation, 1, wire.OutcomeReady))
	r.check()
}
