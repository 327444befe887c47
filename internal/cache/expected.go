package cache

import (
	"time"

	"orbitkv/internal/wire"
)

// expectKeysMax is how many pages of a prefix are looked at, of those that are being read and of those that are not yet: enough to tell how they lie on the
// disks, and an answer must not hold the mutex longer for a long prefix.
const expectKeysMax = 64

// Awaited is the pages of a query that are on their way, and what goes before them.
type Awaited struct {
	Namespace   uint32 // the tier's number
	Group       uint16
	Reading     []*wire.Key // the first of those that Read was given; valid during the call
	Unread      []*wire.Key // some of those that it will be given, evenly spread; valid during the call
	UnreadPages uint64      // all of these
	BeforeBytes uint64      // that it will be given for older queries until then
}

// expected says when the prefix of a query will be in the pool, zero when that is not known, and how many pages of it are not there yet.
func (c *Cache) expected(p *preparation) (time.Duration, uint32) {
	op, complete := p.op, p.complete()
	a := Awaited{Namespace: op.namespace.stored, Group: op.group}
	for i := complete; i < p.next && len(a.Reading) < expectKeysMax; i++ {
		if p.slots[i].read != nil {
			a.Reading = append(a.Reading, &op.keys[i])
		}
	}
	for i := p.next; i < len(p.slots); i++ {
		if !p.slots[i].held() {
			a.UnreadPages++
		}
	}
	stride := 1 + (len(p.slots)-p.next)/expectKeysMax
	for i := p.next; i < len(p.slots); i += stride {
		if !p.slots[i].held() {
			a.Unread = append(a.Unread, &op.keys[i])
		}
	}
	a.BeforeBytes = c.readsBefore(p, a.UnreadPages*op.namespace.geometry.pageBytes)
	return c.config.Tier.Expected(a), uint32(len(p.slots) - complete)
}

// readsBefore is the bytes that older queries will read while this one reads the rest of its own: they take turns, batch by batch. One that goes on at the
// same page reads the same ones.
func (c *Cache) readsBefore(p *preparation, rest uint64) (bytes uint64) {
	if rest == 0 {
		return 0
	}
	op := p.op
	for _, older := range c.preparations {
		if older == p {
			break
		}
		if older.op == nil || older.next == len(older.slots) {
			continue
		}
		same := older.op.namespace == op.namespace && older.op.group == op.group && older.op.keys[older.next] == op.keys[p.next]
		if !same {
			bytes += min(rest, uint64(len(older.slots)-older.next)*older.op.namespace.geometry.pageBytes)
		}
	}
	return bytes
}
