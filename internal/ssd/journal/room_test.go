package journal

import (
	"fmt"
	"testing"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// drops are committed as so many records that mean nothing.
func drops(t *testing.T, j *Journal, count int) {
	t.Helper()
	for i := range count {
		j.Drop(at(i))
	}
	commit(t, j)
}

// A commit writes over zeros that are on the device: its file grows seldom, by what it holds and roomRecordsMax at most, in the write of the commit itself.
func TestACommitSeldomGrowsTheLog(t *testing.T) {
	const perCommit = 1000
	fs := twin.New(1)
	j, _ := open(t, fs)
	var end int64 // of the latest write of the log
	fs.Hook(func(e twin.Event) {
		if e.Operation == twin.Write {
			end = e.Offset + e.Bytes
		}
	})
	growths, size := 0, j.Bytes()
	for n := range uint64(60) {
		drops(t, j, perCommit)
		records := (n + 1) * perCommit
		if j.Records() != records {
			t.Fatalf("%d records, want %d", j.Records(), records)
		}
		if end <= size {
			if j.Bytes() != size || end != logBytes(records) {
				t.Fatalf("commit %d wrote up to %d of %d bytes and the log has %d", n, end, size, j.Bytes())
			}
			continue
		}
		growths++
		if want := logBytes(records + min(records, roomRecordsMax)); end != want || j.Bytes() != want {
			t.Fatalf("commit %d grew the log to %d, and says %d, want %d", n, end, j.Bytes(), want)
		}
		size = end
	}
	if growths > 12 { // 1, 3, 7 and 15 thousand records, and every ninth commit from there on
		t.Errorf("the log grew %d times in 60 commits", growths)
	}
	if got := int64(len(contents(t, fs, format.IndexName))); got != size {
		t.Errorf("the log has %d bytes, the journal says %d", got, size)
	}
	bytes := j.Bytes()
	next, state := reopened(t, fs, j)
	wantProblems(t, state, nil)
	if state.Records != 60*perCommit || state.Bytes != bytes || next.Bytes() != bytes {
		t.Fatalf("%d records in %d bytes were found, the journal has %d", state.Records, state.Bytes, next.Bytes())
	}
	fs.Hook(func(e twin.Event) {
		if e.Operation == twin.Write && e.Offset+e.Bytes > bytes {
			t.Errorf("the first commit after a start grew the log, which has room for %d records", (bytes-logBytes(state.Records))/format.RecordBytes)
		}
	})
	drops(t, next, 10)
}

// A loss of power while records are written over zeros leaves each of them whole or not there, and everything before them; those that are there count
// from then on, and what is written next stands behind them.
func TestACrashInTheRoomLeavesWhatWasCommitted(t *testing.T) {
	const before, during = 20, 40 // so many sectors of 512 bytes that some are lost between others
	holes, shorter := 0, 0
	for seed := range uint64(200) {
		fs := twin.New(seed)
		j, _ := open(t, fs)
		j.Namespace(namespaceOf(1))
		commit(t, j)
		o := newOracle()
		o.spaces[namespaceOf(1).Epoch] = namespaceOf(1)
		place := 0
		put := func(j *Journal, into map[uint64]Put) {
			p := pageOf(j, 1, place, place)
			p.Digest[15] = 1
			into[p.Sequence] = p
			j.Put(p)
			place++
		}
		drops(t, j, before+during) // of nothing: the room is as much
		for range before {
			put(j, o.pages)
		}
		commit(t, j)
		for range during {
			put(j, o.begun)
		}
		left := crashBeforeSync(t, fs, j)
		next, state := open(t, left)
		if err := o.check(state); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if state.Problems[Damaged] > 0 {
			holes++
		}
		if len(state.Problems) == 0 && len(state.Puts) < len(o.pages)+len(o.begun) {
			shorter++
		}
		told := known(state)
		put(next, told.pages)
		commit(t, next)
		if err := remains(left, told); err != nil {
			t.Fatalf("seed %d, after a commit more: %v", seed, err)
		}
	}
	if holes == 0 || shorter == 0 {
		t.Errorf("%d crashes left a hole and %d only fewer records", holes, shorter)
	}
}

// crashBeforeSync commits and returns what the disk holds when the power goes away before the barrier.
func crashBeforeSync(t *testing.T, fs *twin.Disk, j *Journal) (left *twin.Disk) {
	t.Helper()
	size := j.Bytes()
	fs.Hook(func(e twin.Event) {
		if e.Operation == twin.Sync && left == nil {
			left = fs.Crash()
		}
	})
	commit(t, j)
	fs.Hook(nil)
	if left == nil || j.Bytes() != size {
		panic(fmt.Sprintf("the commit was to stay inside the room: %d bytes, then %d", size, j.Bytes()))
	}
	return left
}

// No write makes a log longer than its file was asked to be: a file system that gives a growing file more than that would give it more than the volume may
// occupy.
func TestNoWriteGrowsALog(t *testing.T) {
	fs := twin.New(1)
	var size int64 // that the latest log was given
	writes := 0
	fs.Hook(func(e twin.Event) {
		switch e.Operation {
		case twin.Open:
			size = 0
		case twin.Allocate:
			size = e.Bytes
		case twin.Write:
			writes++
			if e.Offset+e.Bytes > size {
				t.Errorf("a write of %d bytes at %d of %s, which was given %d", e.Bytes, e.Offset, e.Name, size)
			}
		}
	})
	j, _ := open(t, fs)
	for n := range 12 {
		drops(t, j, 1000*n+1)
	}
	puts := func(yield func(Put) bool) {
		for number := range 3 * writeBytes / format.RecordBytes {
			if !yield(pageOf(j, 1, number, number)) {
				return
			}
		}
	}
	j.Namespace(namespaceOf(1))
	for range 2 {
		if err := j.Compact(puts); err != nil {
			t.Fatal(err)
		}
		drops(t, j, 100)
		j.Clear()
		commit(t, j)
	}
	if writes < 25 {
		t.Errorf("only %d writes", writes)
	}
}
