package ssd

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"orbitkv/internal/blockio"
	"orbitkv/internal/extent"
	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs"
)

// volume is one folder. All of it is guarded by the store's mutex, but journal, which the goroutine that commits uses alone, and what Open set.
type volume struct {
	store    *Store
	number   int
	name     string
	fs       vfs.FS
	capacity uint64 // its share, bytes
	pagesMax uint64 // pages that the index log has room for
	id       [16]byte
	made     bool              // by this store
	super    format.Superblock // that is durable; the goroutine that commits uses it alone

	payload      vfs.File
	payloadBytes uint64
	engine       blockio.Engine
	engineReason string
	journal      *journal.Journal

	state    volumeState
	reason   string    // why it is read-only or off
	full     bool      // it is read-only since its file system is full
	retryAt  time.Time // when it is tried again in that case
	warned   time.Time // of a page the last time
	untold   int       // pages since then
	failures [2]int    // reads and writes that failed, each in a row
	disk     uint64    // that its files occupied after the last commit, bytes

	index      *index.Index
	facts      factsTable
	space      *extent.Allocator
	classBytes [len(index.Classes)]uint64 // extents of pages that can be read
	readers    map[index.Handle]int       // of pages that are being read
	lastNumber uint32                     // that a namespace got in the log
	forgotten  uint64                     // pages that were damaged
	mustSweep  bool                       // pages of dead lives may be in the index
	ops        []op                       // for the next commit
	limbo      uint64                     // bytes of extents that come back with it
	urgent     bool                       // it is to begin without waiting for pages
	clears     int                        // ops of it that are not durable yet
	erasing    bool                       // erase runs
	uncleared  error                      // of the last one

	reads    [priorities]queue[*read]
	reading  int      // transfers
	running  []*read  // the same, the oldest first
	rate     readRate // of these
	hung     bool     // it was said that the device hangs
	checking int      // read, their digest is being compared
	awaited  bool     // somebody waits for reads to begin or to end

	waiting         queue[*write]
	waitingBytes    uint64
	filling         bool          // a page is between its queue and its place
	ready           queue[*write] // have a place, and wait for the device
	readyBytes      uint64
	ahead           bool     // the page that is being filled waits until fewer are ready
	cramped         bool     // it waits until those before it have their record
	headers         [][]byte // blocks that no transfer uses
	writing         int      // transfers
	written         []*write
	writtenBytes    uint64
	writtenSince    time.Time // of the first of these
	unrecorded      int       // pages that have a place and no record
	unrecordedBytes uint64

	changed *sync.Cond // anything that the two goroutines below wait for
	tasks   sync.WaitGroup
}

// on says whether the volume takes writes; it is readable then, too.
func (v *volume) on() bool { return v.state == volumeOn }

// readable says whether its pages can be read.
func (v *volume) readable() bool { return v.state == volumeOn || v.state == volumeReadOnly }

// await waits for a change. What the caller has to hand over goes first.
func (v *volume) await() {
	s := v.store
	if len(s.submissions)+len(s.ends) > 0 {
		s.leave()
		s.mu.Lock()
		return
	}
	v.changed.Wait()
}

// direction is that of a transfer.
type direction uint8

const (
	reads direction = iota
	writes
)

// transferred counts transfers of one direction that fail in a row: a device that takes no more writes may still be read.
func (v *volume) transferred(d direction, err error) {
	if err == nil {
		v.failures[d] = 0
		return
	}
	v.failures[d]++
	switch {
	case v.failures[d] < failuresInARow:
	case d == writes:
		v.stopWrites(fmt.Sprintf("%d writes failed one after the other, the last one so", v.failures[d]), err)
	default:
		v.off(fmt.Sprintf("%d reads failed one after the other, the last one so: %v", v.failures[d], err))
	}
}

// warn logs a page that failed or is damaged, once in warnEvery with the number of those that were not told: a device that rots must not fill the log.
func (v *volume) warn(text string, facts ...any) {
	now := v.store.config.Now()
	if now.Sub(v.warned) < warnEvery {
		v.untold++
		return
	}
	facts = append([]any{"volume", v.name}, facts...)
	if v.untold > 0 {
		facts = append(facts, "pages_not_told", v.untold)
	}
	v.warned, v.untold = now, 0
	v.store.say(slog.LevelWarn, text, facts...)
}

// off turns the volume off: its pages are misses from here on. What was submitted runs to its end (I3).
func (v *volume) off(reason string) {
	if !v.readable() {
		return
	}
	volumeMachine.To(&v.state, volumeOff)
	v.reason = reason + ". Its pages are misses until a restart; look at the device and at the kernel's log"
	v.store.say(slog.LevelError, "a volume of the SSD cache is off", "volume", v.name, "reason", v.reason)
	for _, l := range v.store.lives {
		l.pages[v.number] = 0
		v.store.forgetLife(l)
	}
	v.refuseReads(ReasonOff)
	v.refuseWrites()
	if v.clears > 0 {
		v.clears = 0
		v.forget()
	}
	v.changed.Broadcast()
}

// checkPresence turns the volume off when somebody deleted its files: what is written then is lost with the process.
func (v *volume) checkPresence() {
	s := v.store
	s.mu.Lock()
	readable := v.readable()
	s.mu.Unlock()
	if !readable {
		return
	}
	named, err := v.payload.Named()
	if err != nil || named { // a device that fails shows in its transfers
		return
	}
	s.mu.Lock()
	defer s.leave()
	v.off(fmt.Sprintf("the files of %s were deleted under the running Manager", v.fs.Name()))
}

// refuseReads ends the reads that have not begun. The writes that gave way to them begin.
func (v *volume) refuseReads(reason string) {
	for p := range v.reads {
		for v.reads[p].len() > 0 {
			r := v.reads[p].pop()
			v.store.readQueued -= r.bytes
			v.endRead(r, reason)
		}
	}
	v.launch()
}

// clearing says whether a clear is not known to be durable or to have failed yet.
func (v *volume) clearing() bool { return v.clears > 0 || v.erasing }

// refuseWaiting ends the writes that have not begun.
func (v *volume) refuseWaiting(reason string) {
	for v.ready.len() > 0 {
		v.takeBack(v.nextReady(), reason)
	}
	for v.waiting.len() > 0 {
		w := v.waiting.pop()
		v.waitingBytes -= w.bytes
		v.endWrite(w, reason)
	}
}

// refuseWrites ends what a volume that takes no more writes has not told its index log of.
func (v *volume) refuseWrites() {
	v.refuseWaiting(v.refusal())
	for _, w := range v.written {
		v.takeBack(w, v.refusal())
	}
	v.written, v.writtenBytes = nil, 0
}

// shut closes what is open, in the order in which one needs the other. The lock goes with the payload's descriptor.
func (v *volume) shut() error {
	var errs []error
	if v.engine != nil {
		v.engine.Close()
	}
	if v.journal != nil {
		errs = append(errs, v.journal.Close())
	}
	if v.payload != nil {
		errs = append(errs, v.payload.Close())
	}
	if v.state != volumeClosed {
		volumeMachine.To(&v.state, volumeClosed)
	}
	return errors.Join(errs...)
}

// layOut divides a share of the capacity: what the index log may grow to, with its successor beside it, what a file system keeps of its own for large
// files, and the payload.
func layOut(share uint64) (payloadBytes, pagesMax uint64) {
	pagesMax = share / pageShareBytes
	others := format.SuperblockBytes + journal.BytesMax(pagesMax, NamespacesMax) + share/4096 + 64<<10
	return (share - min(others, share)) / format.Granule * format.Granule, pagesMax
}
