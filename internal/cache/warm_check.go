package cache

import (
	"orbitkv/internal/index"
)

// hint checks one hint: its reads, what it holds and what it is charged (I1, I4). It adds the references that it finds.
func (k *checker) hint(h *hint, refs map[index.Handle]uint32) {
	for _, page := range h.held {
		refs[page]++
		if p, _ := k.c.index.Page(page); p.Origin != index.Warmed {
			k.add(7, "hint %d holds page record %d, which no hint read", h.ticket, page.Entry())
		}
	}
	reads := 0
	for _, r := range k.c.reads {
		for _, waiting := range r.hints {
			if waiting == h {
				reads++
			}
		}
	}
	if reads != h.reads {
		k.add(4, "hint %d waits for %d reads, its counter says %d", h.ticket, reads, h.reads)
	}
	if draining := h.state == hintDraining; h.state == hintEnded || draining && (h.reads == 0 || len(h.held) > 0 || h.next < len(h.keys)) {
		k.add(4, "hint %d is %s, waits for %d reads, holds %d pages and has %d to read", h.ticket, hintMachine.Names[h.state], h.reads, len(h.held), len(h.keys)-h.next)
	}
	pages := uint64(len(h.keys) - h.next + h.reads + len(h.held))
	if want := pages * h.instance.geometry.pageBytes; h.charged != want || h.phase != phaseWarming {
		k.add(4, "a hint of %d pages that are wanted, read or held is charged %d bytes in phase %s, not %d", pages, h.charged, phaseMachine.Names[h.phase], want)
	}
}

// warming checks the bounds of hints, and the account of the pages that they read against the records: each undecided allocation stands in it once (I6).
func (k *checker) warming() {
	c := k.c
	global, instance := c.budget.warmMax()
	if bytes := c.budget.byPhase[phaseWarming]; bytes > global || len(c.hints) > WarmGlobalMax {
		k.add(4, "%d hints charge %d bytes, the most is %d and %d", len(c.hints), bytes, WarmGlobalMax, global)
	}
	for _, inst := range c.everyInstance() {
		if bytes := inst.charged[phaseWarming]; bytes > instance {
			k.add(4, "hints of instance %q charge %d bytes, the most is %d", inst.id, bytes, instance)
		}
	}
	bySession := map[*session]int{}
	for _, h := range c.hints {
		bySession[h.session]++
	}
	for _, s := range c.sessions {
		if s.hints != bySession[s] || s.hints > WarmSessionMax {
			k.add(4, "session %d has %d hints, its counter says %d, the most is %d", s.id, bySession[s], s.hints, WarmSessionMax)
		}
	}
	undecided, pages := uint64(0), 0
	c.index.Scan(0, c.index.Records(), func(p index.Page) bool {
		if p.Origin != index.Warmed || p.Credited || p.State != index.Sealed && p.State != index.Retired {
			return true
		}
		pages++
		undecided += c.namespaces[p.Namespace].geometry.pageBytes
		if _, known := c.useful.ready[p.Handle]; !known {
			k.add(6, "page record %d was read by a hint and is undecided, its account does not know it", p.Handle.Entry())
		}
		return true
	})
	if pages != len(c.useful.ready) {
		k.add(6, "%d pages that hints read are undecided, their account knows %d", pages, len(c.useful.ready))
	}
	if prepared, sum := c.useful.preparedBytes, c.useful.restoredBytes+c.useful.unusedBytes+undecided; prepared != sum {
		k.add(6, "warmed pages: %d bytes prepared, %d restored, unused and pending", prepared, sum)
	}
}
