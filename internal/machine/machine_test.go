package machine_test

import (
	"strings"
	"testing"

	"orbitkv/internal/machine"
)

func TestOnlyLegalMovesAreMade(t *testing.T) {
	m := machine.Machine[uint8]{Noun: "test: door", Names: []string{"open", "closed", "gone"}, Moves: [][]uint8{{1}, {0, 2}, nil}}
	for from, legal := range []string{" closed", " open gone", ""} {
		for next := range uint8(3) {
			state := uint8(from)
			text := crash(func() { m.To(&state, next) })
			allowed := strings.Contains(legal, " "+m.Names[next])
			switch {
			case allowed && (text != "" || state != next):
				t.Errorf("%s to %s: %q, now %s", m.Names[from], m.Names[next], text, m.Names[state])
			case !allowed && (state != uint8(from) || !strings.Contains(text, "a test: door cannot go from "+m.Names[from]+" to "+m.Names[next])):
				t.Errorf("%s to %s was made, or said %q", m.Names[from], m.Names[next], text)
			}
		}
	}
}

func crash(act func()) (text string) {
	defer func() {
		if fault, ok := recover().(string); ok {
			text = fault
		}
	}()
	act()
	return ""
}
