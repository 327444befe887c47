package cache

import (
	"maps"
	"testing"

	"orbitkv/internal/wire"
)

func (r *rig) skips(want map[string]uint64) {
	r.t.Helper()
	full := map[string]uint64{"cold": 0, "resident": 0, "pending": 0, "duplicate": 0, "clearing": 0}
	maps.Copy(full, want)
	if got := r.Stats().WriteSkipsTotal; !maps.Equal(got, full) {
		r.t.Fatalf("writes were skipped %v times, want %v", got, full)
	}
}

// offered is how many pages lie on the tier's table; it ends them.
func (r *rig) offered(b *bench) int {
	n := len(b.writes)
	r.endWrites(b)
	return n
}

func reuseRig(t *testing.T) (*rig, *bench, *engine) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 16 * mib, Tier: b, WritePolicy: WriteReuse})
	return r, b, r.engine("a", 100, one(page))
}

func TestReuseOffersWhatIsSavedAgain(t *testing.T) {
	r, b, e := reuseRig(t)
	r.publish(e, keysOf(0, 4))
	if n := r.offered(b); n != 0 {
		t.Fatalf("%d pages that were saved for the first time are written", n)
	}
	r.skips(map[string]uint64{"cold": 4})
	r.publish(e, keysOf(0, 4)) // they are there: nothing is saved
	r.skips(map[string]uint64{"cold": 4})
	r.Cleanup()
	r.publish(e, keysOf(2, 4))
	if n := r.offered(b); n != 2 {
		t.Fatalf("%d of two pages that were saved twice are written", n)
	}
	r.skips(map[string]uint64{"cold": 6})
	r.Cleanup()
	r.publish(e, keysOf(2, 2))
	if n := r.offered(b); n != 0 {
		t.Fatalf("%d pages that the tier has are written again", n)
	}
	r.skips(map[string]uint64{"cold": 6, "resident": 2})
	r.check()
}

func TestReuseKeepsNamespacesAndGroupsApart(t *testing.T) {
	r, b, e := reuseRig(t)
	other := shape{slices: []uint64{page}, facts: map[string]string{"model": "another"}}
	r.publish(e, keysOf(0, 2))
	r.publish(r.engine("b", 200, other), keysOf(0, 2))
	e.operation++
	got, err := r.Reserve(e.scheduler.id, Reserve{Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Group: 1, Instance: e.id, Keys: keysOf(0, 2)})
	r.must(err)
	r.commit(e, got)
	if n := r.offered(b); n != 0 {
		t.Fatalf("%d pages of other identities count as saved again", n)
	}
}

func TestReuseForgetsTheOldestOfItsHistory(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 256 * mib, Tier: b, WritePolicy: WriteReuse})
	e := r.engine("a", 100, one(4*kib))
	const history = 16384
	r.publish(e, keysOf(0, 1))
	r.publish(e, keysOf(1, history))
	r.Cleanup()
	r.publish(e, keysOf(0, 1))
	if n := r.offered(b); n != 0 {
		t.Fatal("the oldest of one page too many is remembered")
	}
	r.publish(e, keysOf(1, 1))
	if n := r.offered(b); n != 1 {
		t.Fatal("a page of the last ones is forgotten")
	}
}

// A query that finds pages names them to the tier, which asks for those that it lacks. It is a signal under both policies; a wait that ends with
// nothing, or a page that a query's own read brought, is none.
func TestAFoundPageIsOfferedUnderBothPolicies(t *testing.T) {
	for _, writes := range []WritePolicy{WriteAll, WriteReuse} {
		b := newBench()
		b.full = true // what is saved is lost on its way
		r := newRig(t, Config{PoolBytes: 16 * mib, Tier: b, WritePolicy: writes})
		e := r.engine("a", 100, one(page))
		r.publish(e, keysOf(0, 4))
		b.full = false
		if r.found(e, keysOf(0, 3)) != 3 || len(b.demanded) != 3 {
			t.Fatalf("%d pages were named to the tier", len(b.demanded))
		}
		r.Offer(1, 0, keysOf(0, 5))
		if n := r.offered(b); n != 4 {
			t.Fatalf("policy %d: %d of four resident pages were offered", writes, n)
		}
		r.check()
	}
}

func TestSkipsAreCountedByReason(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{PoolBytes: 16 * mib, Tier: b})
	e := r.engine("a", 100, one(page))
	r.publish(e, []wire.Key{keyOf(0), keyOf(1), keyOf(0)})
	r.skips(map[string]uint64{"duplicate": 1})
	r.Offer(1, 0, keysOf(0, 2))
	r.skips(map[string]uint64{"duplicate": 1, "clearing": 0, "pending": 2})
	r.endWrites(b)
	r.Offer(1, 0, keysOf(0, 1))
	r.skips(map[string]uint64{"duplicate": 1, "clearing": 0, "pending": 2, "resident": 1})
	r.check()

	r = newRig(t, Config{PoolBytes: 16 * mib})
	e = r.engine("a", 100, one(page))
	r.publish(e, []wire.Key{keyOf(0), keyOf(0)})
	r.skips(nil) // there is no tier to write to
}

// A key that is named twice in one reserve is saved once: that is no second save.
func TestARepetitionInOneBatchIsNoReuse(t *testing.T) {
	r, b, e := reuseRig(t)
	r.publish(e, []wire.Key{keyOf(0), keyOf(0), keyOf(0)})
	if n := r.offered(b); n != 0 {
		t.Fatal("a repetition inside one reserve counts as a second save")
	}
	r.skips(map[string]uint64{"cold": 1, "duplicate": 2})
}
