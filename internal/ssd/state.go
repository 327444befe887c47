package ssd

import (
	"fmt"
	"slices"
)

// Every life in this package is a machine: named states and the legal next ones of each. Machines move in one function, to, which crashes on an
// illegal move. The machine of a page record stands in internal/index: here a record is reserved and sealed at once, when the page can be read.
type machine[S ~uint8] struct {
	noun  string
	names []string
	moves [][]S // by state: the legal next states
}

// to moves *state to next.
func (m *machine[S]) to(state *S, next S) {
	if !slices.Contains(m.moves[*state], next) {
		panic(fmt.Sprintf("ssd: a %s cannot go from %s to %s", m.noun, m.names[*state], m.names[next]))
	}
	*state = next
}

// volumeState is one folder. A volume that is off stays so until the store is opened anew: its pages are misses.
//
//	on ──► off ──► closed
//	 └───────────────┘
type volumeState uint8

const (
	volumeOn volumeState = iota
	volumeOff
	volumeClosed
)

var volumeMachine = machine[volumeState]{
	"volume",
	[]string{"on", "off", "closed"},
	[][]volumeState{volumeOn: {volumeOff, volumeClosed}, volumeOff: {volumeClosed}, volumeClosed: nil},
}

// readState is one page on its way into memory. A submitted read is never aborted (I3): it comes to checking whatever happened.
//
//	queued ──► reading ──► checking ──► ended
//	   └──────────────────────────────────┘   dropped before it began
type readState uint8

const (
	readQueued readState = iota
	readReading
	readChecking
	readEnded
)

var readMachine = machine[readState]{
	"read",
	[]string{"queued", "reading", "checking", "ended"},
	[][]readState{readQueued: {readReading, readEnded}, readReading: {readChecking}, readChecking: {readEnded}, readEnded: nil},
}

// writeState is one page on its way to the device. What failed on the way ends without a record: it was never visible.
//
//	queued ──► preparing ──► writing ──► written ──► committing ──► ended
//	   │           │            │           │                         │
//	   └───────────┴────────────┴───────────┴─────────────────────────┘
//
// preparing: its digest is computed and space is found · written: the payload's transfer ended · committing: barrier, record, barrier.
type writeState uint8

const (
	writeQueued writeState = iota
	writePreparing
	writeWriting
	writeWritten
	writeCommitting
	writeEnded
)

var writeMachine = machine[writeState]{
	"write",
	[]string{"queued", "preparing", "writing", "written", "committing", "ended"},
	[][]writeState{
		writeQueued: {writePreparing, writeEnded}, writePreparing: {writeWriting, writeEnded}, writeWriting: {writeWritten, writeEnded},
		writeWritten: {writeCommitting, writeEnded}, writeCommitting: {writeEnded}, writeEnded: nil,
	},
}
