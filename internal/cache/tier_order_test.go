package cache

import (
	"testing"

	"orbitkv/internal/wire"
)

// A tier without room for all of a prefix must have its head.
func TestAPrefixIsOfferedFromItsHeadOn(t *testing.T) {
	b := newBench()
	r := newRig(t, Config{Tier: b, PoolBytes: 16 * mib})
	r.publish(r.engine("a", 100, one(page)), keysOf(0, 5))
	for i, key := range keysOf(0, 5) {
		if b.writes[i].Key != key {
			t.Errorf("page %d was offered in place of page %d of its prefix", i, i)
		}
	}
	r.check()
}

// Queries that wait for the tier's queue without a read of their own end with the clear, all of them.
func TestAClearEndsEveryQueryThatWaits(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 6)
	b.room = 1
	var asked []Result
	for first := range 4 {
		asked = append(asked, r.query(e, keysOf(first, first+2)))
	}
	r.Clear()
	for i, got := range asked {
		r.outcome(e, got.Operation, 1, wire.OutcomeReady)
		if got.Outcome != wire.OutcomePreparing {
			t.Errorf("query %d had the outcome %v before the clear", i, got.Outcome)
		}
	}
	for len(b.reads) > 0 {
		r.endRead(b, 0, true)
	}
	r.check()
}
