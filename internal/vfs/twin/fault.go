package twin

import (
	"errors"
	"io"
	"strings"
)

// Operation is what is done to the disk.
type Operation uint8

// The operations.
const (
	Read Operation = iota
	Write
	Sync
	Allocate
	Truncate
	Lock
	Open
	Exists
	Rename // named by the file that gets another name
	Remove
	SyncFolder // without a name
	FreeBytes  // without a name
	operations
)

var operationNames = [operations]string{
	"read", "write", "sync", "allocate", "truncate", "lock", "open", "exists", "rename", "remove", "sync folder", "free bytes",
}

// String is the operation's name.
func (o Operation) String() string { return operationNames[o] }

// changes says whether the operation may change what a crash leaves.
func (o Operation) changes() bool {
	switch o {
	case Read, Lock, Exists, FreeBytes:
		return false
	}
	return true
}

// ErrPowerOff is how every operation fails after PowerOff.
var ErrPowerOff = errors.New("the disk has no power")

// Event is an operation that is about to change the disk.
type Event struct {
	Operation Operation
	Name      string
	Offset    int64 // of a write, in bytes
	Bytes     int64 // of a write, an Allocate or a Truncate
}

// Rule makes operations fail. The rules of a disk are asked in the order in which they were added; the first that speaks is followed, and counts on its own.
type Rule struct {
	Operation Operation
	Name      string // what the file's name begins with
	Nth       int    // the match that fails, from 1 on; 0 is the first
	Onward    bool   // all later ones fail, too
	Err       error  // nil is a short transfer: io.ErrUnexpectedEOF of a read, io.ErrShortWrite of a write
	Moved     int64  // bytes that a read or write moves before it fails
}

type rule struct {
	Rule
	matched int
}

// Fail adds a rule.
func (d *Disk) Fail(r Rule) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	r.Nth = max(r.Nth, 1)
	d.rules = append(d.rules, &rule{Rule: r})
}

// Heal removes all rules.
func (d *Disk) Heal() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.rules = nil
}

// Hook calls each before every operation that may change what a crash leaves, outside of all locks: it may call Crash or PowerOff, and operations that
// run at the same time call it at the same time. nil takes it away.
func (d *Disk) Hook(each func(Event)) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.hook = each
}

// PowerOff makes every later operation fail with ErrPowerOff, those at a gate included.
func (d *Disk) PowerOff() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.off = true
}

// Count is how many operations of a kind were begun, and the bytes that reads and writes were asked to move.
func (d *Disk) Count(o Operation) (operations, bytes uint64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.counts[o].operations, d.counts[o].bytes
}

type count struct{ operations, bytes uint64 }

// enter passes an operation by the hook and the gates. It takes the disk's mutex, which the caller gives back, and returns how
// the operation fails, if it does, and how many bytes it moves before.
func (d *Disk) enter(e Event) (moved int64, failure error) {
	d.mutex.Lock()
	c := &d.counts[e.Operation]
	c.operations++
	if e.Operation == Read || e.Operation == Write {
		c.bytes += uint64(e.Bytes)
	}
	hook, gates := d.hook, d.gates
	d.mutex.Unlock()
	if hook != nil && e.Operation.changes() {
		hook(e)
	}
	for _, g := range gates {
		if g.operation == e.Operation && strings.HasPrefix(e.Name, g.prefix) {
			g.enter()
		}
	}
	d.mutex.Lock()
	if d.off {
		return 0, ErrPowerOff
	}
	return d.fault(e)
}

func (d *Disk) fault(e Event) (moved int64, failure error) {
	for _, r := range d.rules {
		if r.Operation != e.Operation || !strings.HasPrefix(e.Name, r.Name) {
			continue
		}
		r.matched++
		if failure != nil || r.matched < r.Nth || r.matched > r.Nth && !r.Onward {
			continue
		}
		moved, failure = min(r.Moved, e.Bytes), r.Err
		switch {
		case failure != nil:
		case e.Operation == Read:
			failure = io.ErrUnexpectedEOF
		default:
			failure = io.ErrShortWrite
		}
	}
	return moved, failure
}
