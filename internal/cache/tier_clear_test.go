package cache

import "testing"

// A clear lets go of the mutex between batches, and what it has not come to yet is still in the pool: none of that may go back to the tier.
func TestNothingThatIsBeingClearedIsWrittenAgain(t *testing.T) {
	const pages = 2*ReclaimBatchPages + 1
	r, b, e := tierRig(t, Config{PoolBytes: 2 * pages * page}, 1)
	r.publish(e, keysOf(0, pages))
	r.endWrites(b)
	r.between(func(int) {
		r.Offer(1, 0, keysOf(0, pages)) // what queries asked for before the clear
		r.publish(e, keysOf(pages, 1))
	})
	r.Clear()
	r.yield = func() {}
	r.endWrites(b)
	r.check()
	if r.found(e, keysOf(0, pages)) != 0 || len(b.stored) != 0 || len(b.reads) != 0 {
		t.Fatalf("%d pages from before the clear are stored", len(b.stored))
	}
	if skipped := r.Stats().WriteSkipsTotal["clearing"]; skipped == 0 {
		t.Fatalf("what was offered meanwhile is not counted: %v", r.Stats().WriteSkipsTotal)
	}
	r.publish(e, keysOf(0, 1))
	if len(b.writes) != 1 {
		t.Fatalf("%d pages are offered after the clear", len(b.writes))
	}
}

// Between the end of a write in the tier and the word of it here, the tier would take the page again: it is referenced once, and told of once.
func TestAPageWhoseFailedWriteIsNotToldYetIsNotOfferedAgain(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 1)
	r.publish(e, keysOf(1, 1))
	failed := b.writes[0]
	b.writes = nil
	r.Offer(1, 0, keysOf(1, 1))
	r.check()
	if len(b.writes) != 0 {
		t.Fatal("a page is being written twice")
	}
	r.PageWritten(failed.Page, b.digest, false)
	r.Offer(1, 0, keysOf(1, 1))
	if len(b.writes) != 1 {
		t.Fatal("a page that could not be written is not offered again")
	}
	r.endWrites(b)
	r.check()
}
