package journal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

const (
	pageBytes    = 3 * format.Granule
	extentBytes  = pageBytes + format.PageHeaderBytes
	payloadPages = 64
	epochStep    = 7
)

var (
	volume = [16]byte{'v', 'o', 'l', 'u', 'm', 'e'}
	limits = Limits{PayloadBytes: format.ScratchBytes + payloadPages*extentBytes}
)

func at(place int) uint64 { return format.ScratchBytes + uint64(place)*extentBytes }

// namespaceOf is a namespace whose every field follows from a number.
func namespaceOf(number uint64) Namespace {
	n := Namespace{Number: uint32(number), Epoch: number * epochStep, PageBytes: pageBytes}
	binary.LittleEndian.PutUint64(n.Identity[:], number*0xD6E8FEB86659FD93)
	return n
}

// pageOf is a page whose every field follows from its number.
func pageOf(j *Journal, namespace uint32, number, place int) Put {
	p := Put{
		Namespace: namespace, Group: uint16(number % 3), Offset: at(place), Bytes: pageBytes, Retained: number%2 == 1,
		Sequence: j.NextSequence(),
	}
	binary.LittleEndian.PutUint64(p.Key[:], uint64(number))
	binary.LittleEndian.PutUint64(p.Digest[:], uint64(number)*0x9E3779B97F4A7C15)
	return p
}

func open(t testing.TB, fs vfs.FS) (*Journal, State) {
	t.Helper()
	return openCleared(t, fs, 0)
}

// openCleared opens a volume whose superblock says so.
func openCleared(t testing.TB, fs vfs.FS, cleared uint64) (*Journal, State) {
	t.Helper()
	j, state, err := Open(fs, volume, Limits{limits.PayloadBytes, cleared})
	if err != nil {
		t.Fatal(err)
	}
	return j, state
}

func commit(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Commit(); err != nil {
		t.Fatal(err)
	}
}

// reopened is what a volume holds after a clean stop.
func reopened(t testing.TB, fs vfs.FS, j *Journal) (*Journal, State) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, fs)
}

func wantPuts(t testing.TB, state State, want ...Put) {
	t.Helper()
	if len(want) != len(state.Puts) || len(want) > 0 && !reflect.DeepEqual(state.Puts, want) {
		t.Fatalf("pages %+v\nwant  %+v", state.Puts, want)
	}
}

func wantProblems(t testing.TB, state State, want map[string]uint64) {
	t.Helper()
	if len(want) != len(state.Problems) || len(want) > 0 && !reflect.DeepEqual(state.Problems, want) {
		t.Fatalf("problems %v, want %v", state.Problems, want)
	}
	for reason := range state.Problems {
		if !slices.Contains(Reasons, reason) {
			t.Fatalf("reason %s is not among %v", reason, Reasons)
		}
	}
}

func TestWhatWasCommittedIsThereAndWhatWasDroppedIsNot(t *testing.T) {
	fs := twin.New(1)
	j, state := open(t, fs)
	wantPuts(t, state)
	j.Namespace(namespaceOf(1))
	j.Namespace(namespaceOf(2))
	a, b, c := pageOf(j, 1, 1, 0), pageOf(j, 2, 2, 1), pageOf(j, 1, 3, 2)
	j.Put(a)
	j.Put(b)
	commit(t, j)
	j.Put(c)
	j.Drop(a.Offset)
	commit(t, j)
	j.Put(pageOf(j, 1, 4, 3))
	j, state = reopened(t, fs, j)
	wantPuts(t, state, b, c)
	wantProblems(t, state, nil)
	if want := []Namespace{namespaceOf(1), namespaceOf(2)}; !reflect.DeepEqual(state.Namespaces, want) {
		t.Fatalf("namespaces %+v, want %+v", state.Namespaces, want)
	}

	j.DropNamespace(2)
	j.Namespace(namespaceOf(2))
	commit(t, j)
	j, state = reopened(t, fs, j)
	wantPuts(t, state, c)

	j.Clear()
	d := pageOf(j, 2, 5, 0)
	j.Put(d)
	commit(t, j)
	j, state = reopened(t, fs, j)
	wantPuts(t, state, d)
	if len(state.Namespaces) != 2 || j.Records() != 3 {
		t.Fatalf("%d namespaces in %d records, want 2 in 3", len(state.Namespaces), j.Records())
	}
}

func TestSequencesNeverComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := twin.New(1)
		highest := uint64(0)
		for i := range 8 {
			j, _ := open(t, fs)
			for range 3 {
				next := j.NextSequence()
				if next <= highest {
					t.Fatalf("start %d: sequence %d came after %d", i, next, highest)
				}
				highest = next
			}
			var err error
			switch i {
			case 0:
				j.Namespace(namespaceOf(1))
				j.Put(pageOf(j, 1, 1, 1))
				highest++
			case 1:
				j.Clear()
			case 2:
				err = j.Compact(slices.Values([]Put(nil)))
			case 3:
				err = fs.Remove(format.IndexName)
			case 4:
				fs.Damage(format.IndexName, 0, 1)
			}
			if err := errors.Join(err, j.Commit(), j.Close()); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
	})
}

func TestSequencesGrowWithAClockThatWentBack(t *testing.T) {
	fs := twin.New(1)
	j, _ := open(t, fs)
	j.Namespace(namespaceOf(1))
	first := pageOf(j, 1, 1, 1)
	j.Put(first)
	commit(t, j)
	synctest.Test(t, func(t *testing.T) { // it is the year 2000
		j, _ = reopened(t, fs, j)
		j.Drop(first.Offset)
		j.Clear()
		commit(t, j)
		j, _ = reopened(t, fs, j)
		if next := j.NextSequence(); next < first.Sequence+2*sequenceGap {
			t.Fatalf("sequence %d came two starts after %d", next, first.Sequence)
		}
	})
}

// TestAFaultBreaksTheJournalForGood fails each operation of a commit and of a new log, for once: what came later would stand on what nobody knows.
func TestAFaultBreaksTheJournalForGood(t *testing.T) {
	appends := func(j *Journal) error { return j.Commit() }
	compacts := func(j *Journal) error { return j.Compact(slices.Values([]Put(nil))) }
	clears := func(j *Journal) error {
		j.Clear()
		return j.Commit()
	}
	floods := func(j *Journal) error {
		for range PendingMax {
			j.Drop(at(0))
		}
		return j.Commit()
	}
	for name, test := range map[string]struct {
		act  func(*Journal) error
		rule twin.Rule
	}{
		"append: write":    {appends, twin.Rule{Operation: twin.Write, Err: unix.ENOSPC}},
		"append: short":    {appends, twin.Rule{Operation: twin.Write, Moved: 50}},
		"append: sync":     {appends, twin.Rule{Operation: twin.Sync, Err: unix.EIO}},
		"compact: remove":  {compacts, twin.Rule{Operation: twin.Remove, Err: unix.EROFS}},
		"compact: open":    {compacts, twin.Rule{Operation: twin.Open, Err: unix.EMFILE}},
		"compact: write":   {compacts, twin.Rule{Operation: twin.Write, Err: unix.ENOSPC}},
		"compact: header":  {compacts, twin.Rule{Operation: twin.Write, Nth: 2, Err: unix.EIO}},
		"compact: sync":    {compacts, twin.Rule{Operation: twin.Sync, Err: unix.EIO}},
		"compact: rename":  {compacts, twin.Rule{Operation: twin.Rename, Err: unix.EIO}},
		"compact: folder":  {compacts, twin.Rule{Operation: twin.SyncFolder, Err: unix.EIO}},
		"clear: rename":    {clears, twin.Rule{Operation: twin.Rename, Err: unix.EIO}},
		"too many records": {floods, twin.Rule{Operation: twin.FreeBytes}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := twin.New(1)
			j, _ := open(t, fs)
			j.Namespace(namespaceOf(1))
			commit(t, j)
			fs.Fail(test.rule)
			j.Put(pageOf(j, 1, 1, 0))
			first := test.act(j)
			if first == nil {
				t.Fatal("it ended well")
			}
			if err := j.Commit(); err == nil || err.Error() != first.Error() {
				t.Fatalf("a commit after %v ended with %v", first, err)
			}
			if err := j.Compact(slices.Values([]Put(nil))); err == nil {
				t.Fatal("a broken journal made a new log")
			}
			_, state := reopened(t, fs, j)
			if len(state.Namespaces) != 1 {
				t.Fatalf("namespaces %v, want the one that was committed before", state.Namespaces)
			}
		})
	}
}

// TestTheIndexNeverPassesItsBound replaces pages for so long that the log is made anew many times over.
func TestTheIndexNeverPassesItsBound(t *testing.T) {
	fs := twin.New(1)
	j, _ := open(t, fs)
	j.Namespace(namespaceOf(1))
	commit(t, j)
	var live [payloadPages]Put
	for i := range live {
		live[i] = pageOf(j, 1, i, i)
		j.Put(live[i])
	}
	compactions := 0
	for round := range 12 {
		for i := range PendingMax/2 - payloadPages {
			p := &live[i%payloadPages]
			j.Drop(p.Offset)
			p.Sequence = j.NextSequence()
			j.Put(*p)
		}
		commit(t, j)
		if j.Due(len(live)) {
			compactions++
			if err := j.Compact(slices.Values(live[:])); err != nil {
				t.Fatal(err)
			}
		}
		if bound := BytesMax(payloadPages, 1); uint64(fs.Peak()) > bound {
			t.Fatalf("round %d: %d bytes on disk, the bound is %d", round, fs.Peak(), bound)
		}
	}
	if compactions < 3 {
		t.Fatalf("%d compactions", compactions)
	}
	_, state := reopened(t, fs, j)
	if len(state.Puts) != payloadPages || len(state.Problems) > 0 {
		t.Fatalf("%d pages, problems %v", len(state.Puts), state.Problems)
	}
}

func TestACompactionIsDueByWhatIsAlive(t *testing.T) {
	for _, live := range []int{0, 1, 1_000_000} {
		j := &Journal{namespaces: newTable([]Namespace{namespaceOf(1), namespaceOf(2)}), records: 2*(uint64(live)+2) + compactionSlack}
		if j.Due(live) {
			t.Errorf("with %d pages and %d records", live, j.Records())
		}
		if j.records++; !j.Due(live) {
			t.Errorf("not with %d pages and %d records", live, j.Records())
		}
	}
}

func TestAPageWhoseNamespaceWasDroppedIsNotRecorded(t *testing.T) {
	fs := twin.New(1)
	j, _ := open(t, fs)
	j.Namespace(namespaceOf(1))
	commit(t, j)
	late := pageOf(j, 1, 1, 0)
	j.Clear()
	j.Put(late)
	commit(t, j)
	late = pageOf(j, 1, 2, 1)
	j.DropNamespace(1)
	j.Put(late)
	commit(t, j)
	_, state := reopened(t, fs, j)
	wantPuts(t, state)
	wantProblems(t, state, nil)
}

// seal gives bytes that were changed on purpose the checksum that they need to be looked at.
func seal(b []byte) {
	end := len(b) - 4
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], crc32.MakeTable(crc32.Castagnoli)))
}

// A journal that a failed commit broke is whole again when a new log is written, which owes nothing to what the old one holds; a full disk keeps no
// part of one that could not be.
func TestAFailedJournalIsRenewed(t *testing.T) {
	fs := twin.New(1)
	j, _ := open(t, fs)
	j.Namespace(namespaceOf(1))
	kept, failed, next := pageOf(j, 1, 1, 0), pageOf(j, 1, 2, 1), pageOf(j, 1, 3, 2)
	j.Put(kept)
	commit(t, j)
	fs.Fail(twin.Rule{Operation: twin.Sync, Name: format.IndexName, Err: unix.EIO})
	j.Put(failed)
	if err := j.Commit(); !errors.Is(err, unix.EIO) {
		t.Fatalf("a commit whose barrier failed ended with %v", err)
	}
	fs.Fail(twin.Rule{Operation: twin.Write, Name: format.IndexNewName, Moved: 100, Err: unix.ENOSPC})
	if err := j.Renew(slices.Values([]Put{kept})); !errors.Is(err, unix.ENOSPC) || slices.Contains(fs.Names(), format.IndexNewName) {
		t.Fatalf("on a full disk: %v, and the folder has %v", err, fs.Names())
	}
	if err := j.Commit(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a commit to a journal that is broken ended with %v", err)
	}
	if err := j.Renew(slices.Values([]Put{kept})); err != nil {
		t.Fatal(err)
	}
	j.Put(next)
	commit(t, j)
	for range 8 {
		_, state := open(t, fs.Crash())
		wantPuts(t, state, kept, next)
		wantProblems(t, state, nil)
	}
}
