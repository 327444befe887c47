package ssd

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"orbitkv/internal/blockio"
	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// A log that has grown long is replaced while pages are written, read and evicted. Before each step of that a loss of power leaves what was promised.
func TestTheLogIsCompactedMeanwhile(t *testing.T) {
	disk := twin.New(1)
	a := newArena(64, 4<<10)
	r := openRigIn(t, a, []*twin.Disk{disk})
	c := &script{rig: r, sizes: [3]uint64{4 << 10, 4 << 10, 4 << 10}, promised: promised{pages: map[promise]bool{}}}
	c.register()
	s := c.spaces[1]
	var outcomes []outcome
	var mu sync.Mutex
	var compacting atomic.Bool
	disk.Hook(func(e twin.Event) {
		if e.Operation == twin.Open && e.Name == format.IndexNewName {
			compacting.Store(true)
		}
		if !compacting.Load() {
			return
		}
		if e.Operation == twin.SyncFolder {
			compacting.Store(false)
		}
		must := c.promised.now()
		before := c.sequences(c.spaces, must)
		left := disk.Crash()
		after := c.sequences(c.spaces, must)
		for p := range must {
			if before[p] == 0 || after[p] != before[p] {
				delete(must, p)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		outcomes = append(outcomes, outcome{fmt.Sprintf("before %v of %s", e.Operation, e.Name), left, must})
	})
	number := 0
	for ; number < 100_000; number += 32 {
		var ends []<-chan WriteResult
		for i := range 32 {
			ends = append(ends, r.begin(s, 0, number+i))
		}
		for i, ended := range ends {
			if result := <-ended; !result.OK {
				t.Fatal(result.Reason)
			}
			c.promised.add(s, number+i)
		}
		r.read(s, number-number%5*32)
		if number%1024 == 0 {
			c.forgetEvicted()
		}
		mu.Lock()
		enough := len(outcomes) > 4 && !compacting.Load()
		mu.Unlock()
		if enough {
			break
		}
	}
	disk.Hook(nil)
	if len(outcomes) < 5 {
		t.Fatalf("the log was not replaced in %d writes", number)
	}
	stored := r.count(s, 0, number+32)
	r = r.again()
	c.rig, c.first, c.pages = r, number-1000, number+32
	if got := r.store.Stats().RecoveredPages; int(got) != stored {
		t.Errorf("%d pages came back, %d were stored", got, stored)
	}
	r.close()
	for i := range outcomes {
		c.recovered(t, &outcomes[i])
	}
}

// forgetEvicted takes pages that are gone off the promised ones, so that there are never too many.
func (c *script) forgetEvicted() {
	for p := range c.promised.now() {
		if s := c.spaces[p.identity]; !c.stored(s, p.number) {
			c.promised.mu.Lock()
			delete(c.promised.pages, p)
			c.promised.mu.Unlock()
		}
	}
}

// meanwhile is an engine that does something in place of a transfer, when the mutex is given up.
type meanwhile func()

func (m meanwhile) Name() string             { return "meanwhile" }
func (m meanwhile) Submit(*blockio.Transfer) { m() }
func (m meanwhile) Close()                   {}

// A page that falls back while the order is taken, into a class that was walked already, is not forgotten.
func TestTheOrderHasEveryPage(t *testing.T) {
	const pages = sweepRecords + 100
	r := openRigIn(t, newArena(64, 4<<10), oneDisk(1), func(c *Config) { c.CapacityBytes = 64 << 20 })
	s := r.namespace(1, 0, 4<<10)
	for number := range pages {
		r.mustWrite(s, number)
		r.store.Demanded(s.handle, 0, keyOf(number))
	}
	v, moved := r.store.volumes[0], false
	r.store.mu.Lock()
	r.store.submissions = append(r.store.submissions, submission{engine: meanwhile(func() {
		r.store.mu.Lock()
		defer r.store.mu.Unlock()
		_, h, _ := r.store.find(r.store.namespaces[s.handle], 0, keyOf(pages-1))
		moved = v.move(h, index.Probationary)
	})})
	order := v.order()
	r.store.mu.Unlock()
	seen := map[index.Handle]bool{}
	for _, h := range order {
		seen[h] = true
	}
	if !moved || len(order) != pages || len(seen) != pages {
		t.Errorf("the order has %d pages, %d different ones, of %d; one fell back meanwhile: %v", len(order), len(seen), pages, moved)
	}
	r.close()
}
