package ssd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

const (
	damagedFolders = 600
	damagesMax     = 4 // of one folder
)

// sample is a volume with a past: pages that were evicted, dropped and cleared, two logs, and namespaces that are gone.
type sample struct {
	disk    *twin.Disk
	oldLog  []byte // as it was before the clear
	lastLog []byte
}

const (
	keptFrom, keptTo       = 100, 140 // numbers of pages that are stored
	clearedFrom, clearedTo = 0, 40
)

func newSample(t testing.TB, a *arena) *sample {
	t.Helper()
	s := &sample{disk: twin.New(5)}
	r := openRigIn(t, a, []*twin.Disk{s.disk})
	one, two := r.namespace(1, 0, small), r.namespace(2, 7, 2*small)
	r.mustWrite(one, numbers(clearedFrom, clearedTo)...)
	r.mustWrite(two, numbers(clearedFrom, clearedTo)...)
	r = r.again()
	s.oldLog = contentOf(t, s.disk, format.IndexName)
	r.store.Clear()
	one, gone := r.namespace(1, 0, small), r.namespace(3, 9, small)
	r.mustWrite(gone, numbers(keptFrom, keptTo)...)
	r.mustWrite(one, numbers(keptFrom, keptTo)...)
	r = r.again() // a snapshot, then records behind it
	one, two, gone = r.namespace(1, 0, small), r.namespace(2, 7, 2*small), r.namespace(3, 9, small)
	r.mustWrite(two, numbers(keptFrom, keptTo)...)
	r.store.DropNamespace(gone.handle)
	r.mustWrite(one, numbers(keptTo, keptTo+10)...)
	s.disk = s.disk.Crash() // no snapshot at the end
	s.lastLog = contentOf(t, s.disk, format.IndexName)
	r.close()
	return s
}

func contentOf(t testing.TB, disk *twin.Disk, name string) []byte {
	t.Helper()
	file, err := disk.Open(name, vfs.Buffered)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size, err := file.Size()
	content := make([]byte, size)
	if err == nil {
		err = file.ReadAt([][]byte{content}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// damage is one thing that happened to a folder, in words.
func (s *sample) damage(t testing.TB, disk *twin.Disk, draw *rand.Rand) string {
	t.Helper()
	names := []string{format.IndexName, format.IndexName, format.IndexName, format.PayloadName, format.SuperblockName}
	name := names[draw.IntN(len(names))]
	exists, err := disk.Exists(name)
	if err != nil || !exists {
		return "nothing"
	}
	file, err := disk.Open(name, vfs.Buffered)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size, _ := file.Size()
	if size = min(size, 4<<20); size == 0 { // where the pages are
		return "nothing"
	}
	at := draw.Int64N(size)
	block := make([]byte, min(512<<draw.IntN(4), size))
	put := func(content []byte, offset int64) {
		if err := file.WriteAt([][]byte{content}, offset); err != nil {
			t.Fatal(err)
		}
	}
	switch draw.IntN(8) {
	case 0:
		disk.Damage(name, at, 1+draw.Int64N(min(16, size-at)))
		return fmt.Sprintf("%s flipped at %d", name, at)
	case 1:
		put(block, min(at, size-int64(len(block))))
		return fmt.Sprintf("%s zeroed at %d", name, at)
	case 2: // a write that went to another place
		from := draw.Int64N(size-int64(len(block))+1) / format.RecordBytes * format.RecordBytes
		if err := file.ReadAt([][]byte{block}, from); err != nil {
			t.Fatal(err)
		}
		to := min(at/format.RecordBytes*format.RecordBytes, size-int64(len(block)))
		put(block, to)
		return fmt.Sprintf("%s: %d bytes of %d at %d", name, len(block), from, to)
	case 3:
		for i := range block {
			block[i] = byte(draw.Uint32())
		}
		put(block, min(at, size-int64(len(block))))
		return fmt.Sprintf("%s overwritten at %d", name, at)
	case 4:
		if err := file.Truncate(at); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s cut at %d", name, at)
	case 5:
		if err := disk.Remove(name); err != nil {
			t.Fatal(err)
		}
		return name + " removed"
	case 6:
		if name == format.IndexName {
			put(s.oldLog, 0)
			return "an old log over the index"
		}
	case 7:
		if name == format.IndexName {
			put(s.lastLog[:draw.IntN(len(s.lastLog))], 0)
			return "a part of the log over itself"
		}
	}
	return "nothing"
}

func TestDamagedFolders(t *testing.T) {
	a := newArena(64, 2*small)
	s := newSample(t, a)
	opened, found := 0, 0
	for seed := range uint64(damagedFolders) {
		pages, ok := s.trial(t, a, seed)
		if found += pages; ok {
			opened++
		}
	}
	if opened < damagedFolders/2 || found < opened*20 {
		t.Errorf("of %d damaged folders %d opened, with %d pages in all: that proves little", damagedFolders, opened, found)
	}
}

// trial damages a folder. Whatever happened to the files of a volume, it opens or says why not; what is read is what was written; what was cleared stays
// so, though the log is an old one or made anew; and what is written then is there. It returns how many pages were read, and whether the folder opened.
func (s *sample) trial(t testing.TB, a *arena, seed uint64) (found int, opened bool) {
	draw := rand.New(rand.NewPCG(seed, 3))
	disk := s.disk.Crash()
	var story []string
	for range 1 + draw.IntN(damagesMax) {
		story = append(story, s.damage(t, disk, draw))
	}
	if draw.IntN(6) == 0 {
		_, _, err := RebuildIndex(context.Background(), disk, func(_, _ uint64) {})
		story = append(story, fmt.Sprint("repaired: ", err))
	}
	store, err := Open(configOf(a, []*twin.Disk{disk}))
	if err != nil {
		if !slices.ContainsFunc(story, func(what string) bool { return strings.HasPrefix(what, format.SuperblockName) }) {
			t.Fatalf("seed %d: %v: %v", seed, story, err)
		}
		return 0, false
	}
	found = s.checkDamaged(t, &rig{t: t, store: store, arena: a, disks: []*twin.Disk{disk}})
	if t.Failed() {
		t.Fatalf("seed %d: %v", seed, story)
	}
	return found, true
}

func (s *sample) checkDamaged(t testing.TB, r *rig) (found int) {
	t.Helper()
	if err := r.store.Check(); err != nil {
		t.Error(err)
	}
	one, two := r.namespace(1, 0, small), r.namespace(2, 7, 2*small)
	for _, of := range []space{one, two} {
		for number := clearedFrom; number < clearedTo; number++ {
			if r.read(of, number).OK {
				t.Errorf("page %d of namespace %d was cleared and is back", number, of.identity)
			}
		}
		for number := keptFrom; number < keptTo; number++ {
			if r.read(of, number).OK {
				found++
			}
		}
	}
	r.mustWrite(one, numbers(200, 220)...)
	r.mustRead(one, numbers(200, 220)...)
	r = r.again()
	if problems := r.store.Stats().RecoveryProblems; len(problems) > 0 {
		t.Errorf("problems come again: %v", problems)
	}
	r.mustRead(r.namespace(1, 0, small), numbers(200, 220)...)
	r.close()
	return found
}
