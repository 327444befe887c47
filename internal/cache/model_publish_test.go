package cache

import (
	"orbitkv/internal/wire"

	"pgregory.net/rapid"
)

func (w *world) reserve() {
	e, ok := w.schedulerThatActs()
	if !ok {
		return
	}
	from := rapid.IntRange(0, modelKeys-1).Draw(w.T, "from")
	keys := make([]int, rapid.IntRange(1, min(5, modelKeys-from)).Draw(w.T, "keys"))
	for i := range keys {
		keys[i] = from + i
	}
	w.deliverAll(e.scheduler)
	e.operation++
	got, err := w.rig.Reserve(e.scheduler.id, Reserve{
		Operation: e.operation, Revision: 1, Namespace: e.ns.Namespace, Instance: e.id, Keys: wireKeys(keys),
	})
	if err != nil {
		w.rig.fails(err, wire.StatusBusy)
		return
	}
	if got.Reservation == 0 {
		return
	}
	r := &mReservation{id: got.Reservation, epoch: e.epoch, places: placesOf(got.Runs, e.ns.Slices, e.ns.PageBytes), pageBytes: e.ns.PageBytes}
	at := 0
	for _, g := range got.Grants {
		if g.Grant == wire.GrantGranted {
			r.keys = append(r.keys, keys[at:at+int(g.Count)]...)
		}
		at += int(g.Count)
	}
	w.check(at == len(keys) && len(r.keys) == int(got.Pages) && len(r.places) == int(got.Pages), "grants %+v", got)
	w.mustBeMapped(e, r.places)
	for page := range r.keys {
		r.slices = append(r.slices, make([]sliceView, len(e.ns.Slices)))
		for storage, p := range r.places[page] {
			w.mustBeFree(p)
			delete(w.warmed, p)
			if e.ranks[e.ns.Slices[storage].Rank].process.dead {
				r.slices[page][storage] = sliceLost // by a process that died and whose end the cache has not heard of
			}
		}
	}
	e.reservations = append(e.reservations, r)
}

type mSlice struct {
	e             *mEngine
	r             *mReservation
	page, storage int
}

func (s mSlice) session() *mSession { return s.e.ranks[s.e.ns.Slices[s.storage].Rank] }

func (w *world) sliceIn(fit func(mSlice) bool) (mSlice, bool) {
	var found []mSlice
	for _, e := range w.engines {
		for _, r := range e.reservations {
			for page := range r.keys {
				for storage := range r.slices[page] {
					if s := (mSlice{e, r, page, storage}); fit(s) {
						found = append(found, s)
					}
				}
			}
		}
	}
	return draw(w, "slice", found)
}

// hand moves a whole page to its ranks, or one slice of one that was sent to its rank.
func (w *world) hand() {
	s, ok := w.sliceIn(func(s mSlice) bool {
		switch s.r.slices[s.page][s.storage] {
		case sliceGranted:
			return !s.e.scheduler.process.dead && !s.e.scheduler.process.stopped
		case sliceSent:
			p := s.session().process
			return !p.dead && !p.stopped
		}
		return false
	})
	if !ok {
		return
	}
	if s.r.slices[s.page][s.storage] == sliceSent {
		s.r.slices[s.page][s.storage] = sliceHanded
		return
	}
	for storage, view := range s.r.slices[s.page] {
		if view == sliceGranted {
			s.r.slices[s.page][storage] = sliceSent
		}
	}
}

func (w *world) handed(s mSlice) bool {
	p := s.session().process
	return s.r.slices[s.page][s.storage] == sliceHanded && !p.dead && !p.stopped
}

// write copies a slice into the arena and commits it. What is written after the weights changed is not what the reservation's key says.
func (w *world) write() {
	s, ok := w.sliceIn(w.handed)
	if !ok {
		return
	}
	rank := int(s.e.ns.Slices[s.storage].Rank)
	content := stamp(s.e.facts, s.r.epoch, s.r.keys[s.page], rank)
	if s.e.epoch != s.r.epoch {
		content = "bytes of other weights"
	}
	w.memory[s.r.places[s.page][s.storage]] = content
	s.r.slices[s.page][s.storage] = sliceWritten
	w.reportSlice(s)
}

func (w *world) dropSlice() {
	if s, ok := w.sliceIn(w.handed); ok && rapid.IntRange(0, 3).Draw(w.T, "really") == 0 {
		w.memory[s.r.places[s.page][s.storage]] = "half a copy"
		s.r.slices[s.page][s.storage] = sliceDropped
		w.reportSlice(s)
	}
}

func (w *world) reportSlice(s mSlice) {
	session := s.session()
	if !session.connected {
		return
	}
	id, rank, ranges := session.id, s.e.ns.Slices[s.storage].Rank, []wire.Range{{First: uint32(s.page), Count: 1}}
	if s.r.slices[s.page][s.storage] == sliceWritten {
		session.send(func() error { return w.rig.Committed(id, s.r.id, rank, ranges) })
	} else {
		session.send(func() error { return w.rig.Abandoned(id, s.r.id, rank, ranges) })
	}
}

// abandonAll gives up pages that the scheduler handed to no rank.
func (w *world) abandonAll() {
	s, ok := w.sliceIn(func(s mSlice) bool {
		return s.e.scheduler.acts() && s.r.slices[s.page][s.storage] == sliceGranted
	})
	if !ok {
		return
	}
	for storage, view := range s.r.slices[s.page] {
		if view == sliceGranted {
			s.r.slices[s.page][storage] = sliceGivenUp
		}
	}
	id, ranges := s.e.scheduler.id, []wire.Range{{First: uint32(s.page), Count: 1}}
	s.e.scheduler.send(func() error { return w.rig.Abandoned(id, s.r.id, wire.AllRanks, ranges) })
}

func (w *world) warmPage() {
	e, ok := w.schedulerThatActs()
	if !ok {
		return
	}
	k := rapid.IntRange(0, modelKeys-1).Draw(w.T, "key")
	for _, part := range w.rig.warm(&engine{id: e.id}, keyOf(k)) {
		for _, places := range placesOf([]wire.Run{{Count: 1, First: wire.Location(part)}}, e.ns.Slices, e.ns.PageBytes) {
			for i, p := range places {
				w.mustBeFree(p)
				delete(w.warmed, p)
				w.memory[p] = stamp(e.facts, e.epoch, k, int(e.ns.Slices[i].Rank))
			}
			w.warmed[places[0]] = &warmPage{bytes: e.ns.PageBytes, since: w.rig.clock.now()}
			w.preparedBytes += e.ns.PageBytes
		}
	}
}
