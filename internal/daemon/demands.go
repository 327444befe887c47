package daemon

import (
	"slices"
	"sync"

	"orbitkv/internal/ssd"
	"orbitkv/internal/wire"
)

const (
	// demandKeysMax bounds the keys that wait to be told to the store, 2 MiB of them. A demand without room is dropped and counted: the store then knows less
	// of what is used, no more.
	demandKeysMax = 64 << 10
	// offerKeysMax is how many keys one call offers, while the cache answers nobody.
	offerKeysMax = 64
)

// demand is the pages that one query leased.
type demand struct {
	namespace uint32
	group     uint16
	keys      []wire.Key
}

// demands passes on what queries asked for, off their path: the store then keeps these pages longest, and those that it lacks are offered to it again.
type demands struct {
	mu      sync.Mutex
	waiting []demand
	keys    int // of all that wait, at most demandKeysMax
	dropped uint64
	stopped bool
	changed *sync.Cond
	done    sync.WaitGroup
}

// audience is who is told of demands: the store, and the cache of what the store lacks.
type audience interface {
	tell(namespace uint32, group uint16, key *wire.Key) (lacking bool)
	offer(namespace uint32, group uint16, keys []wire.Key)
}

func newDemands() *demands {
	d := &demands{}
	d.changed = sync.NewCond(&d.mu)
	return d
}

// add takes a copy of the keys, or drops the demand.
func (d *demands) add(namespace uint32, group uint16, keys []wire.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys+len(keys) > demandKeysMax || d.stopped {
		d.dropped++
		return
	}
	d.keys += len(keys)
	d.waiting = append(d.waiting, demand{namespace, group, slices.Clone(keys)})
	d.changed.Signal()
}

// droppedTotal is how many demands found no room.
func (d *demands) droppedTotal() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dropped
}

// run passes demands on until stop.
func (d *demands) run(to audience) {
	d.done.Go(func() {
		for next, ok := d.take(); ok; next, ok = d.take() {
			next.pass(to)
		}
	})
}

// stop ends run. What waits is forgotten.
func (d *demands) stop() {
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.changed.Broadcast()
	d.done.Wait()
}

func (d *demands) take() (next demand, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.waiting) == 0 && !d.stopped {
		d.changed.Wait()
	}
	if d.stopped {
		return demand{}, false
	}
	next, d.waiting = d.waiting[0], d.waiting[1:]
	d.keys -= len(next.keys)
	return next, true
}

// pass tells the store of the last page first: without its first page a prefix is worth nothing, so that one must count as used last.
func (n demand) pass(to audience) {
	var lacking []wire.Key
	for i := len(n.keys) - 1; i >= 0; i-- {
		if to.tell(n.namespace, n.group, &n.keys[i]) {
			lacking = append(lacking, n.keys[i])
		}
	}
	slices.Reverse(lacking)
	for batch := range slices.Chunk(lacking, offerKeysMax) {
		to.offer(n.namespace, n.group, batch)
	}
}

func (t *tier) tell(namespace uint32, group uint16, key *wire.Key) (lacking bool) {
	return t.store.Demanded(namespace, group, (*ssd.Key)(key))
}

func (t *tier) offer(namespace uint32, group uint16, keys []wire.Key) {
	t.cache.Offer(namespace, group, keys)
}
