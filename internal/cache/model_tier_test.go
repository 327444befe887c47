package cache

import (
	"fmt"
	"slices"

	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

// The model's tier keeps what it really read from the pool's memory, and puts it there again when a read ends. It ends transfers in any order, loses
// pages whenever it likes, fails, and takes few reads at once. What it does to memory is done between the calls of the cache, so a page that is granted
// too early is seen by whoever gets it.

const modelReadRoom = 3

// startTier puts a tier below the world's cache.
func (w *world) startTier() *bench {
	w.tier = newBench()
	w.tier.room = modelReadRoom
	w.tier.onRead = func(t TierPage, priority ReadPriority) {
		for _, at := range granulesOf(t) {
			w.mustBeFree(at)
			delete(w.warmed, at)
		}
		w.ahead[t.Page] = priority == ReadWarm
	}
	return w.tier
}

// granulesOf lists the places of a page, part by part.
func granulesOf(t TierPage) (places []place) {
	for _, part := range t.Parts {
		for offset := uint64(0); offset < part.Bytes; offset += granule {
			places = append(places, place{part.Location.Arena(), (uint64(part.Location.Offset()) + offset) / granule})
		}
	}
	return places
}

// inTransit says whether a transfer of the tier may write a place, or read it.
func (w *world) inTransit(at place) bool {
	if w.tier == nil {
		return false
	}
	uses := func(t TierPage) bool { return slices.Contains(granulesOf(t), at) }
	return slices.ContainsFunc(w.tier.reads, uses) || slices.ContainsFunc(w.tier.writes, uses)
}

// tierReads ends one read: with the bytes, or with a part of them and a failure.
func (w *world) tierReads() {
	if i, ok := w.transfer(len(w.tier.reads)); ok {
		w.endRead(i, rapid.IntRange(0, 5).Draw(w.T, "read") > 0)
	}
}

func (w *world) endRead(i int, ok bool) {
	t := w.tier.reads[i]
	content, kept := w.tier.stored[t.stored()].([]string)
	for n, at := range granulesOf(t) {
		w.memory[at] = "bytes of a read that failed"
		if kept && ok {
			w.memory[at] = content[n]
		}
	}
	w.tier.reads = slices.Delete(w.tier.reads, i, i+1)
	r := w.rig.reads[t.Page.Entry()]
	seals := ok && kept && !r.forgotten && !r.namespace.dead
	w.rig.PageRead(t.Page, digestOfContent(content), ok && kept)
	w.endReadAhead(t, seals)
}

// tierWrites ends one write. What it read must be one page of one key.
func (w *world) tierWrites() {
	if i, ok := w.transfer(len(w.tier.writes)); ok {
		w.endWrite(i, rapid.IntRange(0, 5).Draw(w.T, "write") > 0)
	}
}

func (w *world) endWrite(i int, ok bool) {
	t := w.tier.writes[i]
	w.tier.writes = slices.Delete(w.tier.writes, i, i+1)
	var content []string
	for n, at := range granulesOf(t) {
		var facts string
		var epoch uint64
		var key, rank int
		held := w.memory[at]
		if _, err := fmt.Sscanf(slashed(held), "%s %d %d %d", &facts, &epoch, &key, &rank); err != nil || keyOf(key) != t.Key || rank != n {
			w.Fatalf("slice %d of a page that is written to the tier holds %q at %v, its key is %v", n, held, at, t.Key)
		}
		identity := fmt.Sprint(facts, "/", epoch)
		if before, known := w.tierFacts[t.Namespace]; known && before != identity {
			w.Fatalf("namespace %d of the tier has pages of %q and %q", t.Namespace, before, identity)
		}
		w.tierFacts[t.Namespace] = identity
		content = append(content, held)
	}
	if ok && !slices.Contains(w.tier.dropped, t.Namespace) {
		w.tier.stored[t.stored()] = content
	}
	w.rig.PageWritten(t.Page, digestOfContent(content), ok)
}

func slashed(s string) string {
	return string(slices.Collect(func(yield func(byte) bool) {
		for _, b := range []byte(s) {
			if b == '/' {
				b = ' '
			}
			if !yield(b) {
				return
			}
		}
	}))
}

func (w *world) transfer(running int) (int, bool) {
	if running == 0 {
		return 0, false
	}
	return rapid.IntRange(0, running-1).Draw(w.T, "transfer"), true
}

// tierLoses evicts a page from the tier.
func (w *world) tierLoses() {
	var kept []storedKey
	for k := range w.tier.stored {
		kept = append(kept, k)
	}
	slices.SortFunc(kept, func(a, b storedKey) int {
		return 2*int(int64(a.namespace)-int64(b.namespace)) + slices.Compare(a.key[:], b.key[:])
	})
	if k, ok := draw(w, "lost", kept); ok {
		delete(w.tier.stored, k)
	}
}

// tierAsks has the tier ask for pages that a demand named and that it lacks.
func (w *world) tierAsks() {
	for _, k := range w.tier.demanded {
		if w.tier.Wanted(k.namespace, k.group, &k.key) {
			w.rig.Offer(k.namespace, k.group, []wire.Key{k.key})
		}
	}
	w.tier.demanded = nil
}

// tierEnds ends every transfer and those that follow.
func (w *world) tierEnds() {
	for w.tier != nil && len(w.tier.reads)+len(w.tier.writes) > 0 {
		if len(w.tier.reads) > 0 {
			w.endRead(0, true)
		} else {
			w.endWrite(0, true)
		}
	}
}

// stopQuery takes what is there of a query that waits or is being read.
func (w *world) stopQuery() {
	e, ok := w.schedulerThatActs()
	if !ok {
		return
	}
	operation, ok := draw(w, "operation", inOrder(reverse(e.waiting)))
	if !ok {
		return
	}
	w.deliverAll(e.scheduler)
	got, err := w.rig.StopQuery(e.scheduler.id, operation, 1)
	w.rig.must(err)
	w.check(got.Outcome == wire.OutcomeReady, "a stopped query is %v", got.Outcome)
	w.take(e, e.waiting[operation], got)
}
