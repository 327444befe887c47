package session

import (
	"testing"

	"orbitkv/internal/wire"
)

// A hint in parts is answered once, with its last one, and leaves nothing in the table of queries. A cancel is not answered, whatever it names.
func TestHintsAreAnsweredOnce(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	e := r.attach("a", 4*kib)
	m := wire.Warm{Ticket: 5, Parts: 2, Namespace: e.namespace.Namespace, Instance: "a", Request: "r", Keys: keysOf(0, 3)}
	e.scheduler.send(&m, 0)
	m.Part, m.Keys = 1, keysOf(3, 2)
	got := &wire.Warmed{}
	e.scheduler.call(&m, got)
	if *got != (wire.Warmed{Outcome: wire.HintNoTier}) { // there is no slower tier to read from
		t.Fatalf("%+v", got)
	}
	for _, ticket := range []uint64{5, 99} {
		e.scheduler.send(&wire.CancelWarm{Ticket: ticket}, 0)
	}
	e.scheduler.alive()
	m.Part, m.Parts = 0, 1
	e.scheduler.refused(&m, wire.StatusStale)
	m.Ticket, m.Request = 6, ""
	e.scheduler.refused(&m, wire.StatusConflict)
	e.worker.refused(&wire.Warm{Ticket: 1, Parts: 1, Namespace: m.Namespace, Instance: "a", Request: "r"}, wire.StatusUnknown)
	if s := r.cache.Stats(); s.WarmupHintsTotal["no_tier"] != 1 || s.OperationsWaiting+s.OperationsWarming != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPartsOfHintsThatDoNotFitTogether(t *testing.T) {
	base := wire.Warm{Ticket: 1, Parts: 2, Instance: "a", Request: "r"}
	for what, frames := range map[string]func(*peerEnd){
		"out of order":      func(p *peerEnd) { m := base; m.Part = 1; p.send(&m, 1) },
		"id on a first one": func(p *peerEnd) { m := base; p.send(&m, 1) },
		"no id on the last": func(p *peerEnd) { m := base; m.Parts = 1; p.send(&m, 0) },
		"another request":   func(p *peerEnd) { m := base; p.send(&m, 0); m.Part, m.Request = 1, "s"; p.send(&m, 1) },
		"id on a cancel":    func(p *peerEnd) { p.send(&wire.CancelWarm{Ticket: 1}, 1) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, mib)
			p := r.open(wire.RoleScheduler)
			frames(p)
			p.ended(wire.StatusMalformed)
		})
	}
}
