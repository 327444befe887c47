// Package machine is what every life in the Manager is made of: named states and the legal next ones of each.
//
// It holds no state of its own and needs no lock: who owns a life guards it.
package machine

import (
	"fmt"
	"slices"
)

// Machine is the table of one kind of life.
type Machine[S ~uint8] struct {
	Noun  string   // what lives, with the package in front
	Names []string // by state
	Moves [][]S    // by state: the legal next states; none is the end
}

// To moves *state to next, the only way in which a life goes on. It crashes on an illegal move: two owners would believe that they hold the same
// bytes.
func (m *Machine[S]) To(state *S, next S) {
	if !slices.Contains(m.Moves[*state], next) {
		panic(fmt.Sprintf("machine: a %s cannot go from %s to %s", m.Noun, m.Names[*state], m.Names[next]))
	}
	*state = next
}
