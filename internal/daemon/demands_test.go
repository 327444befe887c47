package daemon

import (
	"reflect"
	"runtime"
	"sync"
	"testing"

	"orbitkv/internal/wire"
)

func keysOf(from, to byte) (keys []wire.Key) {
	for i := from; i < to; i++ {
		keys = append(keys, wire.Key{i})
	}
	return keys
}

// listener hears demands; it lacks the pages with odd numbers.
type listener struct {
	mu      sync.Mutex
	told    []byte
	offered [][]byte
	hear    chan struct{} // one for each demand that may be passed on
	heard   chan struct{} // one for each offer
}

func (l *listener) tell(_ uint32, _ uint16, key *wire.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, key[0])
	return key[0]%2 == 1
}

func (l *listener) offer(namespace uint32, group uint16, keys []wire.Key) {
	<-l.hear
	l.mu.Lock()
	defer l.mu.Unlock()
	offered := []byte{byte(namespace), byte(group)}
	for _, key := range keys {
		offered = append(offered, key[0])
	}
	l.offered = append(l.offered, offered)
	l.heard <- struct{}{}
}

func TestTheFirstPageOfADemandIsToldLastAndLackingOnesAreOfferedInOrder(t *testing.T) {
	l := &listener{hear: make(chan struct{}, 8), heard: make(chan struct{}, 8)}
	d := newDemands()
	d.run(l)
	keys := keysOf(0, 6)
	d.add(7, 2, keys)
	keys[1] = wire.Key{99} // the caller's again
	l.hear <- struct{}{}
	<-l.heard
	if !reflect.DeepEqual(l.told, []byte{5, 4, 3, 2, 1, 0}) || !reflect.DeepEqual(l.offered, [][]byte{{7, 2, 1, 3, 5}}) {
		t.Errorf("told %v, offered %v", l.told, l.offered)
	}
	d.stop()
}

func TestOffersAreShort(t *testing.T) {
	l := &listener{hear: make(chan struct{}, 8), heard: make(chan struct{}, 8)}
	for range cap(l.hear) {
		l.hear <- struct{}{}
	}
	demand{keys: keysOf(0, 200)}.pass(l)
	if len(l.offered) != 2 || len(l.offered[0]) != 2+offerKeysMax || len(l.offered[1]) != 2+100-offerKeysMax {
		t.Errorf("%d offers of 100 keys: %v", len(l.offered), l.offered)
	}
}

func TestDemandsWithoutRoomAreDroppedAndCounted(t *testing.T) {
	d := newDemands() // nobody listens
	d.add(1, 0, make([]wire.Key, demandKeysMax-1))
	d.add(1, 0, make([]wire.Key, 2))
	if n := d.droppedTotal(); n != 1 {
		t.Errorf("%d dropped, want the one that has no room", n)
	}
	d.add(1, 0, make([]wire.Key, 1))
	if n := d.droppedTotal(); n != 1 || d.keys != demandKeysMax {
		t.Errorf("%d dropped with %d keys waiting, want room for one more", n, d.keys)
	}
	if next, ok := d.take(); !ok || len(next.keys) != demandKeysMax-1 || d.keys != 1 {
		t.Errorf("%d keys wait after the first demand was taken", d.keys)
	}
}

// until returns once a condition of the demands holds.
func until(d *demands, holds func() bool) {
	for {
		d.mu.Lock()
		held := holds()
		d.mu.Unlock()
		if held {
			return
		}
		runtime.Gosched()
	}
}

func TestWhatWaitsIsForgottenAtTheEnd(t *testing.T) {
	l := &listener{hear: make(chan struct{}), heard: make(chan struct{}, 1)}
	d := newDemands()
	d.run(l)
	d.add(1, 0, keysOf(1, 2)) // its offer waits
	until(d, func() bool { return d.keys == 0 })
	d.add(2, 0, keysOf(3, 4))
	ended := make(chan struct{})
	go func() {
		d.stop()
		close(ended)
	}()
	until(d, func() bool { return d.stopped })
	l.hear <- struct{}{}
	<-ended
	if len(l.offered) != 1 {
		t.Errorf("%v were offered, want the one under way alone", l.offered)
	}
	if d.add(3, 0, keysOf(5, 6)); d.droppedTotal() != 1 {
		t.Error("a demand after the end was not dropped")
	}
}
