package cache

import (
	"fmt"

	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

// modelRequests is how many names requests of the model have: few, so that queries end hints.
const modelRequests = 4

func (w *world) request() string {
	return fmt.Sprint("r", rapid.IntRange(0, modelRequests-1).Draw(w.T, "request"))
}

// hint hints at a prefix. Nothing of it is the client's: it holds nothing, whatever the answer.
func (w *world) hint() {
	e, ok := w.schedulerThatActs()
	if !ok {
		return
	}
	from := rapid.IntRange(0, modelKeys-1).Draw(w.T, "from")
	keys := make([]int, rapid.IntRange(1, min(6, modelKeys-from)).Draw(w.T, "keys"))
	for i := range keys {
		keys[i] = from + i
	}
	w.deliverAll(e.scheduler)
	before := w.rig.Stats()
	busy := before.QueryReservedByPhase["preparing"] + before.QueryReservedByPhase["ready"] + before.QueryReservedByPhase["restoring"]
	e.ticket++
	got, err := w.rig.WarmPrefix(e.scheduler.id, Warm{
		Ticket: e.ticket, Namespace: e.ns.Namespace, Instance: e.id, Request: w.request(), Keys: wireKeys(keys),
	})
	w.rig.must(err)
	if refused := got.Outcome == wire.HintForeground; refused != (busy > 0) {
		w.Fatalf("a hint while queries own %d bytes: %v", busy, got.Outcome)
	}
	if after := w.rig.Stats(); after.PageHitsTotal != before.PageHitsTotal || after.PageMissesTotal != before.PageMissesTotal || after.Leases != before.Leases {
		w.Fatalf("a hint was counted as a query: %+v", after)
	}
}

func (w *world) cancelHint() {
	if e, ok := w.schedulerThatActs(); ok && e.ticket > 0 {
		id, ticket := e.scheduler.id, uint64(rapid.IntRange(0, 2).Draw(w.T, "which"))
		if ticket < e.ticket {
			e.scheduler.send(func() error { return w.rig.CancelWarm(id, e.ticket-ticket) })
		}
	}
}

// endReadAhead counts a page whose read a hint started and that queries could find. Room for the next one may have taken it at once.
func (w *world) endReadAhead(t TierPage, sealed bool) {
	ahead := w.ahead[t.Page]
	delete(w.ahead, t.Page)
	if !ahead || !sealed {
		return
	}
	bytes := uint64(0)
	for _, part := range t.Parts {
		bytes += part.Bytes
	}
	w.preparedBytes += bytes
	if _, live := w.rig.index.Page(t.Page); live {
		w.warmed[granulesOf(t)[0]] = &warmPage{bytes: bytes, since: w.rig.clock.now()}
	}
}
