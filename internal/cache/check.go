package cache

import (
	"fmt"
	"slices"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Violation is one broken rule. Invariant is its number in the list of invariants, zero for a table that disagrees with itself.
type Violation struct {
	Invariant int    `json:"invariant"`
	Text      string `json:"text"`
}

// checkViolationsMax bounds what one check reports.
const checkViolationsMax = 100

// Check recomputes every derived number from leases, reservations, records and free extents, and lists what does not agree. It holds the mutex
// and reads every record: tests call it after each step, people through the verify verb.
func (c *Cache) Check() []Violation {
	c.enter()
	defer c.leave()
	k := &checker{c: c}
	if err := c.index.Check(); err != nil {
		k.add(0, "%v", err)
	}
	k.extents()
	k.references()
	k.charges()
	k.writers()
	k.tables()
	k.warming()
	k.keeping()
	return k.found
}

type checker struct {
	c     *Cache
	found []Violation
}

func (k *checker) add(invariant int, format string, args ...any) {
	if len(k.found) < checkViolationsMax {
		k.found = append(k.found, Violation{invariant, fmt.Sprintf(format, args...)})
	}
}

// owned is one part of one page in an arena.
type owned struct {
	offset, end uint64
	record      uint32
}

// extents checks that every byte of every arena has exactly one owner: one record or the free space (I2, I6).
func (k *checker) extents() {
	c := k.c
	parts := map[uint16][]owned{}
	var stateBytes [6]uint64
	pages, sealed := map[uint32]uint64{}, map[uint32]uint64{}
	c.index.Scan(0, c.index.Records(), func(p index.Page) bool {
		ns := c.namespaces[p.Namespace]
		if ns == nil {
			k.add(6, "%v page record %d belongs to namespace %d, which was dropped", p.State, p.Handle.Entry(), p.Namespace)
			return true
		}
		pages[p.Namespace]++
		if p.State == index.Sealed {
			sealed[p.Namespace]++
		}
		stateBytes[p.State] += ns.geometry.pageBytes
		for part, bytes := range ns.geometry.partBytes {
			at := c.part(p.Handle, part)
			parts[at.Arena()] = append(parts[at.Arena()], owned{at.Offset(), at.Offset() + bytes, p.Handle.Entry()})
		}
		return true
	})
	if stateBytes != c.stateBytes {
		k.add(6, "page bytes by state are %v, the counters say %v", stateBytes, c.stateBytes)
	}
	dead := uint64(0)
	for handle, ns := range c.namespaces {
		if pages[handle] != ns.pages || sealed[handle] != ns.sealed {
			k.add(6, "namespace %d has %d pages, %d sealed; its counters say %d and %d", handle, pages[handle], sealed[handle], ns.pages, ns.sealed)
		}
		if ns.dead && !ns.private {
			dead += ns.sealed
		}
	}
	if dead != c.deadPages {
		k.add(0, "dead namespaces have %d pages to sweep, the counter says %d", dead, c.deadPages)
	}
	for _, a := range c.arenas {
		k.arena(a, parts[a.id])
	}
}

func (k *checker) arena(a *arena, parts []owned) {
	if err := a.free.Check(); err != nil {
		k.add(2, "arena %d: %v", a.id, err)
	}
	slices.SortFunc(parts, func(x, y owned) int {
		if x.offset < y.offset {
			return -1
		}
		return 1
	})
	at, sum := uint64(0), uint64(0)
	for _, p := range parts {
		if p.offset < at || p.end > a.free.Bytes() {
			k.add(2, "arena %d: page record %d at [%d,%d) overlaps another or ends outside", a.id, p.record, p.offset, p.end)
		}
		at = p.end
		sum += p.end - p.offset
	}
	if sum+a.free.FreeBytes() != a.free.Bytes() {
		k.add(2, "arena %d: records own %d bytes and %d are free, of %d", a.id, sum, a.free.FreeBytes(), a.free.Bytes())
	}
}

// references checks that what a consumer may read is referenced, and that no reference is without a lease (I1, I5).
func (k *checker) references() {
	c := k.c
	refs := map[index.Handle]uint32{}
	for _, l := range c.leases {
		for i := range l.consumers {
			if limit := l.consumers[i].limit(len(l.pages)); limit > l.held {
				k.add(1, "lease %#x: rank %d may read %d pages, %d are referenced", l.id, i, limit, l.held)
			}
		}
		for _, h := range l.pages[:l.held] {
			refs[h]++
		}
	}
	k.tier(refs)
	for h, want := range refs {
		if p, live := c.index.Page(h); !live || p.Refs != want || p.State != index.Sealed && p.State != index.Retired {
			k.add(1, "page record %d is referenced %d times, it is %v with %d references, live %v", h.Entry(), want, p.State, p.Refs, live)
		}
	}
	c.index.Scan(0, c.index.Records(), func(p index.Page) bool {
		if p.Refs != refs[p.Handle] {
			k.add(1, "page record %d has %d references, its owners hold %d", p.Handle.Entry(), p.Refs, refs[p.Handle])
		}
		return true
	})
}

// charges checks that each referenced byte is charged once, in the phase that its consumers are in (I4, I8).
func (k *checker) charges() {
	c := k.c
	var total [phases]uint64
	byInstance := map[*instance]*[phases]uint64{}
	for _, l := range c.leases {
		if want := uint64(l.held) * l.instance.geometry.pageBytes; l.charged != want {
			k.add(4, "lease %#x holds %d bytes, it is charged %d", l.id, want, l.charged)
		}
		total[l.phase] += l.charged
		if byInstance[l.instance] == nil {
			byInstance[l.instance] = new([phases]uint64)
		}
		byInstance[l.instance][l.phase] += l.charged
		if quarantined := !l.anyIn(consumerReady) && !l.anyIn(consumerBegun); quarantined != (l.phase == phaseQuarantined) {
			k.add(8, "lease %#x is in phase %s", l.id, phaseMachine.Names[l.phase])
		}
	}
	owners := make([]*charge, 0, len(c.preparations)+len(c.hints))
	for _, p := range c.preparations {
		owners = append(owners, &p.charge)
	}
	for _, h := range c.hints {
		owners = append(owners, &h.charge)
	}
	for _, o := range owners {
		total[o.phase] += o.charged
		if byInstance[o.instance] == nil {
			byInstance[o.instance] = new([phases]uint64)
		}
		byInstance[o.instance][o.phase] += o.charged
	}
	if total != c.budget.byPhase {
		k.add(4, "leases and prefixes charge %v by phase, the budget says %v", total, c.budget.byPhase)
	}
	for _, inst := range c.everyInstance() {
		want := byInstance[inst]
		if want == nil {
			want = new([phases]uint64)
		}
		if inst.charged != *want {
			k.add(4, "leases of instance %q charge %v by phase, its budget says %v", inst.id, *want, inst.charged)
		}
		if inst.inBudget() > c.budget.instanceMax {
			k.add(4, "instance %q has %d bytes leased, its budget is %d", inst.id, inst.inBudget(), c.budget.instanceMax)
		}
	}
}

// writers checks that a page with a slice that may still be written has a record, and that no such page is visible (I2, I9).
func (k *checker) writers() {
	c := k.c
	open := 0
	for _, r := range c.reservations {
		count, openBy := 0, make([]int, len(r.openBy))
		for page, h := range r.pages {
			k.page(r, page, h)
			for storage := range r.openBy {
				if *r.slice(page, storage) == sliceReserved {
					count++
					openBy[storage]++
				}
			}
		}
		if count != r.open || !slices.Equal(openBy, r.openBy) || r.closed != (count == 0) {
			k.add(2, "reservation %#x has %d open slices, its counter says %d", r.id, count, r.open)
		}
		if !r.closed {
			open++
		}
	}
	if open != c.openReservations {
		k.add(0, "%d reservations are open, the counter says %d", open, c.openReservations)
	}
}

func (k *checker) page(r *reservation, page int, h index.Handle) {
	writable, quarantined := false, false
	for storage := range r.openBy {
		writable = writable || *r.slice(page, storage) == sliceReserved
		quarantined = quarantined || *r.slice(page, storage) == sliceQuarantined
	}
	if !writable && !quarantined {
		return
	}
	p, live := k.c.index.Page(h)
	switch {
	case !live:
		k.add(2, "page %d of reservation %#x may be written, its record is free", page, r.id)
	case p.State == index.Sealed || p.State == index.Retired:
		k.add(9, "page %d of reservation %#x may be written, but it is %v", page, r.id, p.State)
	case quarantined != (p.State == index.Quarantined):
		k.add(8, "page %d of reservation %#x has a quarantined slice: %v; it is %v", page, r.id, quarantined, p.State)
	}
}

// tables checks the owners' lists and the counts of what is bounded.
func (k *checker) tables() {
	c := k.c
	operations := 0
	for _, s := range c.sessions {
		operations += len(s.operations) + len(s.pays)
		writing := 0
		for _, r := range s.reservations {
			if !slices.Contains(r.owners, s) || c.reservations[r.id] != r {
				k.add(0, "session %d lists reservation %#x, which it does not own", s.id, r.id)
			}
			if !r.closed && r.payer == s {
				writing++
			}
		}
		if writing != s.writing {
			k.add(0, "session %d has %d open reservations, its counter says %d", s.id, writing, s.writing)
		}
		for _, l := range s.leases {
			if l.ownedBy(s) < 0 || c.leases[l.id] != l {
				k.add(0, "session %d lists lease %#x, which it does not own", s.id, l.id)
			}
		}
		if c.processes[s.process.id] != s.process {
			k.add(0, "session %d belongs to process %d, which exited", s.id, s.process.facts.PID)
		}
	}
	waiting, draining := k.preparing()
	operations += draining + len(c.hints)
	for _, op := range c.waiting {
		waiting += len(op.keys) * wire.KeyBytes
	}
	if waiting != c.waitingBytes {
		k.add(0, "waiting queries keep %d bytes of keys, the counter says %d", waiting, c.waitingBytes)
	}
	if operations != c.operations {
		k.add(0, "%d queries are outstanding, the counter says %d", operations, c.operations)
	}
	for _, inst := range c.everyInstance() {
		k.instance(inst)
	}
	k.joint()
}

func (k *checker) instance(inst *instance) {
	attached := 0
	usable := arenaSet{}
	for i := range usable {
		usable[i] = ^uint64(0)
	}
	for rank, slot := range inst.ranks {
		if slot.process != nil {
			attached++
			if !inst.private && (slot.session.instance != inst || slot.session.rank != rank) {
				k.add(0, "rank %d of instance %q is a session that is attached elsewhere", rank, inst.id)
			}
			if k.c.sessions[slot.session.id] != slot.session {
				k.add(0, "rank %d of instance %q is a session that ended", rank, inst.id)
			}
		}
		for i := range usable {
			usable[i] &= slot.mapped[i]
		}
	}
	if attached != inst.attached || usable != inst.usable {
		k.add(0, "instance %q has %d ranks attached, its counter says %d", inst.id, attached, inst.attached)
	}
}
