package cache

import (
	"testing"

	"orbitkv/internal/machine"
)

// TestMachines walks every pair of states: the legal moves change the state, the others crash and leave it.
func TestMachines(t *testing.T) {
	walk(t, &sliceMachine)
	walk(t, &operationMachine)
	walk(t, &consumerMachine)
	walk(t, &phaseMachine)
	walk(t, &sessionMachine)
	walk(t, &instanceMachine)
}

func walk[S ~uint8](t *testing.T, m *machine.Machine[S]) {
	t.Helper()
	if len(m.Moves) != len(m.Names) {
		t.Fatalf("%s: %d states with moves, %d with a name", m.Noun, len(m.Moves), len(m.Names))
	}
	terminal := 0
	for from := range m.Names {
		if len(m.Moves[from]) == 0 {
			terminal++
		}
		for next := range m.Names {
			legal := false
			for _, s := range m.Moves[from] {
				legal = legal || int(s) == next
			}
			state := S(from)
			if crashed := crashes(func() { m.To(&state, S(next)) }); crashed == legal || !crashed && int(state) != next || crashed && int(state) != from {
				t.Errorf("%s: %s to %s: legal %v, crashed %v, now %s", m.Noun, m.Names[from], m.Names[next], legal, crashed, m.Names[state])
			}
		}
	}
	if terminal == 0 {
		t.Errorf("%s has no terminal state", m.Noun)
	}
}

func crashes(act func()) (crashed bool) {
	defer func() { crashed = recover() != nil }()
	act()
	return false
}
