package ssd

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

func TestPagesComeBack(t *testing.T) {
	r := openRig(t, oneDisk(1), logged(t))
	a, b := r.namespace(1, 0, small), r.namespace(2, 0, 3*small)
	if !r.store.Wanted(a.handle, 0, keyOf(1)) || r.stored(a, 1) {
		t.Fatal("a page that nobody wrote is not wanted, or stored")
	}
	r.mustWrite(a, numbers(0, 20)...)
	r.mustWrite(b, numbers(0, 20)...)
	if r.store.Wanted(a.handle, 0, keyOf(1)) || !r.stored(a, 1) {
		t.Fatal("a page that was written is wanted, or not stored")
	}
	if r.store.Stored(a.handle, 1, keyOf(1)) {
		t.Error("a page of another group is stored")
	}
	r.mustRead(a, numbers(0, 20)...)
	r.mustRead(b, numbers(0, 20)...)
	if got := r.read(a, 20); got.Reason != "refused" {
		t.Errorf("a page that is not stored was read: %+v", got)
	}
	if got := r.write(a, 3); got.Reason != "refused" || r.store.Stats().WriteSkipsTotal[SkipResident] != 1 {
		t.Errorf("a stored page was written again: %+v", got)
	}
	r = r.again(logged(t))
	defer r.close()
	a, b = r.namespace(1, 0, small), r.namespace(2, 0, 3*small)
	r.mustRead(a, numbers(0, 20)...)
	r.mustRead(b, numbers(0, 20)...)
	if stats := r.store.Stats(); stats.RecoveredPages != 40 || len(stats.RecoveryProblems) != 0 {
		t.Errorf("%d pages were recovered with problems %v, want 40 and none", stats.RecoveredPages, stats.RecoveryProblems)
	}
	if other := r.namespace(3, 0, small); r.stored(other, 1) {
		t.Error("a namespace has the pages of another one")
	}
}

// The digest that a write and a read tell is that of the parts in their order.
func TestDigestsAgree(t *testing.T) {
	r := openRig(t, oneDisk(1))
	defer r.close()
	s := r.namespace(1, 0, small)
	wrote := r.write(s, 1)
	got := r.read(s, 1)
	if !wrote.OK || !got.OK || wrote.Digest != got.Digest || got.Digest == (Digest{}) {
		t.Errorf("written with %+v, read with %+v", wrote, got)
	}
}

func TestASecondStoreIsRefused(t *testing.T) {
	quietly(t, func(t *testing.T) {
		r := openRig(t, oneDisk(1))
		_, err := Open(configOf(r.arena, r.disks))
		if err == nil || !strings.Contains(err.Error(), "another process has the folder") {
			t.Errorf("the folder of an open store was opened: %v", err)
		}
		s := r.namespace(1, 0, small)
		r.mustWrite(s, 1)
		r.mustRead(s, 1)
		r.close()
	})
}

func TestForeignFoldersAreRefusedAndLeftAlone(t *testing.T) {
	for name, prepare := range map[string]func(*twin.Disk){
		"a payload without a superblock": func(d *twin.Disk) { put(t, d, format.PayloadName, []byte("somebody's"), false) },
		"an index without a superblock":  func(d *twin.Disk) { put(t, d, format.IndexName, []byte("somebody's"), false) },
		"a superblock of another kind":   func(d *twin.Disk) { put(t, d, format.SuperblockName, make([]byte, format.SuperblockBytes), false) },
		"a superblock of a newer version": func(d *twin.Disk) {
			block := make([]byte, format.SuperblockBytes)
			super := format.Superblock{Volume: [16]byte{1}, PayloadBytes: 1 << 20}
			super.Encode(block)
			put(t, d, format.SuperblockName, block, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := twin.New(1)
			prepare(disk)
			before := strings.Join(disk.Names(), " ")
			_, writes := disk.Count(twin.Write)
			_, err := Open(configOf(newArena(1, small), []*twin.Disk{disk}))
			if err == nil || !strings.Contains(err.Error(), "remove") {
				t.Errorf("the folder was not refused with a remedy: %v", err)
			}
			if _, after := disk.Count(twin.Write); after != writes {
				t.Errorf("%d bytes were written into the folder", after-writes)
			}
			if after := strings.Join(disk.Names(), " "); after != before {
				t.Errorf("the folder had %s and has %s", before, after)
			}
		})
	}
}

// A demanded page outlives pages that nobody demanded, however many come.
func TestDemandedPagesOutliveOthers(t *testing.T) {
	r := openRig(t, oneDisk(1))
	defer r.close()
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 20)...)
	for number := range 10 {
		if result := r.readAs(s, number, Demand); !result.OK {
			t.Fatal(result.Reason)
		}
	}
	r.store.Demanded(s.handle, 0, keyOf(10))
	r.mustRead(s, numbers(11, 20)...) // warm reads change nothing
	room := int(r.store.Stats().PayloadBytes / format.ExtentBytes(small))
	for number := 20; number < 20+3*room; number++ {
		r.mustWrite(s, number)
	}
	if got := r.count(s, 0, 11); got != 11 {
		t.Errorf("%d of 11 demanded pages are left", got)
	}
	if got := r.count(s, 11, 20); got != 0 {
		t.Errorf("%d of 9 older pages that nobody demanded are left", got)
	}
	r.mustRead(s, numbers(0, 11)...)
}

// Retained pages hold at most their part of the payload; the oldest of them fall back.
func TestRetainedPagesAreBounded(t *testing.T) {
	r := openRig(t, oneDisk(1))
	defer r.close()
	s := r.namespace(1, 0, small)
	room := int(r.store.Stats().PayloadBytes / format.ExtentBytes(small))
	for number := range 2 * room {
		r.mustWrite(s, number)
		r.store.Demanded(s.handle, 0, keyOf(number))
	}
	stats := r.store.Stats()
	if most := stats.PayloadBytes / 100 * retainedPercent / format.ExtentBytes(small); stats.Pages["retained"] > most || stats.Pages["retained"] < most-1 {
		t.Errorf("%d retained pages, at most %d fit their class", stats.Pages["retained"], most)
	}
	if stats.DemotedTotal == 0 || stats.Pages["probationary"] == 0 {
		t.Errorf("no page fell back: %+v", stats.Pages)
	}
}

// Recency and class outlive a restart: a full stop leaves them in the index log.
func TestOrderOutlivesARestart(t *testing.T) {
	r := openRig(t, oneDisk(1))
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 30)...)
	for _, number := range []int{7, 3, 5} {
		r.store.Demanded(s.handle, 0, keyOf(number))
	}
	r = r.again()
	s = r.namespace(1, 0, small)
	if got := r.store.Stats().Pages; got["retained"] != 3 || got["probationary"] != 27 {
		t.Fatalf("pages by class after a restart: %v", got)
	}
	var order []Key
	v := r.store.volumes[0]
	r.store.mu.Lock()
	for h, ok := v.index.Oldest(index.Retained); ok; h, ok = v.index.Newer(h) {
		page, _ := v.index.Page(h)
		order = append(order, page.Key)
	}
	r.store.mu.Unlock()
	if len(order) != 3 || order[0] != *keyOf(7) || order[1] != *keyOf(3) || order[2] != *keyOf(5) {
		t.Errorf("retained pages came back in another order")
	}
	r.close()
}

// put makes a file. newer raises the version of a superblock.
func put(t *testing.T, disk *twin.Disk, name string, content []byte, newer bool) {
	t.Helper()
	if newer {
		content = newerVersion(content)
	}
	file, err := disk.Open(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.WriteAt([][]byte{content}, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// newerVersion is a block of the next version, its checksum right.
func newerVersion(block []byte) []byte {
	block[8]++
	sum := len(block) - 4
	binary.LittleEndian.PutUint32(block[sum:], crc32.Checksum(block[:sum], crc32.MakeTable(crc32.Castagnoli)))
	return block
}
