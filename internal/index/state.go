package index

import "fmt"

// State is what a page record is. The moves that are legal stand in moves; Entry.to makes them.
//
//	free ──► reserved ──► sealed ──► retired ──► free
//	            │
//	            ├──► abandoned ──► free
//	            │        │
//	            └────────┴──► quarantined (terminal)
//
// Reserved and sealed records are found by their key. A retired record has left the table and waits for its last
// reference; an abandoned one can never seal and waits for its last writer; a quarantined one has a writer or reader of which
// nobody will ever say that it is done.
type State uint8

// The states of a page record.
const (
	Free State = iota
	Reserved
	Sealed
	Retired
	Abandoned
	Quarantined
	states
)

// String returns the state's name.
func (s State) String() string {
	names := [states]string{"free", "reserved", "sealed", "retired", "abandoned", "quarantined"}
	if s >= states {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return names[s]
}

// moves lists the legal next states of each state.
var moves = [states][states]bool{
	Free:        {Reserved: true},
	Reserved:    {Sealed: true, Abandoned: true, Quarantined: true},
	Sealed:      {Retired: true},
	Retired:     {Free: true},
	Abandoned:   {Free: true, Quarantined: true},
	Quarantined: {},
}

// keyed says whether a record in this state is found by its key.
func (s State) keyed() bool { return s == Reserved || s == Sealed }

// Class says how willingly a sealed page is given up. Pages of class Unlisted are in no list and never victims.
type Class uint8

// The classes, in the order in which reclaim takes victims.
const (
	Reclaimable Class = iota
	Probationary
	Retained
	Unlisted
	classes
)

// Classes are those that have an LRU list, in the order in which reclaim takes victims.
var Classes = [...]Class{Reclaimable, Probationary, Retained}

// String returns the class's name.
func (c Class) String() string {
	names := [classes]string{"reclaimable", "probationary", "retained", "unlisted"}
	if c >= classes {
		return fmt.Sprintf("class %d", uint8(c))
	}
	return names[c]
}

// Origin says how a page's bytes came into the arena.
type Origin uint8

// The origins.
const (
	Published Origin = iota
	Warmed
	Peer
	Stored // read from the tier below the pool, on demand
	origins
)

// String returns the origin's name.
func (o Origin) String() string {
	names := [origins]string{"published", "warmed", "peer", "stored"}
	if o >= origins {
		return fmt.Sprintf("origin %d", uint8(o))
	}
	return names[o]
}
