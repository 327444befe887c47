package cache

import (
	"orbitkv/internal/wire"
)

// sendReserve asks for a reserve. A rank's slices are on the way to it (sent) from the moment the cache answers until the rank reads the answer.
func (w *world) sendReserve(k *mRank, call *mCall, part *mPart) {
	id, ns, epoch := k.scheduler.id, k.ns.Namespace, k.epoch
	k.scheduler.send(func() error {
		got, err := w.rig.Reserve(id, Reserve{Operation: call.number, Revision: 1, Namespace: ns, Instance: k.team.id, Keys: wireKeys(call.keys)})
		if err != nil && !isBusy(err) {
			w.rig.fails(err, wire.StatusStale)
		}
		if err != nil || got.Reservation == 0 {
			part.state = partGone
			return nil
		}
		r := w.granted(k, call, got, epoch)
		storage := k.storage()
		for page := range r.keys {
			w.mustBeFree(r.places[page][storage])
			r.slices[page][storage] = sliceSent
			if k.process.dead {
				r.slices[page][storage] = sliceLost
			}
		}
		part.mail = append(part.mail, func() { w.readGrants(k, part, r) })
		return nil
	})
}

func isBusy(err error) bool {
	fault, ok := err.(*wire.Error)
	return ok && fault.Status == wire.StatusBusy
}

// storage is a rank's position among those that store.
func (k *mRank) storage() int {
	for i, s := range k.ns.Slices {
		if int(s.Rank) == k.rank {
			return i
		}
	}
	return -1
}

// granted finds the reservation that another rank was given, which must be the same, or makes it.
func (w *world) granted(k *mRank, call *mCall, got Reserved, epoch uint64) *mReservation {
	places := placesOf(got.Runs, k.ns.Slices, k.ns.PageBytes)
	w.check(len(places) == int(got.Pages), "%d places of %d granted pages", len(places), got.Pages)
	for _, r := range k.team.reservations {
		if r.id == got.Reservation {
			w.check(len(r.places) == len(places), "a rank joined %d pages of %d", len(places), len(r.places))
			for page := range places {
				for i, at := range places[page] {
					w.check(r.places[page][i] == at, "a rank joined other places")
				}
			}
			return r
		}
	}
	r := &mReservation{id: got.Reservation, epoch: epoch, places: places, pageBytes: k.ns.PageBytes}
	at := 0
	for _, g := range got.Grants {
		if g.Grant == wire.GrantGranted {
			r.keys = append(r.keys, call.keys[at:at+int(g.Count)]...)
		}
		at += int(g.Count)
	}
	w.mustBeMappedIn(k.team, places)
	for _, page := range places {
		r.slices = append(r.slices, make([]sliceView, len(page)))
		for storage, p := range page {
			w.mustBeFree(p)
			delete(w.warmed, p)
			r.slices[len(r.slices)-1][storage] = sliceGivenUp // nobody has it yet
		}
	}
	k.team.reservations = append(k.team.reservations, r)
	return r
}

// readGrants hands a rank its slices, or gives them back when it wants them no more.
func (w *world) readGrants(k *mRank, part *mPart, r *mReservation) {
	part.state = partGone
	view := sliceHanded
	if part.dropped {
		view = sliceGivenUp
		id, ranges := k.scheduler.id, all(uint32(len(r.keys)))
		k.scheduler.send(func() error { return w.rig.Abandoned(id, r.id, uint16(k.rank), ranges) })
	}
	for page := range r.keys {
		r.slices[page][k.storage()] = view
	}
}

// dropReserve gives a reserve up before its answer.
func (w *world) dropReserve() {
	k, _, part := w.partIn(func(k *mRank, c *mCall, p *mPart) bool {
		return k.acts() && c.kind == callReserve && p.state == partAsked
	})
	if k != nil && w.random.IntN(2) == 0 {
		part.dropped = true
	}
}

// mOwn is a slice of a team that its rank may write.
type mOwn struct {
	k    *mRank
	r    *mReservation
	page int
}

func (s mOwn) view() *sliceView { return &s.r.slices[s.page][s.k.storage()] }

func (w *world) ownIn(fit func(mOwn) bool) (mOwn, bool) {
	var found []mOwn
	for _, e := range w.teams {
		for _, k := range e.ranks {
			if k.storage() < 0 {
				continue
			}
			for _, r := range e.reservations {
				for page := range r.keys {
					if s := (mOwn{k, r, page}); fit(s) {
						found = append(found, s)
					}
				}
			}
		}
	}
	return choose(w, found)
}

func (w *world) writeTeam() {
	if s, ok := w.ownIn(func(s mOwn) bool { return s.k.acts() && *s.view() == sliceHanded }); ok {
		w.writeOwn(s)
	}
}

// writeOwn copies a slice and commits it. What is written after the weights changed is not what the key says.
func (w *world) writeOwn(s mOwn) {
	content := stamp(s.k.team.facts, s.r.epoch, s.r.keys[s.page], s.k.rank)
	if s.k.epoch != s.r.epoch {
		content = "bytes of other weights"
	}
	w.memory[s.r.places[s.page][s.k.storage()]] = content
	*s.view() = sliceWritten
	w.reportOwn(s)
}

func (w *world) dropOwn() {
	s, ok := w.ownIn(func(s mOwn) bool { return s.k.acts() && *s.view() == sliceHanded })
	if ok && w.random.IntN(4) == 0 {
		w.memory[s.r.places[s.page][s.k.storage()]] = "half a copy"
		*s.view() = sliceDropped
		w.reportOwn(s)
	}
}

// dropAll drops every slice that a rank has and has not written.
func (w *world) dropAll(k *mRank) {
	if k.storage() < 0 {
		return
	}
	for _, r := range k.team.reservations {
		for page := range r.keys {
			if own := (mOwn{k, r, page}); *own.view() == sliceHanded {
				*own.view() = sliceDropped
				w.reportOwn(own)
			}
		}
	}
}

func (w *world) reportOwn(s mOwn) {
	if !s.k.worker.connected {
		return
	}
	id, ranges, written := s.k.worker.id, []wire.Range{{First: uint32(s.page), Count: 1}}, *s.view() == sliceWritten
	s.k.worker.send(func() error {
		if written {
			return w.rig.Committed(id, s.r.id, uint16(s.k.rank), ranges)
		}
		return w.rig.Abandoned(id, s.r.id, uint16(s.k.rank), ranges)
	})
}
