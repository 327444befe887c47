package cache

import (
	"fmt"
	"slices"

	"orbitkv/internal/wire"
)

// A team of the model is an instance that its ranks schedule together. Its calls are a list, the engine's own order, through which every rank goes at
// its own pace, asking for or skipping each. A query's common answer is the least that any rank can restore, and it is known when every rank has come
// to it; only then does a rank begin. Answers lie in a rank's mailbox until it reads them, and are lost with its connection.

type mTeam struct {
	id           string
	facts        string
	sh           shape
	ranks        []*mRank
	calls        []*mCall
	reservations []*mReservation
	number       uint64
}

// mRank is one process of a team, with its two connections.
type mRank struct {
	team      *mTeam
	rank      int
	process   *mProcess
	scheduler *mSession
	worker    *mSession
	next      int        // its place in the list of calls
	ns        Registered // of the epoch that it computes with
	epoch     uint64
	lost      bool // the others have left its epoch: it has no namespace until the next
	mapped    bool
	gone      map[uint64]bool // leases that it yielded
}

func (k *mRank) acts() bool { return !k.process.dead && !k.process.stopped }

type callKind int

const (
	callQuery callKind = iota
	callReserve
	callEpoch
)

// callKinds are the kinds as often as they come.
var callKinds = append(slices.Repeat([]callKind{callReserve, callQuery, callQuery}, 12), callEpoch)

// mCall is one call of the engine's order.
type mCall struct {
	kind   callKind
	number uint64
	keys   []int
	epoch  uint64
	local  []int // by rank: pages that it can restore, -1 until it knows
	parts  []mPart
	asked  bool
}

type partState int

const (
	partNone partState = iota
	partAsked
	partWaiting
	partHeld
	partCopies
	partCopied // and was reported, or will be when its worker resumes
	partGone
)

// mPart is one rank's part of a call.
type mPart struct {
	state   partState
	mail    []func() // the answer, until the rank reads it
	lease   uint64
	epoch   uint64
	places  [][]place
	begun   int
	arrived bool
	dropped bool // a reserve that was given up before its answer
}

func (p *mPart) mayRead(k *mRank) int {
	switch {
	case k.process.dead:
		return 0
	case p.state == partHeld:
		return len(p.places)
	case p.state == partCopies:
		return p.begun
	}
	return 0
}

// common is the ranks' answer, known when each has its own; a dead one has none.
func (e *mTeam) common(call *mCall) (pages int, known bool) {
	pages = modelKeys
	for rank, local := range call.local {
		if local < 0 && !e.ranks[rank].process.dead {
			return 0, false
		}
		pages = min(pages, max(local, 0))
	}
	return pages, true
}

func (w *world) startTeam(kind int) *mTeam {
	w.born++
	e := &mTeam{id: fmt.Sprint("t", w.born)}
	e.sh = shape{slices: [][]uint64{{granule}, {granule, granule - 96}, {granule, 0}}[kind]}
	e.facts = []string{"one", "two", "replicated"}[kind]
	e.sh.facts = map[string]string{"model": e.facts}
	for range e.sh.slices {
		e.sh.writers = append(e.sh.writers, []wire.Writer{wire.WriterHost, wire.WriterCudaShared}[w.random.IntN(2)])
	}
	for rank := range e.sh.slices {
		p := &mProcess{id: w.rig.process(100*w.born + rank)}
		k := &mRank{team: e, rank: rank, process: p, scheduler: w.connect(p, nil, -1), worker: w.connect(p, nil, rank), gone: map[uint64]bool{}}
		e.ranks = append(e.ranks, k)
		w.attachTeam(k)
	}
	for _, k := range e.ranks {
		var err error
		k.ns, err = w.rig.Register(k.scheduler.id, e.id, uint16(k.rank))
		w.rig.must(err)
	}
	return e
}

func (w *world) attachTeam(k *mRank) {
	a := k.team.sh.attach(k.team.id, k.rank)
	a.Epoch = w.epochOf(k.team)
	_, err := w.rig.Attach(k.worker.id, a)
	w.rig.must(err)
	w.rig.must(w.rig.Mapped(k.worker.id, 0, true, ""))
	k.mapped = false
}

// epochOf is the epoch that the instance has come to.
func (w *world) epochOf(e *mTeam) uint64 {
	if inst := w.rig.instances[e.id]; inst != nil {
		return inst.epoch
	}
	return 0
}

// rankIn draws a rank.
func (w *world) rankIn(fit func(*mRank) bool) (*mRank, bool) {
	var found []*mRank
	for _, e := range w.teams {
		for _, k := range e.ranks {
			if fit(k) {
				found = append(found, k)
			}
		}
	}
	return choose(w, found)
}

// partIn draws a part of a rank.
func (w *world) partIn(fit func(*mRank, *mCall, *mPart) bool) (*mRank, *mCall, *mPart) {
	type one struct {
		k    *mRank
		call *mCall
	}
	var found []one
	for _, e := range w.teams {
		for _, call := range e.calls {
			for rank, k := range e.ranks {
				if fit(k, call, &call.parts[rank]) {
					found = append(found, one{k, call})
				}
			}
		}
	}
	chosen, ok := choose(w, found)
	if !ok {
		return nil, nil, nil
	}
	return chosen.k, chosen.call, &chosen.call.parts[chosen.k.rank]
}

// mayAdvance says whether a rank is not too far ahead of the others that run.
func (k *mRank) mayAdvance() bool {
	return k.acts() && !slices.ContainsFunc(k.team.ranks, func(other *mRank) bool { return other.acts() && k.next > other.next+teamLead })
}

// advance takes a rank to its next call, which it asks for or skips. The first one there chooses it.
func (w *world) advance() {
	k, ok := w.rankIn((*mRank).mayAdvance)
	if !ok {
		return
	}
	if k.next == len(k.team.calls) {
		k.team.calls = append(k.team.calls, w.newCall(k.team))
	}
	w.goOn(k, w.random.IntN(6) == 0)
}

func (w *world) newCall(e *mTeam) *mCall {
	e.number++
	call := &mCall{number: e.number, local: make([]int, len(e.ranks)), parts: make([]mPart, len(e.ranks))}
	from := []int{0, 0, 0, 2, 7, 11}[w.random.IntN(6)]
	switch call.kind = callKinds[w.random.IntN(len(callKinds))]; call.kind {
	case callEpoch:
		call.epoch = uint64(w.born)<<32 + e.number
	case callReserve:
		call.keys = make([]int, 1+w.random.IntN(min(5, modelKeys-from)))
	case callQuery:
		call.keys = make([]int, 1+w.random.IntN(modelKeys-from))
	}
	for i := range call.keys {
		call.keys[i] = from + i
	}
	for rank := range call.local {
		call.local[rank] = -1
	}
	return call
}

// goOn takes a rank past one call.
func (w *world) goOn(k *mRank, skip bool) {
	call := k.team.calls[k.next]
	part := &call.parts[k.rank]
	k.next++
	skip = skip || !k.scheduler.connected || k.lost
	switch {
	case call.kind == callEpoch:
		w.followEpoch(k, call)
	case skip || call.kind == callReserve && k.team.sh.slices[k.rank] == 0:
		part.state, call.local[k.rank] = partGone, 0
	case call.kind == callReserve:
		part.state = partAsked
		w.sendReserve(k, call, part)
	default:
		part.state = partAsked
		w.sendQuery(k, call, part)
	}
}

func (w *world) sendQuery(k *mRank, call *mCall, part *mPart) {
	id, ns, epoch := k.scheduler.id, k.ns.Namespace, k.epoch
	k.scheduler.send(func() error {
		got, err := w.rig.SubmitQuery(id, Query{
			Operation: call.number, Revision: 1, Namespace: ns, Instance: k.team.id, Request: "r", Keys: wireKeys(call.keys),
		})
		if err != nil {
			w.rig.fails(err, wire.StatusStale)
			got.Outcome = wire.OutcomeStale
		}
		if !call.asked { // later a rank may have come back with nothing mapped
			w.mustBeMappedIn(k.team, placesOf(got.Runs, k.ns.Slices, k.ns.PageBytes))
			call.asked = true
		}
		part.mail = append(part.mail, func() { w.readAnswer(k, call, part, got, epoch) })
		return nil
	})
}

// readMail has a rank read an answer.
func (w *world) readMail() {
	if k, _, part := w.partIn(func(k *mRank, _ *mCall, p *mPart) bool { return k.acts() && len(p.mail) > 0 }); k != nil {
		part.read()
	}
}

func (p *mPart) read() {
	mail := p.mail[0]
	p.mail = p.mail[1:]
	mail()
}

func (w *world) readAnswer(k *mRank, call *mCall, part *mPart, got Result, epoch uint64) {
	if part.state != partAsked && part.state != partWaiting {
		return // given up
	}
	switch {
	case got.Outcome == wire.OutcomeWaiting || got.Outcome == wire.OutcomePreparing:
		part.state = partWaiting
	case got.Outcome == wire.OutcomeReady && got.Pages > 0 && !k.gone[got.Lease]:
		part.state, part.lease, part.epoch = partHeld, got.Lease, epoch
		part.places = placesOf(got.Runs, k.ns.Slices, k.ns.PageBytes)
		call.local[k.rank] = int(got.Pages)
		w.check(len(part.places) == int(got.Pages), "%d places of %d pages", len(part.places), got.Pages)
		for _, other := range call.parts {
			w.check(other.lease != part.lease || fmt.Sprint(other.places) == fmt.Sprint(part.places), "ranks of %s were given other places", k.team.id)
		}
	default:
		part.state, call.local[k.rank] = partGone, 0
	}
}

func (w *world) mustBeMappedIn(e *mTeam, places [][]place) {
	w.Helper()
	for _, page := range places {
		for _, at := range page {
			w.check(at.arena == 0 || !slices.ContainsFunc(e.ranks, func(k *mRank) bool { return !k.mapped }), "team %s was given %v, which a rank has not mapped", e.id, at)
		}
	}
}

func (w *world) pollTeam() {
	k, call, part := w.partIn(func(k *mRank, _ *mCall, p *mPart) bool {
		return k.acts() && k.scheduler.connected && p.state == partWaiting
	})
	if k != nil {
		w.sendPoll(k, call, part)
	}
}

func (w *world) sendPoll(k *mRank, call *mCall, part *mPart) {
	id, epoch := k.scheduler.id, k.epoch
	k.scheduler.send(func() error {
		got, err := w.rig.PollQuery(id, call.number, 1)
		part.mail = append(part.mail, func() { w.readAnswer(k, call, part, got, epoch) })
		return err
	})
}

// giveUp ends a rank's interest before the ranks have agreed.
func (w *world) giveUp() {
	k, call, part := w.partIn(func(k *mRank, c *mCall, p *mPart) bool {
		_, known := k.team.common(c)
		return k.acts() && k.scheduler.connected && c.kind == callQuery && (p.state == partAsked || p.state == partWaiting || p.state == partHeld && !known)
	})
	if k == nil {
		return
	}
	id, lease := k.scheduler.id, part.lease
	if part.state == partHeld && w.random.IntN(2) == 0 {
		k.scheduler.send(func() error { return w.rig.Release(id, lease, uint16(k.rank)) })
	} else {
		k.scheduler.send(func() error { return w.rig.CancelQuery(id, call.number, 1) })
	}
	part.state, call.local[k.rank] = partGone, 0
}

// agree has a rank act on the common answer: it begins, even without a connection, or gives its part back.
func (w *world) agree() {
	k, call, part := w.partIn(func(k *mRank, c *mCall, p *mPart) bool {
		_, known := k.team.common(c)
		return k.acts() && p.state == partHeld && known
	})
	if k != nil {
		w.actOn(k, call, part)
	}
}

func (w *world) actOn(k *mRank, call *mCall, part *mPart) {
	id, lease := k.scheduler.id, part.lease
	pages, _ := k.team.common(call)
	if pages == 0 {
		part.state = partGone
		if k.scheduler.connected {
			k.scheduler.send(func() error { return w.rig.Release(id, lease, uint16(k.rank)) })
		}
		return
	}
	part.state, part.begun = partCopies, pages
	if k.scheduler.connected {
		w.beginPart(k, part)
	}
}

func (w *world) beginPart(k *mRank, part *mPart) {
	id := k.scheduler.id
	k.scheduler.send(func() error { return w.rig.Begin(id, part.lease, uint16(k.rank), uint32(part.begun)) })
}

// endTeamCopy reads what a copy read and reports it.
func (w *world) endTeamCopy() {
	k, call, part := w.partIn(func(k *mRank, _ *mCall, p *mPart) bool { return k.acts() && p.state == partCopies })
	if k == nil {
		return
	}
	part.arrived = w.random.IntN(2) == 0
	w.copied(k, call, part)
}

func (w *world) copied(k *mRank, call *mCall, part *mPart) {
	for page := range part.begun {
		w.mustHoldIn(k, call, part, page)
	}
	part.state = partCopied
	w.reportPart(k, part)
}

func (w *world) reportPart(k *mRank, part *mPart) {
	if !k.worker.connected {
		return
	}
	id, ranges := k.worker.id, []wire.Range{{Count: uint32(part.begun)}}
	k.worker.send(func() error {
		if part.arrived {
			w.arrivedAt(part.places, ranges[0])
		}
		return w.rig.Restored(id, part.lease, uint16(k.rank), part.arrived, 100, ranges)
	})
}

func (w *world) mustHoldIn(k *mRank, call *mCall, part *mPart, page int) {
	w.Helper()
	for i, at := range part.places[page] {
		want := stamp(k.team.facts, part.epoch, call.keys[page], int(k.ns.Slices[i].Rank))
		if got := w.memory[at]; got != want {
			w.Fatalf("rank %d of %s may read key %d of lease %#x at %v: it holds %q, want %q", k.rank, k.team.id, call.keys[page], part.lease, at, got, want)
		}
	}
}

// verifyTeam checks what the ranks may read and returns the bytes that they may read and write, each lease and page once.
func (w *world) verifyTeam(e *mTeam) (read, written uint64) {
	w.Helper()
	for _, call := range e.calls {
		pages := map[uint64]int{}
		for rank, k := range e.ranks {
			part := &call.parts[rank]
			n := part.mayRead(k)
			for page := range n {
				w.mustHoldIn(k, call, part, page)
			}
			pages[part.lease] = max(pages[part.lease], n)
			if known := w.rig.leases[part.lease]; n > 0 && (known == nil || known.held < n) {
				w.Fatalf("rank %d of %s may read %d pages of lease %#x, the cache keeps fewer", rank, e.id, n, part.lease)
			}
		}
		for _, n := range pages {
			read += uint64(n) * e.ranks[0].ns.PageBytes
		}
	}
	for _, r := range e.reservations {
		for page := range r.keys {
			if r.mayWrite(page) {
				written += r.pageBytes
			}
		}
	}
	return read, written
}

// choose picks one of a list, each as often as any other.
func choose[T any](w *world, from []T) (chosen T, ok bool) {
	if len(from) == 0 {
		return chosen, false
	}
	return from[w.random.IntN(len(from))], true
}

// teamStep is what a team may do, and how often it does.
type teamStep struct {
	weight int
	step   func(*world)
}

var teamSteps = []teamStep{
	{18, (*world).advance},
	{34, (*world).deliverTeam},
	{18, (*world).readMail},
	{14, (*world).agree},
	{14, (*world).endTeamCopy},
	{24, (*world).writeTeam},
	{6, (*world).pollTeam},
	{2, (*world).giveUp},
	{1, (*world).dropReserve},
	{2, (*world).dropOwn},
	{3, (*world).mapTeam},
	{2, (*world).stopRank},
	{3, (*world).answerTeamNotices},
	{1, (*world).killRank},
	{2, (*world).exitRank},
	{2, (*world).disconnectRank},
	{5, (*world).reconnectRank},
	{3, (*world).restartTeam},
}

// teamsWork has the teams take some steps.
func (w *world) teamsWork() {
	sum := 0
	for _, each := range teamSteps {
		sum += each.weight
	}
	for range teamBurst {
		at := w.random.IntN(sum)
		for _, each := range teamSteps {
			if at -= each.weight; at < 0 {
				each.step(w)
				break
			}
		}
	}
}
