package journal

import (
	"encoding/binary"
	"hash/crc32"
	"reflect"
	"slices"
	"testing"

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
	j, state, err := Open(fs, volume, limits)
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
	fs := twin.New(1)
	j, _ := open(t, fs)
	highest := uint64(0)
	for i := range 5 {
		for range 3 {
			next := j.NextSequence()
			if next <= highest {
				t.Fatalf("sequence %d came after %d", next, highest)
			}
			highest = next
		}
		if i == 2 {
			j.Clear()
		} else if err := j.Compact(slices.Values([]Put(nil))); err != nil {
			t.Fatal(err)
		}
		commit(t, j)
		j, _ = reopened(t, fs, j)
	}
}

func TestAFaultBreaksTheJournalForGood(t *testing.T) {
	for _, op := range []twin.Operation{twin.Write, twin.Sync} {
		t.Run(op.String(), func(t *testing.T) {
			fs := twin.New(1)
			j, _ := open(t, fs)
			j.Namespace(namespaceOf(1))
			commit(t, j)
			fs.Fail(twin.Rule{Operation: op, Onward: true})
			j.Put(pageOf(j, 1, 1, 0))
			first := j.Commit()
			if first == nil {
				t.Fatal("a commit over a device that fails ended well")
			}
			if err := j.Commit(); err == nil || err.Error() != first.Error() {
				t.Fatalf("a commit after %v ended with %v", first, err)
			}
			if err := j.Compact(slices.Values([]Put(nil))); err == nil {
				t.Fatal("a broken journal made a new log")
			}
		})
	}
}

// seal gives bytes that were changed on purpose the checksum that they need to be looked at.
func seal(b []byte) {
	end := len(b) - 4
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], crc32.MakeTable(crc32.Castagnoli)))
}
