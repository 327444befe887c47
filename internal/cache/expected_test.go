package cache

import (
	"testing"
	"time"

	"orbitkv/internal/wire"
)

// An answer says when the prefix will be there and what it lacks; the tier is asked about the pages that are read and those that will be.
func TestPreparingSaysWhenAndWhat(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 6)
	r.publish(e, keysOf(0, 1))
	b.expected = 1500 * time.Microsecond
	got := r.query(e, keysOf(0, 6))
	if got.Outcome != wire.OutcomePreparing || got.Expected != b.expected || got.Missing != 5 {
		t.Errorf("%+v", got)
	}
	if a := b.awaited; len(a.Reading) != 2 || len(a.Unread) != 3 || a.UnreadPages != 3 || a.BeforeBytes != 0 {
		t.Errorf("%+v", a)
	}
	if a, keys := b.awaited, keysOf(0, 6); *a.Reading[0] != keys[1] || *a.Unread[2] != keys[5] {
		t.Error("other pages are meant")
	}
	r.endRead(b, 0, true)
	if got = r.outcome(e, got.Operation, 1, wire.OutcomePreparing); got.Missing != 4 || b.awaited.UnreadPages != 2 {
		t.Errorf("%+v, %d pages are not read", got, b.awaited.UnreadPages)
	}
	r.endReads(b)
	if got = r.outcome(e, got.Operation, 1, wire.OutcomeReady); got.Expected != 0 || got.Missing != 0 {
		t.Errorf("%+v", got)
	}
	r.check()
}

// What older queries read in turn with this one goes before it, at most as much as its own; the same pages are read once.
func TestOlderQueriesGoBefore(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 40)
	first := r.query(e, keysOf(0, 20))
	if b.awaited.BeforeBytes != 0 {
		t.Errorf("%d bytes before the first", b.awaited.BeforeBytes)
	}
	r.query(e, keysOf(0, 20))
	if b.awaited.BeforeBytes != 0 {
		t.Errorf("%d bytes of the same pages", b.awaited.BeforeBytes)
	}
	r.query(e, keysOf(30, 10))
	if b.awaited.UnreadPages != 8 || b.awaited.BeforeBytes != 2*8*page {
		t.Errorf("%d pages, %d bytes before them", b.awaited.UnreadPages, b.awaited.BeforeBytes)
	}
	r.outcome(e, first.Operation, 1, wire.OutcomePreparing)
	if b.awaited.BeforeBytes != 0 {
		t.Errorf("%d bytes of younger ones", b.awaited.BeforeBytes)
	}
	r.endReads(b)
	r.check()
}

// An answer for a long prefix looks at some of its pages alone.
func TestExpectedIsBounded(t *testing.T) {
	r, b, e := tierRig(t, Config{ReadBatchBytes: 2 * page}, 200)
	got := r.query(e, keysOf(0, 200))
	if a := b.awaited; len(a.Unread) > expectKeysMax || len(a.Unread) < expectKeysMax/2 || a.UnreadPages < 150 || uint64(got.Missing) != a.UnreadPages+2 {
		t.Errorf("%d of %d pages were looked at, %d are missing", len(a.Unread), a.UnreadPages, got.Missing)
	}
	r.endReads(b)
	r.check()
}
