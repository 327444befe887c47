package session

import (
	"testing"

	"orbitkv/internal/metrics"
	"orbitkv/internal/wire"
)

// turned returns how many connections were turned away for a reason, as /metrics shows it.
func (r *rig) turned(reason string) float64 {
	r.Helper()
	families, err := r.served.Gatherer.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "orbitkv_connections_refused_total" && m.GetLabel()[0].GetValue() == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestConnectionsAreBoundedAndCounted(t *testing.T) {
	r := newRig(t, mib)
	r.server.mu.Lock()
	others := make([]*conn, connectionsMax-len(r.server.conns))
	for i := range others {
		others[i] = &conn{}
		r.server.conns[others[i]] = true
	}
	r.server.mu.Unlock()
	r.dial().ended(wire.StatusBusy)
	r.server.mu.Lock()
	for _, c := range others {
		delete(r.server.conns, c)
	}
	r.server.mu.Unlock()
	r.open(wire.RoleTool)
	if n := r.turned(metrics.ReasonBound); n != 1 {
		t.Errorf("%v connections were counted as turned away, want 1", n)
	}
}
