package cache

import "orbitkv/internal/machine"

// sliceState is one storage rank's part of one reserved page.
//
//	reserved ──► committed
//	    ├──────► abandoned     its writer said so, or died and is quiet
//	    └──────► quarantined   its writer died and may still write, or nobody accounts for it
//
// A reserved slice whose writer's session is disconnected is labelled settling in Stats: the next word on it comes from a resume
// or from the exit of the process.
type sliceState uint8

const (
	sliceReserved sliceState = iota
	sliceCommitted
	sliceAbandoned
	sliceQuarantined
)

var sliceMachine = machine.Machine[sliceState]{
	Noun:  "cache: slice",
	Names: []string{"reserved", "committed", "abandoned", "quarantined"},
	Moves: [][]sliceState{sliceReserved: {sliceCommitted, sliceAbandoned, sliceQuarantined}, sliceQuarantined: nil},
}

// operationState is one outstanding query.
//
//	waiting ──► preparing ──► ready ──► retired
//	    │           └───────────────────────┤
//	    └──► ready or retired ──────────────┘
type operationState uint8

const (
	operationWaiting operationState = iota
	operationPreparing
	operationReady
	operationRetired
)

var operationMachine = machine.Machine[operationState]{
	Noun:  "cache: query",
	Names: []string{"waiting", "preparing", "ready", "retired"},
	Moves: [][]operationState{
		operationWaiting:   {operationPreparing, operationReady, operationRetired},
		operationPreparing: {operationReady, operationRetired},
		operationReady:     {operationRetired},
		operationRetired:   nil,
	},
}

// consumerState is one rank's part of a lease. Released, done and dropped are terminal and hold nothing; quarantined holds for ever.
//
//	ready ──► begun ──► done
//	  │         ├─────► dropped      its process died: a dead reader is harmless
//	  │         └─────► quarantined  no living process accounts for the copy
//	  ├─────► released
//	  └─────► dropped
type consumerState uint8

const (
	consumerReady consumerState = iota
	consumerBegun
	consumerReleased
	consumerDone
	consumerDropped
	consumerQuarantined
)

var consumerMachine = machine.Machine[consumerState]{
	Noun:  "cache: consumer",
	Names: []string{"ready", "begun", "released", "done", "dropped", "quarantined"},
	Moves: [][]consumerState{
		consumerReady:       {consumerBegun, consumerReleased, consumerDropped},
		consumerBegun:       {consumerDone, consumerDropped, consumerQuarantined},
		consumerQuarantined: nil,
	},
}

// phase is where the bytes of a lease, of a prefix that is being read for one, or of a hint are charged.
//
//	preparing, draining   global budget, instance budget, pool
//	warming               global budget, instance budget, pool; a share of both at most
//	ready, restoring      global budget, instance budget, pool
//	stalled               instance budget, pool
//	quarantined           pool
type phase uint8

const (
	phaseReady phase = iota
	phaseRestoring
	phaseStalled
	phaseQuarantined
	phasePreparing
	phaseDraining
	phaseWarming
	phaseEnded
	phases
)

var phaseMachine = machine.Machine[phase]{
	Noun:  "cache: charge",
	Names: []string{"ready", "restoring", "stalled", "quarantined", "preparing", "draining", "warming", "ended"},
	Moves: [][]phase{
		phaseReady:       {phaseRestoring, phaseStalled, phaseQuarantined, phaseEnded},
		phaseRestoring:   {phaseStalled, phaseQuarantined, phaseEnded},
		phaseStalled:     {phaseReady, phaseRestoring, phaseQuarantined, phaseEnded},
		phaseQuarantined: nil,
		phasePreparing:   {phaseDraining, phaseEnded},
		phaseDraining:    {phaseEnded},
		phaseWarming:     {phaseEnded},
		phaseEnded:       nil,
	},
}

// hintState is one hint. What drains starts nothing: its reads run to their end.
//
//	reading ──► draining ──► ended
type hintState uint8

const (
	hintReading hintState = iota
	hintDraining
	hintEnded
)

var hintMachine = machine.Machine[hintState]{
	Noun:  "cache: hint",
	Names: []string{"reading", "draining", "ended"},
	Moves: [][]hintState{hintReading: {hintDraining}, hintDraining: {hintEnded}, hintEnded: nil},
}

// sessionState is one connection. A closed one is disconnected while its process lives and still holds something.
//
//	open ──► closed ──► ended
type sessionState uint8

const (
	sessionOpen sessionState = iota
	sessionClosed
	sessionEnded
)

var sessionMachine = machine.Machine[sessionState]{
	Noun:  "cache: session",
	Names: []string{"open", "closed", "ended"},
	Moves: [][]sessionState{sessionOpen: {sessionClosed}, sessionClosed: {sessionEnded}, sessionEnded: nil},
}

// instanceState is one engine replica.
//
//	gathering ──► sealed ──► gone
//	    └────────────────────┘
type instanceState uint8

const (
	instanceGathering instanceState = iota
	instanceSealed
	instanceGone
)

var instanceMachine = machine.Machine[instanceState]{
	Noun:  "cache: instance",
	Names: []string{"gathering", "sealed", "gone"},
	Moves: [][]instanceState{instanceGathering: {instanceSealed, instanceGone}, instanceSealed: {instanceGone}, instanceGone: nil},
}
