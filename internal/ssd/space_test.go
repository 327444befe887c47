package ssd

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs/twin"
)

// watch checks at every operation on a disk that its files occupy no more than the capacity.
func watch(t *testing.T, disk *twin.Disk) {
	disk.Hook(func(e twin.Event) {
		if used := disk.Used(); used > capacity {
			t.Errorf("before %v of %s the files occupy %d bytes, the capacity is %d", e.Operation, e.Name, used, capacity)
		}
	})
}

// Pages of many sizes come and go until the payload was written many times over: each write finds room in the end, every byte is accounted for, and the
// files never occupy more than the capacity.
func TestPagesOfManySizes(t *testing.T) {
	for seed := uint64(1); seed <= 2; seed++ {
		disk := twin.New(seed)
		watch(t, disk)
		r := openRig(t, []*twin.Disk{disk})
		draw := rand.New(rand.NewPCG(seed, 2))
		var spaces []space
		for i, bytes := range []uint64{4 << 10, 8 << 10, 20 << 10, 36 << 10, 64 << 10} {
			spaces = append(spaces, r.namespace(byte(i+1), 0, bytes))
		}
		var ends []<-chan WriteResult
		written, refused := uint64(0), 0
		for written < 4*r.store.Stats().PayloadBytes {
			s := spaces[draw.IntN(len(spaces))]
			number := draw.IntN(400)
			if ended := r.begin(s, 0, number); ended != nil {
				ends = append(ends, ended)
				written += s.bytes
			}
			if draw.IntN(3) == 0 {
				r.readAs(s, draw.IntN(400), Priority(draw.IntN(int(priorities))))
			}
			if len(ends) == 16 {
				for _, ended := range ends {
					if !(<-ended).OK {
						refused++
					}
				}
				ends = nil
				if err := r.store.Check(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, ended := range ends {
			<-ended
		}
		stats := r.store.Stats()
		if total := stats.WritePagesTotal; uint64(refused) > total/10 {
			t.Errorf("seed %d: %d pages found no room, %d did", seed, refused, total)
		}
		if stats.UsedBytes < stats.PayloadBytes/2 {
			t.Errorf("seed %d: %d of %d bytes are in use after many evictions", seed, stats.UsedBytes, stats.PayloadBytes)
		}
		before := stats.Pages
		r = r.again()
		if after := r.store.Stats(); after.RecoveredPages != before["retained"]+before["probationary"] || len(after.RecoveryProblems) != 0 {
			t.Errorf("seed %d: %d pages came back of %v, problems %v", seed, after.RecoveredPages, before, after.RecoveryProblems)
		}
		r.close()
		if peak := disk.Peak(); peak > capacity {
			t.Errorf("seed %d: the files occupied %d bytes at their peak", seed, peak)
		}
	}
}

// One page as large as the payload drives out all others, and the next small one drives out that.
func TestAPageAsLargeAsThePayload(t *testing.T) {
	r := openRig(t, oneDisk(1))
	payload := r.store.Stats().PayloadBytes
	largest := (payload - format.ScratchBytes - format.PageHeaderBytes)
	r.arena = newArena(4, largest+format.Granule)
	r.store.config.Memory = r.arena.bytes
	s, huge, tooLarge := r.namespace(1, 0, small), r.namespace(2, 0, largest), r.namespace(3, 0, largest+format.Granule)
	for number := range 100 {
		r.mustWrite(s, number)
	}
	for range 2 * int(payload/format.ExtentBytes(small)) {
		if result := r.write(huge, 0); result.OK {
			break
		}
	}
	if !r.stored(huge, 0) || r.count(s, 0, 100) != 0 {
		t.Errorf("a page as large as the payload is stored: %v, beside %d others", r.stored(huge, 0), r.count(s, 0, 100))
	}
	if r.begin(tooLarge, 0, 0) != nil || r.store.Stats().WriteSkipsTotal[SkipTooLarge] != 1 {
		t.Error("a page larger than the payload was taken")
	}
	r.mustWrite(s, 1)
	r.mustRead(s, 1)
	r.close()
}

// The capacity may change between two starts. A smaller one loses the pages behind the new end and no others, and what stays keeps to it.
func TestTheCapacityMayChange(t *testing.T) {
	disk := twin.New(1)
	large := func(c *Config) { c.CapacityBytes = 2 * capacity }
	r := openRig(t, []*twin.Disk{disk}, large)
	s := r.namespace(1, 0, small)
	room := 2 * capacity / pageShareBytes // of the index log, which has less of it than the payload here
	for number := range room {
		r.mustWrite(s, number)
	}
	r = r.again()
	s = r.namespace(1, 0, small)
	if used := disk.Used(); used > capacity {
		t.Errorf("the files occupy %d bytes of a capacity that was lowered to %d", used, capacity)
	}
	left := r.count(s, 0, room)
	if stats := r.store.Stats(); left == 0 || uint64(left) > stats.PayloadBytes/format.ExtentBytes(small) || uint64(left) != stats.RecoveredPages {
		t.Errorf("%d pages are left, %d were recovered", left, stats.RecoveredPages)
	}
	for number := range room {
		if r.stored(s, number) {
			r.mustRead(s, number)
		}
	}
	r = r.again(large)
	s = r.namespace(1, 0, small)
	if got := r.count(s, 0, room); got != left {
		t.Errorf("%d pages are left after the capacity was raised, %d were there", got, left)
	}
	for number := room; number < 2*room; number++ {
		r.mustWrite(s, number)
	}
	if got := int(r.store.Stats().Pages["probationary"]); got != room {
		t.Errorf("%d pages fit into the larger volume, want %d", got, room)
	}
	r.close()
	// Without a capacity a volume is taken as it is.
	r = openRig(t, []*twin.Disk{disk}, func(c *Config) { c.CapacityBytes = 0 })
	if found, err := r.store.Verify(t.Context(), 0, func(p Problem) { t.Error(p) }, func(VerifyReport) {}); err != nil || found.Pages == 0 {
		t.Errorf("%+v, %v", found, err)
	}
	r.close()
	if _, err := Open(Config{Volumes: []VolumeConfig{{FS: twin.New(2)}}, Memory: r.arena.bytes}); err == nil {
		t.Error("a volume was made without a capacity")
	}
}

// A large volume may become a small one: what its index log held beyond the new capacity is gone when the store is open.
func TestALargeVolumeBecomesSmall(t *testing.T) {
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk}, func(c *Config) { c.CapacityBytes = 6 << 30 })
	r.logPages(150_000, 4<<10)
	r = openRigIn(t, r.arena, r.disks)
	if used := disk.Used(); used > capacity {
		t.Errorf("the files occupy %d bytes of a capacity that was lowered to %d", used, capacity)
	}
	if got, most := r.store.Stats().Pages["probationary"], uint64(capacity/pageShareBytes); got != most {
		t.Errorf("%d pages are left, the index log has room for %d", got, most)
	}
	s := r.namespace(1, 0, 4<<10)
	for number := 200_000; number < 202_000; number++ {
		r.mustWrite(s, number)
	}
	r.close()
}

// Pages of an epoch that nobody registered after a restart go first when space is short; those of one that was registered stay as long as any.
func TestPagesOfForgottenEpochsGoFirst(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	forgotten, kept, shared := r.namespace(1, 9, small), r.namespace(2, 9, small), r.namespace(3, 0, small)
	r.mustWrite(shared, numbers(0, 30)...) // used longest ago
	r.mustWrite(kept, numbers(0, 30)...)
	r.mustWrite(forgotten, numbers(0, 30)...)
	r = r.again()
	kept = r.namespace(2, 9, small)
	if got := r.store.Stats().Pages["reclaimable"]; got != 60 {
		t.Errorf("%d pages of epochs are reclaimable after a restart, want 60", got)
	}
	shared = r.namespace(4, 0, small)
	for number := 0; r.store.Stats().EvictionsTotal["reclaimable"] < 30; number++ {
		r.mustWrite(shared, number)
	}
	if stats := r.store.Stats(); stats.EvictionsTotal["probationary"] != 0 || stats.Pages["reclaimable"] > 30 {
		t.Errorf("evictions by class %v, pages %v", stats.EvictionsTotal, stats.Pages)
	}
	if got := r.count(kept, 0, 30); got != 30 {
		t.Errorf("%d of 30 pages of an epoch that came back are left", got)
	}
	if got := r.count(r.namespace(3, 0, small), 0, 30); got != 30 {
		t.Errorf("%d of 30 pages without an epoch are left", got)
	}
	if got := r.count(r.namespace(1, 9, small), 0, 30); got != 0 {
		t.Errorf("%d pages of a forgotten epoch are left", got)
	}
	r.close()
}

// After a day nobody comes back for an epoch: it is dropped, on disk too.
func TestForgottenEpochsAreDropped(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	r.mustWrite(r.namespace(1, 9, small), numbers(0, 10)...)
	r.mustWrite(r.namespace(2, 0, small), numbers(0, 10)...)
	c := newClock()
	r = r.again(func(config *Config) { config.Now = c.read })
	c.advance(unclaimedFor - time.Second)
	r.store.dropAbandoned()
	if got := r.store.Stats().Namespaces; got != 2 {
		t.Errorf("%d namespaces before the time is over", got)
	}
	c.advance(time.Second)
	r.store.dropAbandoned()
	if got := r.store.Stats().Namespaces; got != 1 {
		t.Errorf("%d namespaces when the time is over", got)
	}
	r = r.again()
	if got := r.store.Stats().RecoveredPages; got != 10 {
		t.Errorf("%d pages came back, want 10", got)
	}
	r.close()
}

// The table of namespaces is bounded: those of earlier runs make room, registered ones do not.
func TestNamespacesAreBounded(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	r.mustWrite(r.namespace(1, 0, small), 1)
	r = r.again()
	names := func(i int) (identity [32]byte) {
		identity[0], identity[1], identity[31] = byte(i), byte(i>>8), 1
		return identity
	}
	for i := range NamespacesMax {
		if r.store.Namespace(names(i), 0, small) == 0 {
			t.Fatalf("namespace %d was refused", i)
		}
	}
	if r.store.Namespace(names(NamespacesMax), 0, small) != 0 || r.store.Stats().NamespacesRefusedTotal != 1 {
		t.Error("a full table took a namespace")
	}
	if r.store.Stored(0, 0, keyOf(1)) || r.store.Wanted(0, 0, keyOf(1)) {
		t.Error("a namespace that was refused has or wants pages")
	}
	r.store.DropNamespace(r.store.Namespace(names(5), 0, small))
	if r.store.Namespace(names(NamespacesMax), 0, small) == 0 {
		t.Error("a namespace was refused although another one was dropped")
	}
	s := space{r.store.Namespace(names(7), 0, small), 0, small}
	r.mustWrite(s, 3)
	r.store.ReleaseNamespace(s.handle)
	if !r.stored(s, 3) || r.store.Namespace(names(7), 0, small) != s.handle {
		t.Error("a namespace that was released lost its pages")
	}
	r.store.ReleaseNamespace(s.handle)
	if r.store.Namespace(names(NamespacesMax+1), 0, small) == 0 || r.stored(s, 3) {
		t.Error("a namespace that nobody uses made no room")
	}
	r.close()
}

// An index log with more namespaces than there may be loses those that were made first, for good.
func TestFoundNamespacesAreBounded(t *testing.T) {
	const more = 100
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk})
	s := r.namespace(1, 0, small)
	r.mustWrite(s, 1)
	v := r.store.volumes[0]
	r.close()
	log, state, err := journal.Open(disk, v.id, v.limits())
	if err != nil {
		t.Fatal(err)
	}
	log.DropNamespace(1) // so that the one with a page is the last
	for i := range NamespacesMax + more {
		log.Namespace(journal.Namespace{Number: uint32(2 + i), Identity: [32]byte{byte(i), byte(i >> 8), 9}, PageBytes: small})
	}
	last := state.Namespaces[0]
	last.Number = NamespacesMax + more + 2
	log.Namespace(last)
	put := state.Puts[0]
	put.Namespace = last.Number
	log.Put(put)
	if err := errors.Join(log.Commit(), log.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r = openRig(t, []*twin.Disk{disk})
		r.mustRead(r.namespace(1, 0, small), 1)
		if got := r.store.Stats().Namespaces; got != NamespacesMax {
			t.Errorf("%d namespaces, want %d", got, NamespacesMax)
		}
		r.mustWrite(r.namespace(1, 0, small), 2)
		r.close()
		if _, state, err = journal.Open(disk, v.id, v.limits()); err != nil || len(state.Namespaces) != NamespacesMax {
			t.Errorf("%d namespaces are left in the index, %v", len(state.Namespaces), err)
		}
		r = openRig(t, []*twin.Disk{disk})
		r.store.Drop(r.namespace(1, 0, small).handle, 0, keyOf(2))
		r.close()
	}
}

// Volumes fill evenly, and a page is on one of them.
func TestVolumesFillEvenly(t *testing.T) {
	r := openRig(t, []*twin.Disk{twin.New(1), twin.New(2), twin.New(3)})
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 48)...)
	for i, status := range r.store.Status() {
		if status.Pages < 14 || status.Pages > 18 {
			t.Errorf("volume %d has %d of 48 pages", i, status.Pages)
		}
	}
	r = r.again()
	r.mustRead(r.namespace(1, 0, small), numbers(0, 48)...)
	r.close()
}

// What 64 goroutines do to one store at a time: every read brings the right bytes, and in the end everything adds up.
func TestManyAtATime(t *testing.T) {
	disk := twin.New(1)
	watch(t, disk)
	r := openRig(t, []*twin.Disk{disk}, func(c *Config) { c.ScrubBytesPerSecond = 1 << 40 })
	var all sync.WaitGroup
	for worker := range uint64(64) {
		all.Go(func() {
			draw := rand.New(rand.NewPCG(worker, 3))
			for range 60 {
				identity := byte(1 + draw.IntN(4))
				s := r.namespace(identity, uint64(identity/4), uint64(identity)*small)
				number := draw.IntN(200)
				switch draw.IntN(16) {
				case 0:
					r.store.Demanded(s.handle, 0, keyOf(number))
				case 1:
					if identity == 4 {
						r.store.DropNamespace(s.handle)
					}
				case 2:
					if draw.IntN(16) == 0 {
						r.store.Clear()
					}
					r.store.Stats()
				case 3, 4, 5, 6, 7:
					r.write(s, number)
				default:
					r.readAs(s, number, Priority(draw.IntN(int(priorities))))
				}
			}
		})
	}
	all.Wait()
	stats := r.store.Stats()
	if stats.WriteHeldBytes != 0 || stats.ReadQueueBytes != 0 || stats.WriteInflight+stats.ReadInflight != 0 {
		t.Errorf("something is under way at the end: %+v", stats)
	}
	if len(stats.ReadFailuresTotal) > 1 || stats.ReadPagesTotal == 0 || stats.WritePagesTotal == 0 {
		t.Errorf("%d reads, %d writes, failures %v", stats.ReadPagesTotal, stats.WritePagesTotal, stats.ReadFailuresTotal)
	}
	r = r.again()
	for identity := byte(1); identity < 4; identity++ {
		s := r.namespace(identity, 0, uint64(identity)*small)
		for number := range 200 {
			if r.stored(s, number) {
				r.mustRead(s, number)
			}
		}
	}
	r.close()
}
