package cache

import (
	"slices"

	"orbitkv/internal/wire"
)

// followEpoch moves a rank to the next weights. It may come when the others have left that epoch too.
func (w *world) followEpoch(k *mRank, call *mCall) {
	k.epoch, k.lost = call.epoch, true
	for _, each := range k.team.calls[:k.next] { // a query of the old weights is of no use
		part := &each.parts[k.rank]
		if part.state == partAsked && each.kind == callQuery || part.state == partWaiting {
			number, id := each.number, k.scheduler.id
			part.state, each.local[k.rank] = partGone, 0
			k.scheduler.send(func() error { return w.rig.CancelQuery(id, number, 1) })
		}
	}
	if !k.scheduler.connected { // the cache is not told yet: what is not written belongs to weights that are gone
		w.dropAll(k)
		return
	}
	w.deliverAll(k.scheduler)
	ns, err := w.rig.NewEpoch(k.scheduler.id, k.team.id, call.epoch)
	if err != nil {
		w.rig.fails(err, wire.StatusStale)
		return
	}
	k.ns, k.lost = ns, false
}

func (w *world) mapTeam() {
	if k, ok := w.rankIn(func(k *mRank) bool { return k.acts() && k.worker.connected }); ok {
		id := k.worker.id
		k.mapped = true
		k.worker.send(func() error { return w.rig.Mapped(id, 1, true, "") })
	}
}

func (w *world) stopRank() {
	if k, ok := w.rankIn(func(k *mRank) bool { return !k.process.dead }); ok {
		k.process.stopped = !k.process.stopped && w.random.IntN(3) == 0
	}
}

// deliverTeam has the cache read one message of one connection.
func (w *world) deliverTeam() {
	var found []*mSession
	for _, e := range w.teams {
		for _, k := range e.ranks {
			for _, s := range []*mSession{k.scheduler, k.worker} {
				if len(s.queue) > 0 {
					found = append(found, s)
				}
			}
		}
	}
	if s, ok := choose(w, found); ok {
		w.deliverOne(s)
	}
}

// answerTeamNotices answers revokes. What the rank does not know, or has done with, it yields, and it will not take it from a later answer.
func (w *world) answerTeamNotices() {
	k, ok := w.rankIn(func(k *mRank) bool { return k.acts() && k.scheduler.connected })
	if !ok {
		return
	}
	for _, n := range k.scheduler.client.queue.notices {
		if n.Kind == NoticeRevoke {
			w.answerRevoke(k, n.ID)
		}
	}
	k.scheduler.client.queue.notices = nil
	w.rig.Heard(k.scheduler.id)
}

func (w *world) answerRevoke(k *mRank, lease uint64) {
	yielded := true
	for _, call := range k.team.calls {
		part := &call.parts[k.rank]
		for len(part.mail) > 0 {
			part.read() // the answer came before the revoke
		}
		if part.lease != lease || part.state != partHeld && part.state != partCopies {
			continue
		}
		_, known := k.team.common(call)
		yielded = part.state == partHeld && !known && w.random.IntN(2) == 0
		if yielded {
			part.state, call.local[k.rank] = partGone, 0
		}
	}
	k.gone[lease] = yielded
	id := k.scheduler.id
	k.scheduler.send(func() error { return w.rig.Revoked(id, lease, yielded) })
}

func (w *world) killRank() {
	if k, ok := w.rankIn(func(k *mRank) bool { return !k.process.dead }); ok && w.random.IntN(4) == 0 {
		w.dieRank(k)
	}
}

func (w *world) dieRank(k *mRank) {
	k.process.dead = true
	storage := k.storage()
	for _, r := range k.team.reservations {
		for page := range r.keys {
			if storage < 0 || !r.slices[page][storage].mayWrite() {
				continue
			}
			if r.slices[page][storage] == sliceHanded && k.team.sh.writers[k.rank] == wire.WriterCudaShared {
				w.zombies = append(w.zombies, r.places[page][storage])
			}
			r.slices[page][storage] = sliceLost
		}
	}
}

func (w *world) exitRank() {
	k, ok := w.rankIn(func(k *mRank) bool {
		return k.process.dead && !k.process.exited && len(k.scheduler.queue)+len(k.worker.queue) == 0
	})
	if ok {
		w.endRank(k)
	}
}

func (w *world) endRank(k *mRank) {
	if !k.process.dead {
		w.dieRank(k)
	}
	for _, s := range []*mSession{k.scheduler, k.worker} {
		if s.connected {
			w.rig.CloseSession(s.id)
			s.connected = false
		}
	}
	w.rig.ProcessExited(k.process.id)
	k.process.exited = true
}

// disconnectRank breaks one connection of a rank: the tail of what was written is lost, and so are the answers that the rank has not read.
func (w *world) disconnectRank() {
	k, ok := w.rankIn(func(k *mRank) bool { return !k.process.dead })
	if !ok {
		return
	}
	s := k.scheduler
	if w.random.IntN(3) == 0 {
		s = k.worker
	}
	if !s.connected {
		return
	}
	for range w.random.IntN(len(s.queue) + 1) {
		w.deliverOne(s)
	}
	s.connected = false
	if len(s.queue) == 0 {
		w.rig.CloseSession(s.id)
	} else {
		s.queue = nil
		w.rig.BreakSession(s.id)
	}
	if s == k.worker {
		return
	}
	for _, call := range k.team.calls[:k.next] {
		if part := &call.parts[k.rank]; part.state == partAsked || part.state == partWaiting {
			part.state, part.mail, call.local[k.rank] = partGone, nil, 0
		}
	}
	for _, r := range k.team.reservations {
		for page := range r.keys {
			if storage := k.storage(); storage >= 0 && r.slices[page][storage] == sliceSent {
				r.slices[page][storage] = sliceGivenUp
			}
		}
	}
}

func (w *world) reconnectRank() {
	if k, ok := w.rankIn(func(k *mRank) bool { return k.acts() && !(k.scheduler.connected && k.worker.connected) }); ok {
		w.rankComesBack(k)
	}
}

func (w *world) rankComesBack(k *mRank) {
	if !k.worker.connected {
		token := k.worker.token
		k.worker = w.connect(k.process, nil, k.rank)
		w.resumeWorker(k, token)
		w.attachTeam(k)
	}
	if !k.scheduler.connected {
		token := k.scheduler.token
		k.scheduler = w.connect(k.process, nil, -1)
		w.resumeRankScheduler(k, token)
	}
}

// resumeRankScheduler names what was begun, and may name what is held. A promise that the ranks agreed on is begun first.
func (w *world) resumeRankScheduler(k *mRank, token wire.ID16) {
	var leases, reservations []uint64
	for _, call := range k.team.calls {
		part := &call.parts[k.rank]
		if part.state == partHeld {
			if pages, known := k.team.common(call); known && pages > 0 {
				w.actOn(k, call, part)
				k.scheduler.queue = nil // it is said below
			} else if w.random.IntN(2) == 0 {
				part.state, call.local[k.rank] = partGone, 0
			}
		}
		if part.state == partHeld || part.state == partCopies {
			leases = append(leases, part.lease)
		}
	}
	storage := k.storage()
	for _, r := range k.team.reservations {
		if storage >= 0 && slices.ContainsFunc(r.slices, func(page []sliceView) bool { return page[storage] == sliceHanded }) {
			reservations = append(reservations, r.id)
		}
	}
	took, _, err := w.rig.Resume(k.scheduler.id, token, leases, reservations)
	w.rig.must(err)
	for _, lease := range leases {
		w.check(slices.Contains(took, lease), "lease %#x was lost in a resume", lease)
	}
	for _, call := range k.team.calls {
		if part := &call.parts[k.rank]; part.state == partCopies {
			w.beginPart(k, part)
		}
	}
}

func (w *world) resumeWorker(k *mRank, token wire.ID16) {
	var leases, reservations []uint64
	for _, call := range k.team.calls {
		if part := &call.parts[k.rank]; part.state == partCopies || part.state == partCopied {
			leases = append(leases, part.lease)
		}
	}
	storage := k.storage()
	for _, r := range k.team.reservations {
		if storage >= 0 && slices.ContainsFunc(r.slices, func(page []sliceView) bool { return page[storage] != sliceGivenUp }) {
			reservations = append(reservations, r.id)
		}
	}
	tookLeases, tookReservations, err := w.rig.Resume(k.worker.id, token, leases, reservations)
	w.rig.must(err)
	for _, call := range k.team.calls {
		if part := &call.parts[k.rank]; part.state == partCopied && slices.Contains(tookLeases, part.lease) {
			w.reportPart(k, part)
		}
	}
	for _, r := range k.team.reservations {
		for page := range r.keys {
			if own := (mOwn{k, r, page}); storage >= 0 && slices.Contains(tookReservations, r.id) && (*own.view() == sliceWritten || *own.view() == sliceDropped) {
				w.reportOwn(own)
			}
		}
	}
}

// restartTeam replaces a team of which every process exited.
func (w *world) restartTeam() {
	for i, e := range w.teams {
		if !slices.ContainsFunc(e.ranks, func(k *mRank) bool { return !k.process.exited }) {
			w.teams[i] = w.startTeam(w.random.IntN(3))
			return
		}
	}
}

// finishTeams lets every team of which no process died come to one place and do all that it has begun, and wants everything back from it.
func (w *world) finishTeams() {
	for _, e := range w.teams {
		if slices.ContainsFunc(e.ranks, func(k *mRank) bool { return k.process.dead }) {
			continue
		}
		e.number++
		e.calls = append(e.calls, &mCall{kind: callEpoch, number: e.number, epoch: uint64(w.born)<<32 + e.number, local: make([]int, len(e.ranks)), parts: make([]mPart, len(e.ranks))})
		for range len(e.calls) + 2 {
			for _, k := range e.ranks {
				w.finishRank(k)
			}
		}
		for _, inst := range w.rig.Status().Instances {
			if inst.Instance == e.id && (inst.Leases != 0 || inst.Reservations != 0 || inst.Joint.Operations != 0 || inst.Joint.Answers != 0) {
				w.Fatalf("team %s has finished, the cache holds for it %+v", e.id, inst)
			}
		}
	}
	w.verify()
}

func (w *world) finishRank(k *mRank) {
	k.process.stopped = false
	w.rankComesBack(k)
	if k.next < len(k.team.calls) {
		w.goOn(k, true)
	}
	w.deliverAll(k.scheduler)
	for _, call := range k.team.calls {
		part := &call.parts[k.rank]
		for len(part.mail) > 0 {
			part.read()
		}
		_, known := k.team.common(call)
		switch {
		case part.state == partWaiting:
			w.sendPoll(k, call, part)
		case part.state == partHeld && known:
			w.actOn(k, call, part)
		case part.state == partCopies:
			w.copied(k, call, part)
		}
	}
	for _, r := range k.team.reservations {
		for page := range r.keys {
			if own := (mOwn{k, r, page}); k.storage() >= 0 && *own.view() == sliceHanded {
				w.writeOwn(own)
			}
		}
	}
	w.deliverAll(k.scheduler)
	w.deliverAll(k.worker)
}
