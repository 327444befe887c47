package ssd

import "orbitkv/internal/machine"

// volumeState is one folder. One that is read-only takes no writes, since they failed, and its pages are read. One that is off stays so until the store
// is opened anew: its pages are misses.
//
//	on ◄──► read-only ──► off ──► closed
//	 │          └──────────────────▲
//	 └────────────────────► off, closed
type volumeState uint8

const (
	volumeOn volumeState = iota
	volumeReadOnly
	volumeOff
	volumeClosed
)

var volumeMachine = machine.Machine[volumeState]{
	Noun:  "ssd: volume",
	Names: []string{"on", "read_only", "off", "closed"},
	Moves: [][]volumeState{
		volumeOn: {volumeReadOnly, volumeOff, volumeClosed}, volumeReadOnly: {volumeOn, volumeOff, volumeClosed}, volumeOff: {volumeClosed}, volumeClosed: nil,
	},
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

var readMachine = machine.Machine[readState]{
	Noun:  "ssd: read",
	Names: []string{"queued", "reading", "checking", "ended"},
	Moves: [][]readState{readQueued: {readReading, readEnded}, readReading: {readChecking}, readChecking: {readEnded}, readEnded: nil},
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

var writeMachine = machine.Machine[writeState]{
	Noun:  "ssd: write",
	Names: []string{"queued", "preparing", "writing", "written", "committing", "ended"},
	Moves: [][]writeState{
		writeQueued: {writePreparing, writeEnded}, writePreparing: {writeWriting, writeEnded}, writeWriting: {writeWritten, writeEnded},
		writeWritten: {writeCommitting, writeEnded}, writeCommitting: {writeEnded}, writeEnded: nil,
	},
}
