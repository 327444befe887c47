package session

import (
	"orbitkv/internal/wire"
)

// assembliesMax bounds the operations of one connection whose parts have not all come.
const assembliesMax = 4

// partKey names a multi-part operation.
type partKey struct {
	typ       wire.Type
	operation uint64
	revision  uint32
}

// part is what every part of an operation must carry alike, and its keys.
type part struct {
	key       partKey
	index     uint16
	parts     uint16
	namespace uint32
	group     uint16
	instance  string
	request   string
	keys      []wire.Key // alias the frame
}

// assembly is an operation whose parts have not all come.
type assembly struct {
	first   part
	next    uint16
	count   int
	keys    []wire.Key // their capacity is charged
	refused bool       // a part did not fit the budget: nothing is kept, and the last part is answered
}

// assemblies puts the parts of operations together. One reader goroutine uses it.
type assemblies struct {
	budget *budget
	open   map[partKey]*assembly
}

// add takes a part and returns all keys with the last one; whole is false before. The keys of an operation in one part alias its
// frame. StatusBusy, with the last part: the budget had no room for the operation. Any other error is a fault of the frame.
func (a *assemblies) add(p part) (keys []wire.Key, whole bool, err error) {
	if p.parts == 0 || p.parts > wire.PartsMax || p.index >= p.parts {
		return nil, false, fault(p, "part %d of %d does not exist: parts are counted from 0 to at most %d", p.index, p.parts, wire.PartsMax)
	}
	if p.parts == 1 {
		return p.keys, true, nil
	}
	joined := a.open[p.key]
	if p.index == 0 {
		if joined == nil && len(a.open) >= assembliesMax {
			return nil, false, fault(p, "%d operations are unfinished: send all parts of one before the next", assembliesMax)
		}
		if a.open == nil {
			a.open = map[partKey]*assembly{}
		}
		a.drop(joined)
		joined = &assembly{first: p}
		joined.first.keys = nil
		a.open[p.key] = joined
	}
	if joined == nil || joined.next != p.index {
		return nil, false, fault(p, "part %d came out of order", p.index)
	}
	if f := joined.first; f.parts != p.parts || f.namespace != p.namespace || f.group != p.group || f.instance != p.instance || f.request != p.request {
		return nil, false, fault(p, "part %d differs from part 0 in more than its keys", p.index)
	}
	if joined.count += len(p.keys); joined.count > wire.OperationKeysMax {
		return nil, false, fault(p, "more than %d keys", wire.OperationKeysMax)
	}
	a.keep(joined, p.keys)
	joined.next++
	if joined.next < p.parts {
		return nil, false, nil
	}
	delete(a.open, p.key)
	keys = joined.keys
	a.drop(joined)
	if joined.refused {
		return nil, true, wire.Errorf(wire.StatusBusy, "unfinished operations of all clients hold %d bytes, the most that a Manager keeps: ask again", a.budget.most)
	}
	return keys, true, nil
}

// keep copies a part's keys, or gives the operation up when the budget has no room for them.
func (a *assemblies) keep(joined *assembly, keys []wire.Key) {
	if joined.refused {
		return
	}
	if joined.count > cap(joined.keys) {
		room := min(max(joined.count, 2*cap(joined.keys)), wire.OperationKeysMax)
		if !a.budget.take((room - cap(joined.keys)) * wire.KeyBytes) {
			a.drop(joined)
			joined.refused = true
			return
		}
		grown := make([]wire.Key, len(joined.keys), room)
		copy(grown, joined.keys)
		joined.keys = grown
	}
	joined.keys = append(joined.keys, keys...)
}

// drop gives back what an operation was charged.
func (a *assemblies) drop(joined *assembly) {
	if joined != nil {
		a.budget.give(cap(joined.keys) * wire.KeyBytes)
		joined.keys = nil
	}
}

// close gives back what is unfinished when the connection ends.
func (a *assemblies) close() {
	for _, joined := range a.open {
		a.drop(joined)
	}
	a.open = nil
}

func fault(p part, format string, args ...any) error {
	args = append([]any{p.key.typ, p.key.operation, p.key.revision}, args...)
	return wire.Errorf(wire.StatusMalformed, "%v of operation %d, revision %d: "+format, args...)
}
