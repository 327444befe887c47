package session

import (
	"testing"

	"orbitkv/internal/metrics"
	"orbitkv/internal/wire"
)

// turned returns how many connections were turned away for a reason, as /metrics shows it.
func (r *rig) turned(reason string) float64 {
	r.Helper()
	return r.counted("orbitkv_connections_refused_total", reason)
}

// greetedConns enters n connections that have said hello into the table; leave takes them off it.
func (r *rig) greetedConns(n int) (leave func()) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	others := make([]*conn, n)
	for i := range others {
		others[i] = &conn{greeted: true}
		r.server.conns[others[i]] = true
	}
	return func() {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		for _, c := range others {
			delete(r.server.conns, c)
		}
	}
}

func TestConnectionsThatSayNothingKeepNobodyOut(t *testing.T) {
	r := newRig(t, mib)
	open := func(n int) func() bool { return func() bool { return r.server.Connections() == n } }
	first := r.dial()
	r.until("the first connection", open(1))
	second := r.dial()
	r.until("the second connection", open(2))
	defer r.greetedConns(connectionsMax - 2)()
	r.open(wire.RoleTool).alive()
	first.ended(wire.StatusBusy)
	second.call(&wire.Hello{ABI: wire.ABI, Role: wire.RoleTool, Name: "late"}, &wire.Welcome{})
	second.alive()
	if n := r.turned(metrics.ReasonBound); n != 1 {
		t.Errorf("%v connections were counted as turned away, want 1", n)
	}
}

func TestConnectionsAreBoundedAndCounted(t *testing.T) {
	r := newRig(t, mib)
	leave := r.greetedConns(connectionsMax)
	r.dial().ended(wire.StatusBusy)
	leave()
	r.open(wire.RoleTool)
	if n := r.turned(metrics.ReasonBound); n != 1 {
		t.Errorf("%v connections were counted as turned away, want 1", n)
	}
}

// counted returns one counter of /metrics with one label.
func (r *rig) counted(name, label string) float64 {
	r.Helper()
	families, err := r.served.Gatherer.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestUnfinishedOperationsOfAllConnectionsShareOneBudget(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	e := r.attach("a", 4*kib)
	hoard := r.open(wire.RoleTool)
	r.server.unfinished.most = 4 * wire.FrameKeysMax * wire.KeyBytes
	full := wire.Query{Operation: 1, Revision: 1, Parts: 3, Namespace: e.namespace.Namespace, Instance: "a", Keys: keysOf(0, wire.FrameKeysMax)}
	for ; full.Operation <= assembliesMax; full.Operation++ {
		hoard.send(&full, 0)
	}
	hoard.alive()
	if used := r.server.unfinished.used.Load(); used != r.server.unfinished.most {
		t.Fatalf("%d bytes are charged, want %d", used, r.server.unfinished.most)
	}

	two := wire.Query{Operation: 1, Revision: 1, Parts: 2, Namespace: e.namespace.Namespace, Instance: "a", Request: "r", Keys: keysOf(0, 9)}
	e.operation = 1
	e.scheduler.send(&two, 0)
	two.Part = 1
	e.scheduler.refused(&two, wire.StatusBusy)
	if n := r.counted("orbitkv_calls_refused_total", "busy"); n != 1 {
		t.Errorf("%v calls were counted as refused, want 1", n)
	}
	e.publish(keysOf(0, 3)) // in one part: it needs no room
	hoard.conn.Close()
	r.until("the end of the hoard", func() bool { return r.server.unfinished.used.Load() == 0 })
	e.query(keysOf(0, wire.FrameKeysMax+1))
	if used := r.server.unfinished.used.Load(); used != 0 {
		t.Errorf("%d bytes stay charged for finished operations", used)
	}
}

func TestUnreadAnswersOfAllConnectionsShareOneBudget(t *testing.T) {
	r := newRig(t, mib)
	r.server.unsent.most = mib
	reader := r.open(wire.RoleTool)
	frames := []byte{}
	for id := uint64(1); len(frames) < 60*kib; id++ {
		frame, err := (&wire.Ping{}).Append(nil, id)
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame...)
	}
	mute := r.open(wire.RoleTool)
	var err error
	for err == nil {
		_, err = mute.conn.Write(frames)
	}
	r.until("the end of the mute session", func() bool { return r.cache.Stats().Sessions == 1 })
	if n := r.counted("orbitkv_connections_closed_total", metrics.ReasonCrowded); n != 1 {
		t.Errorf("%v connections were counted as crowded out, want 1", n)
	}
	r.until("the memory", func() bool { return r.server.unsent.used.Load() == 0 })
	if !r.server.unsent.take(mib) {
		t.Fatal("the bound is not what was set")
	}
	reader.alive() // who reads needs no room
	r.server.unsent.give(mib)
}
