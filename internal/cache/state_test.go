package cache

import "testing"

// TestMachines walks every pair of states: the legal moves change the state, the others crash and leave it.
func TestMachines(t *testing.T) {
	walk(t, &sliceMachine)
	walk(t, &operationMachine)
	walk(t, &consumerMachine)
	walk(t, &phaseMachine)
	walk(t, &sessionMachine)
	walk(t, &instanceMachine)
}

func walk[S ~uint8](t *testing.T, m *machine[S]) {
	t.Helper()
	if len(m.moves) != len(m.names) {
		t.Fatalf("%s: %d states with moves, %d with a name", m.noun, len(m.moves), len(m.names))
	}
	terminal := 0
	for from := range m.names {
		if len(m.moves[from]) == 0 {
			terminal++
		}
		for next := range m.names {
			legal := false
			for _, s := range m.moves[from] {
				legal = legal || int(s) == next
			}
			state := S(from)
			if crashed := crashes(func() { m.to(&state, S(next)) }); crashed == legal || !crashed && int(state) != next || crashed && int(state) != from {
				t.Errorf("%s: %s to %s: legal %v, crashed %v, now %s", m.noun, m.names[from], m.names[next], legal, crashed, m.names[state])
			}
		}
	}
	if terminal == 0 {
		t.Errorf("%s has no terminal state", m.noun)
	}
}

func crashes(act func()) (crashed bool) {
	defer func() { crashed = recover() != nil }()
	act()
	return false
}
