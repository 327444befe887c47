package ssd

import (
	"time"

	"orbitkv/internal/index"
)

// Key is the hash of one page.
type Key = [32]byte

// Digest is the XXH3-128 of a page's parts, one after the other, padding included.
type Digest = [16]byte

// Part is where one part of a page lies in memory; see Config.Memory. Bytes is padded, a multiple of 4 KiB.
type Part struct {
	Location uint64
	Bytes    uint64
}

// Priority orders reads: those of a lower number begin first. Writes begin after all reads.
type Priority uint8

// The priorities.
const (
	Demand Priority = iota
	Prepare
	Warm
	priorities
)

// String returns the priority's name.
func (p Priority) String() string {
	names := [priorities]string{"demand", "prepare", "warm"}
	if p >= priorities {
		return "none"
	}
	return names[p]
}

// Reasons of a read or write that did not end well. A read that ends with one is a miss.
const (
	ReasonDigest   = "digest"    // the bytes are not those that were written
	ReasonIO       = "io"        // the device or the file system failed
	ReasonShort    = "short"     // the file ended inside the page
	ReasonDropped  = "dropped"   // the namespace was dropped or the store cleared meanwhile
	ReasonNoSpace  = "no_space"  // no extent is large enough, or a full device
	ReasonReadOnly = "read_only" // the volume takes no more writes
	ReasonOff      = "off"       // the volume failed and is off
	ReasonHangs    = "hangs"     // the device has not answered for so long that what waits behind it is given up
	ReasonClosed   = "closed"    // the store closes
)

// Reasons for which Write takes no page.
const (
	SkipResident = "resident"  // it is stored
	SkipPending  = "pending"   // it is being written
	SkipUnknown  = "unknown"   // its namespace is none, or the parts do not sum to its pages' bytes
	SkipTooLarge = "too_large" // larger than every volume
	SkipReadOnly = "read_only" // no volume takes writes, though some can be read
	SkipOff      = "off"       // every volume is off, or the store closes
	SkipFull     = "full"      // the queue or the bytes held for writing are at their bound
)

// Read asks for one page. The parts' memory belongs to the transfer until Done.
type Read struct {
	Namespace uint32
	Group     uint16
	Key       Key
	Parts     []Part
	Priority  Priority
	Done      func(ReadResult) // called once, from a goroutine of the store that holds no lock
}

// ReadResult is the end of a read. OK says that every byte is there and agrees with the digest; else the parts hold anything.
type ReadResult struct {
	OK     bool
	Digest Digest
	Reason string
}

// Write offers one page. The parts' memory must not change and belongs to the transfer until Done.
type Write struct {
	Namespace uint32
	Group     uint16
	Key       Key
	Parts     []Part
	Done      func(WriteResult) // called once, from a goroutine of the store that holds no lock
}

// WriteResult is the end of a write. OK says that the page is on the device, record and all, and can be read.
type WriteResult struct {
	OK     bool
	Digest Digest
	Reason string
}

func bytesOf(parts []Part) (sum uint64) {
	for _, p := range parts {
		sum += p.Bytes
	}
	return sum
}

// read is one page on its way into memory.
type read struct {
	Read
	volume  *volume
	life    *life
	page    index.Handle // pinned
	offset  uint64       // of the extent
	bytes   uint64       // of the page
	digest  Digest       // that the bytes must have
	state   readState
	asked   time.Time
	begun   time.Time // when it was submitted
	among   uint64    // bytes under way then, its own included
	failure error     // of the transfer
}

// write is one page on its way to the device.
type write struct {
	Write
	volume   *volume
	life     *life
	bytes    uint64 // of the page
	offset   uint64 // of the extent, once it has one
	digest   Digest
	sequence uint64
	state    writeState
	asked    time.Time
	header   []byte // the block behind the payload, while it is written
}
