package cache

import (
	"time"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// Tier is the slow tier below the pool, as the cache sees it. Its methods are called with the cache's mutex held: none blocks, does I/O or calls
// the cache. What it was given ends with exactly one call of PageRead or PageWritten, from a goroutine of its own.
type Tier interface {
	// Namespace makes a namespace known, or finds it, and returns the number that the tier calls it by.
	Namespace(identity [32]byte, epoch, pageBytes uint64) uint32
	// DropNamespace forgets a namespace and its pages: they are unreachable when it returns.
	DropNamespace(namespace uint32)
	// ReleaseNamespace says that nobody uses a namespace until Namespace finds it again. Its pages stay, as long as the tier keeps them.
	ReleaseNamespace(namespace uint32)
	// Clear forgets every page: none is reachable when it returns.
	Clear()
	// Drop forgets a page that was written and whose bytes turned out to be wrong: it cannot be read when it returns.
	Drop(namespace uint32, group uint16, key *wire.Key)
	// Stored says whether a page is complete in the tier and can be read.
	Stored(namespace uint32, group uint16, key *wire.Key) bool
	// Wanted says whether a page is neither stored nor being written. Whatever else stands against it, such as a tier that is off, Write says and counts.
	Wanted(namespace uint32, group uint16, key *wire.Key) bool
	// Read begins to read a page into its parts; false when it is not stored or no more reads can be queued: nothing happened then.
	Read(t TierPage, priority ReadPriority) bool
	// Hasten makes a read that waits one of priority ReadDemand: a query has joined it. One that has begun or ended is left alone.
	Hasten(namespace uint32, group uint16, key *wire.Key)
	// Write queues a page to be written; false, with the reason counted by the tier, when it does not.
	Write(t TierPage) bool
	// ReadRoom is how many more pages Read can queue.
	ReadRoom() int
	// Expected is how long it takes until the pages of a query are in the pool, zero when nothing is known.
	Expected(a Awaited) time.Duration
	// Demanded says which pages a query leased, in prefix order. The keys are the caller's: what is kept is copied, into a bounded queue. Later
	// Offer brings those back that the tier does not have.
	Demanded(namespace uint32, group uint16, keys []wire.Key)
}

// ReadPriority orders the reads of a tier: those of a lower number go first.
type ReadPriority uint8

// The priorities. Writes come after all reads.
const (
	ReadDemand ReadPriority = iota
	ReadPrepare
	ReadWarm
)

// TierPage is one page on its way between pool and tier. Its extents belong to the transfer until its end.
type TierPage struct {
	Page      index.Handle // names it in PageRead and PageWritten
	Namespace uint32       // the tier's number
	Group     uint16
	Key       wire.Key
	Parts     []TierPart
}

// TierPart is where one part of a page lies in the pool.
type TierPart struct {
	Location wire.Location
	Bytes    uint64 // padded
}

// Digest is the XXH3-128 of a page's parts, one after the other, padding included. Zero is none.
type Digest [16]byte
