package ssd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs/twin"
)

// promised is what a store has said so far: the pages whose write ended well and that nobody dropped since.
type promised struct {
	mu    sync.Mutex
	pages map[promise]bool
}

// promise is one page, by the facts of its namespace, since handles change with each opening.
type promise struct {
	identity byte
	bytes    uint64
	number   int
}

func (p *promised) add(s space, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages[promise{s.identity, s.bytes, number}] = true
}

func (p *promised) drop(identity byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.pages, func(page promise, _ bool) bool { return identity == 0 || page.identity == identity })
}

func (p *promised) now() map[promise]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.pages)
}

// script is a seeded run of a store: pages of three namespaces, of which one is dropped, written a few at a time, read and demanded, and one clear.
type script struct {
	*rig
	draw     *rand.Rand
	promised promised
	spaces   map[byte]space
	sizes    [3]uint64 // of the pages of namespaces 1 to 3
	steps    int
	first    int // of the numbers that pages have
	pages    int // the number behind their last
}

func (c *script) register() {
	c.spaces = map[byte]space{}
	for i, bytes := range c.sizes {
		c.spaces[byte(i+1)] = c.namespace(byte(i+1), uint64(i), bytes)
	}
}

func (c *script) run(clear bool) {
	var ends []func()
	for step := range c.steps {
		s := c.spaces[byte(1+c.draw.IntN(3))]
		number := c.draw.IntN(c.pages)
		switch action := c.draw.IntN(20); {
		case action < 14:
			if ended := c.begin(s, 0, number); ended != nil {
				ends = append(ends, func() {
					if (<-ended).OK {
						c.promised.add(s, number)
					}
				})
			}
		case action < 18:
			c.readAs(s, number, Priority(c.draw.IntN(int(priorities))))
		default:
			c.store.Demanded(s.handle, 0, keyOf(number))
		}
		if len(ends) == 6 || step == c.steps-1 {
			for _, end := range ends {
				end()
			}
			ends = nil
		}
		if len(ends) == 0 && step >= c.steps/3 && step < c.steps/3+6 {
			c.promised.drop(3)
			c.store.DropNamespace(c.spaces[3].handle)
			c.spaces[3] = c.namespace(3, 2, c.sizes[2])
		}
		if clear && len(ends) == 0 && step >= c.steps/2 && step < c.steps/2+6 {
			c.promised.drop(0)
			c.store.Clear()
		}
	}
}

// outcome is a disk after a loss of power and the pages that must be readable on it.
type outcome struct {
	what string
	disk *twin.Disk
	must map[promise]bool
}

// crashes collects an outcome before every so many operations that change the disk.
func (c *script) crashes(every uint64) *[]outcome {
	var mu sync.Mutex
	outcomes := &[]outcome{}
	disk := c.disks[0]
	spaces := maps.Clone(c.spaces)
	var operations atomic.Uint64
	disk.Hook(func(e twin.Event) {
		if operations.Add(1)%every != 0 {
			return
		}
		// A page that was promised and stored before the power was cut, and that is stored after it by the same writing, had a durable record
		// and no durable drop at that moment.
		must := c.promised.now()
		before := c.sequences(spaces, must)
		left := disk.Crash()
		after := c.sequences(spaces, must)
		maps.DeleteFunc(must, func(p promise, _ bool) bool { return before[p] == 0 || after[p] != before[p] })
		mu.Lock()
		defer mu.Unlock()
		*outcomes = append(*outcomes, outcome{fmt.Sprintf("crash %d, before %v of %s at %d", len(*outcomes), e.Operation, e.Name, e.Offset), left, must})
	})
	return outcomes
}

// sequences are the numbers by which the pages that are stored now were written.
func (c *script) sequences(spaces map[byte]space, pages map[promise]bool) map[promise]uint64 {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[promise]uint64{}
	for p := range pages {
		if v, h, ok := s.find(s.namespaces[spaces[p.identity].handle], 0, keyOf(p.number)); ok {
			found[p] = v.facts.get(h.Entry()).sequence
		}
	}
	return found
}

// recovered opens a store over an outcome and reads everything that was ever written.
func (c *script) recovered(t *testing.T, o *outcome) {
	t.Helper()
	r := openRigIn(t, c.arena, []*twin.Disk{o.disk})
	again := &script{rig: r, sizes: c.sizes}
	again.register()
	read := 0
	for identity, s := range again.spaces {
		for number := c.first; number < c.pages; number++ {
			must := o.must[promise{identity, s.bytes, number}]
			stored := r.stored(s, number)
			result := r.read(s, number) // whose bytes the rig compares
			if must && !result.OK {
				t.Errorf("%s: page %d of namespace %d was written and is lost: stored %v, %s", o.what, number, identity, stored, result.Reason)
			}
			if stored && !result.OK { // its record is younger than its bytes, and nothing was written over them
				t.Errorf("%s: page %d of namespace %d has a record and cannot be read: %s", o.what, number, identity, result.Reason)
			}
			if result.OK {
				read++
			}
		}
	}
	problems := r.store.Stats().RecoveryProblems
	if problems[journal.Damaged] > 0 { // a commit that did not end may have lost the record of a namespace and kept those of its pages
		delete(problems, journal.UnknownNamespace)
	}
	for _, reason := range []string{journal.Duplicate, journal.UnknownNamespace, journal.OutOfBounds, journal.Overlapping} {
		if problems[reason] > 0 {
			t.Errorf("%s: %d records are %s", o.what, problems[reason], reason)
		}
	}
	if !r.stored(again.spaces[1], c.pages) {
		r.mustWrite(again.spaces[1], c.pages)
	}
	r.mustRead(again.spaces[1], c.pages)
	r.close()
	if most := o.disk.Peak(); most > capacity {
		t.Errorf("%s: the files occupied %d bytes, the capacity is %d", o.what, most, capacity)
	}
	if t.Failed() {
		t.Fatalf("%s: %d pages must be readable, %d were read", o.what, len(o.must), read)
	}
}

func newScript(t *testing.T, seed uint64, a *arena, disk *twin.Disk, sizes [3]uint64, steps, pages int, changes ...configure) *script {
	t.Helper()
	c := &script{
		rig: openRigIn(t, a, []*twin.Disk{disk}, changes...), draw: rand.New(rand.NewPCG(seed, 1)), sizes: sizes, steps: steps, pages: pages,
		promised: promised{pages: map[promise]bool{}},
	}
	c.register()
	return c
}

// After a loss of power before any operation of a script, what a write promised is there, nothing that is read is wrong, and the files never occupied
// more than the capacity.
func TestCrashBeforeEveryOperation(t *testing.T) {
	a := newArena(64, 32<<10)
	for seed := uint64(1); seed <= 2; seed++ {
		disk := twin.New(seed)
		c := newScript(t, seed, a, disk, [3]uint64{small, 20 << 10, 12 << 10}, 120, 30)
		outcomes := c.crashes(1)
		c.run(seed%2 == 0)
		c.close()
		disk.Hook(nil)
		if len(*outcomes) < 60 {
			t.Fatalf("seed %d: only %d operations changed the disk", seed, len(*outcomes))
		}
		for i := range *outcomes {
			c.recovered(t, &(*outcomes)[i])
		}
	}
}

// The same where the disk was full meanwhile: the index log ends in something that nobody knows, and another one takes its place.
func TestCrashBeforeEveryOperationAroundAFullDisk(t *testing.T) {
	a := newArena(64, 32<<10)
	for seed, rule := range []twin.Rule{
		{Operation: twin.Write, Name: format.IndexName, Moved: 300, Onward: true, Err: unix.ENOSPC},
		{Operation: twin.Sync, Name: format.IndexName, Onward: true, Err: unix.ENOSPC},
		{Operation: twin.Sync, Name: format.PayloadName, Onward: true, Err: unix.ENOSPC},
		{Operation: twin.Write, Name: format.PayloadName, Onward: true, Err: unix.ENOSPC},
	} {
		disk, now := twin.New(uint64(seed)), newClock()
		c := newScript(t, uint64(seed), a, disk, [3]uint64{small, 20 << 10, 12 << 10}, 60, 30, func(c *Config) { c.Now = now.read })
		outcomes := c.crashes(1)
		c.run(false)
		stopWriting(c.rig, c.spaces[2], c.pages+1, rule)
		c.store.Demanded(c.spaces[1].handle, 0, keyOf(1))
		c.promised.drop(3)
		c.store.DropNamespace(c.spaces[3].handle)
		c.spaces[3] = c.namespace(3, 2, c.sizes[2])
		disk.Heal()
		now.advance(retryEvery)
		c.resumed()
		c.run(seed%2 == 0)
		c.close()
		disk.Hook(nil)
		if len(*outcomes) < 60 {
			t.Fatalf("%v of %s: only %d operations changed the disk", rule.Operation, rule.Name, len(*outcomes))
		}
		for i := range *outcomes {
			c.recovered(t, &(*outcomes)[i])
		}
	}
}

// resumed waits until the first volume takes writes again.
func (r *rig) resumed() {
	v := r.store.volumes[0]
	v.checkRetry()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	for !v.on() {
		v.changed.Wait()
	}
}

// A store that loses its power again and again, always in the middle of replacing pages, keeps what it promised and did not evict.
func TestCrashAfterCrash(t *testing.T) {
	const cycles = 12
	a := newArena(64, 64<<10)
	disk := twin.New(5)
	evicted := uint64(0)
	for cycle := range uint64(cycles) {
		c := newScript(t, cycle, a, disk, [3]uint64{64 << 10, 40 << 10, 24 << 10}, 250, 200)
		for identity, s := range c.spaces {
			for number := range c.pages {
				if c.stored(s, number) && identity != 3 {
					c.promised.add(s, number)
				}
			}
		}
		outcomes := c.crashes(53)
		c.run(false)
		evicted += c.store.Stats().EvictionsTotal["probationary"]
		c.close()
		disk.Hook(nil)
		if most := disk.Peak(); most > capacity {
			t.Errorf("the files occupied %d bytes, the capacity is %d", most, capacity)
		}
		last := &(*outcomes)[c.draw.IntN(len(*outcomes))]
		c.recovered(t, last)
		disk = last.disk.Crash()
	}
	if evicted < 10*cycles {
		t.Errorf("only %d pages were evicted: the test replaced too few", evicted)
	}
}
