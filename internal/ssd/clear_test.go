package ssd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// What was cleared is not there after a crash at any moment after AwaitClear, whatever failed on the way; or else AwaitClear says so.
func TestAClearThatWasAwaitedIsDurable(t *testing.T) {
	rules := map[string][]twin.Rule{
		"a good disk":               nil,
		"no new log":                {{Operation: twin.Write, Name: format.IndexNewName, Nth: 1, Onward: true, Err: unix.EIO}},
		"no rename":                 {{Operation: twin.Rename, Nth: 1, Onward: true, Err: unix.EIO}},
		"a folder that is not kept": {{Operation: twin.SyncFolder, Nth: 1, Err: unix.EIO}},
		"a dead disk": {
			{Operation: twin.Write, Nth: 1, Onward: true, Err: unix.EROFS},
			{Operation: twin.Remove, Nth: 1, Onward: true, Err: unix.EROFS},
		},
	}
	for name, failures := range rules {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 0, small)
				r.mustWrite(s, numbers(0, 8)...)
				for _, rule := range failures {
					disks[0].Fail(rule)
				}
				r.store.Clear()
				err := r.store.AwaitClear(t.Context())
				dead := name == "a dead disk"
				if dead != (err != nil) || dead && !strings.Contains(err.Error(), "remove its file "+format.IndexName) {
					t.Errorf("a clear ended with %v", err)
				}
				disks[0].Heal()
				for range 8 {
					if n := r.recoveredAfter(disks[0].Crash()); !dead && n > 0 {
						t.Errorf("%d pages came back", n)
					}
				}
				if n := r.rebuiltAfter(disks[0].Crash()); n > 0 && !dead && name != "no rename" { // where the superblock stayed as it was
					t.Errorf("%d pages came back with a new index", n)
				}
				r.close()
			})
		})
	}
}

// recoveredAfter is how many pages a store finds on a disk.
func (r *rig) recoveredAfter(disk *twin.Disk) uint64 {
	r.t.Helper()
	after := openRigIn(r.t, r.arena, []*twin.Disk{disk})
	defer after.close()
	return after.store.Stats().RecoveredPages
}

// rebuiltAfter is how many a repair finds there when the index is lost.
func (r *rig) rebuiltAfter(disk *twin.Disk) uint64 {
	r.t.Helper()
	if err := disk.Remove(format.IndexName); err != nil {
		r.t.Fatal(err)
	}
	pages, _, err := RebuildIndex(r.t.Context(), disk, func(_, _ uint64) {})
	if err != nil {
		r.t.Fatal(err)
	}
	if found := r.recoveredAfter(disk); found != pages {
		r.t.Errorf("a repair found %d pages, and the store after it %d", pages, found)
	}
	return pages
}

// A loss of power before any operation of a clear leaves all pages or none, and none once it was awaited, whether the index is there or made anew.
func TestCrashBeforeEveryOperationOfAClear(t *testing.T) {
	const pages, later = 8, 3
	disk := twin.New(3)
	r := openRig(t, []*twin.Disk{disk})
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, pages)...)
	var mu sync.Mutex
	var before, after []*twin.Disk
	crashed := &before
	disk.Hook(func(twin.Event) {
		mu.Lock()
		defer mu.Unlock()
		*crashed = append(*crashed, disk.Crash(), disk.Crash())
	})
	r.store.Clear()
	if err := r.store.AwaitClear(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	crashed = &after
	mu.Unlock()
	for number := range later {
		r.mustWrite(s, number)
	}
	disk.Hook(nil)
	cleared := 0
	for i, left := range before {
		again := left.Crash()
		found, rebuilt := r.recoveredAfter(left), r.rebuiltAfter(again)
		if found != 0 && found != pages || rebuilt != 0 && rebuilt != pages || found > 0 && rebuilt == 0 {
			t.Errorf("crash %d of the clear: %d pages, and %d with a new index", i, found, rebuilt)
		}
		if rebuilt == 0 {
			cleared++
		}
	}
	if len(before) < 16 || cleared == 0 || cleared == len(before) {
		t.Errorf("%d crashes, %d of them after the clear", len(before), cleared)
	}
	for i, left := range append(after, disk.Crash()) {
		again := left.Crash()
		if found, rebuilt := r.recoveredAfter(left), r.rebuiltAfter(again); found > later || rebuilt > later {
			t.Errorf("crash %d after the clear: %d pages, and %d with a new index", i, found, rebuilt)
		}
	}
	r.close()
}

// What is cleared while a volume takes no pages is a miss at once and stays one while the store lives. Whether a restart may bring it back is told.
func TestAClearOfAVolumeThatTakesNoWrites(t *testing.T) {
	full := func(o twin.Operation, name string) twin.Rule {
		return twin.Rule{Operation: o, Name: name, Onward: true, Err: unix.ENOSPC}
	}
	for name, c := range map[string]struct {
		rules   []twin.Rule
		durable bool // at once
		rebuilt bool // a repair may bring it back
	}{
		"pages alone fail":    {rules: []twin.Rule{full(twin.Write, format.PayloadName)}, durable: true},
		"the index is full":   {rules: []twin.Rule{full(twin.Write, format.IndexName)}, durable: true},
		"everything is full":  {rules: []twin.Rule{full(twin.Write, "")}, durable: true, rebuilt: true},
		"nothing can change":  {rules: []twin.Rule{full(twin.Write, ""), full(twin.Rename, ""), full(twin.Remove, "")}},
		"no name can be kept": {rules: []twin.Rule{full(twin.Write, format.PayloadName), full(twin.SyncFolder, "")}},
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 0, small)
				r.mustWrite(s, numbers(0, 8)...)
				stopWriting(r, s, 8, c.rules...)
				r.store.Clear()
				if r.count(s, 0, 8) != 0 {
					t.Error("a page that was cleared is stored")
				}
				err, reason := r.store.AwaitClear(t.Context()), r.store.Status()[0].Reason
				if (err == nil) != c.durable || err != nil && (!strings.Contains(err.Error(), "come back with a restart") || !strings.Contains(reason, err.Error()[len("ssd: "):])) {
					t.Errorf("a clear ended with %v, the status says %s", err, reason)
				}
				for range 8 {
					if n := r.recoveredAfter(disks[0].Crash()); c.durable && n > 0 {
						t.Errorf("%d pages came back", n)
					}
				}
				if n := r.rebuiltAfter(disks[0].Crash()); c.durable && (n > 0) != c.rebuilt {
					t.Errorf("%d pages came back with a new index", n)
				}
				disks[0].Heal()
				<-time.After(retryEvery + presenceTick)
				synctest.Wait()
				if err := r.store.AwaitClear(t.Context()); err != nil || r.store.Status()[0].State != "on" || r.store.Check() != nil {
					t.Errorf("when the volume takes writes again: %v, %+v, %v", err, r.store.Status()[0], r.store.Check())
				}
				r.mustWrite(s, numbers(20, 23)...)
				if n := r.recoveredAfter(disks[0].Crash()); n != 3 || r.count(s, 0, 20) != 0 {
					t.Errorf("%d pages are there after a crash, want the 3 that were written after the clear", n)
				}
				if n := r.rebuiltAfter(disks[0].Crash()); n != 3 {
					t.Errorf("%d pages are there with a new index, want the 3 that were written after the clear", n)
				}
				r.close()
			})
		})
	}
}

// A disk that does not answer keeps nobody for ever who awaits a clear: he is told that it is not durable, and by the next call when it is.
func TestAClearIsAwaitedAsLongAsTheAskerMay(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		r.mustWrite(r.namespace(1, 0, small), numbers(0, 1)...)
		gate := disks[0].Gate(twin.Write, format.IndexNewName)
		r.store.Clear()
		gate.Wait(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := r.store.AwaitClear(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "may come back") {
			t.Errorf("the disk does not answer, and a clear ended with %v", err)
		}
		gate.Open()
		if err := r.store.AwaitClear(t.Context()); err != nil {
			t.Error(err)
		}
		r.close()
	})
}

// A volume that goes off while a clear of it is made durable, and one that is off, say that they are cleared no sooner than it is so. Clears that come
// meanwhile are one.
func TestClearsOfAVolumeThatGoesOffMeanwhile(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		stopWriting(r, s, 8, twin.Rule{Operation: twin.Write, Name: format.PayloadName, Onward: true, Err: unix.EIO})
		disks[0].Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Onward: true, Err: unix.EIO})
		reads, blocks := disks[0].Gate(twin.Read, format.PayloadName), disks[0].Gate(twin.Write, superblockNew)
		var ends []<-chan ReadResult
		for number := range failuresInARow {
			ends = append(ends, r.ask(s, 0, number, Demand))
		}
		reads.Wait(failuresInARow)
		r.store.Clear()
		blocks.Wait(1)
		reads.Open()
		for _, ended := range ends {
			<-ended
		}
		if state := r.store.Status()[0].State; state != "off" {
			t.Fatalf("the volume is %s", state)
		}
		blocks.Open()
		if err := r.store.AwaitClear(t.Context()); err != nil {
			t.Error(err)
		}
		removals := 0
		disks[0].Hook(func(e twin.Event) {
			if e.Operation == twin.Remove && e.Name == format.IndexName {
				removals++
			}
		})
		gate := disks[0].Gate(twin.Remove, format.IndexName)
		if err := disks[0].Remove(format.SuperblockName); err != nil { // so that each clear has something to do
			t.Fatal(err)
		}
		awaited := make(chan error, 1)
		r.store.Clear()
		gate.Wait(1)
		r.store.Clear()
		go func() { awaited <- r.store.AwaitClear(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-awaited:
			t.Errorf("it is told to be cleared before it is: %v", err)
		default:
		}
		gate.Open()
		if err := <-awaited; err != nil || removals != 1 {
			t.Errorf("the index log was removed %d times: %v", removals, err)
		}
		if clears := r.store.volumes[0].clears; clears != 0 {
			t.Errorf("%d clears are counted as under way", clears)
		}
		r.close()
	})
}
