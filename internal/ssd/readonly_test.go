package ssd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// stopWriting lets operations of a disk fail until its volume takes no more writes, with pages from a number on. It returns the number behind the last.
func stopWriting(r *rig, s space, from int, rules ...twin.Rule) int {
	r.t.Helper()
	for _, rule := range rules {
		r.disks[0].Fail(rule)
	}
	for ; r.store.Status()[0].State == "on"; from++ {
		r.write(s, from)
	}
	if status := r.store.Status()[0]; status.State != "read_only" {
		r.t.Fatalf("%+v", status)
	}
	if err := r.store.Check(); err != nil {
		r.t.Error(err)
	}
	return from
}

// A volume whose writes fail is read on: its pages, and whatever a verification or the scrubber wants of it. What is new goes to its neighbour. It is not
// tried again, however long it waits.
func TestAVolumeThatTakesNoWritesIsRead(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := []*twin.Disk{twin.New(1), twin.New(2)}
		r := openRig(t, disks, func(c *Config) { c.ScrubBytesPerSecond = 1 << 20 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 40)...)
		next := stopWriting(r, s, 40, twin.Rule{Operation: twin.Write, Name: format.PayloadName, Onward: true, Err: unix.EROFS})
		status := r.store.Status()
		if !strings.Contains(status[0].Reason, "read-only file system") || !strings.Contains(status[0].Reason, "until a restart") || status[1].State != "on" {
			t.Errorf("%+v", status)
		}
		disks[0].Heal()
		<-time.After(time.Hour)
		synctest.Wait()
		if stats := r.store.Stats(); r.store.Status()[0].State != "read_only" || stats.WriteRetriesTotal != 0 || stats.Volumes["read_only"] != 1 || stats.ScrubPassesTotal == 0 {
			t.Errorf("an hour later: %v, tried again %d times, scrubbed %d times", stats.Volumes, stats.WriteRetriesTotal, stats.ScrubPassesTotal)
		}
		r.mustRead(s, numbers(0, 40)...)
		r.mustWrite(s, numbers(next, next+40)...)
		r.mustRead(s, numbers(next, next+40)...)
		if got := r.store.Status()[0].Pages; got != status[0].Pages {
			t.Errorf("a volume that takes no writes has %d pages, and had %d", got, status[0].Pages)
		}
		damaged := pageOn(r, s, 0, 40)
		disks[0].Damage(format.PayloadName, int64(r.offset(s, damaged)), 1)
		if result := r.read(s, damaged); result.Reason != ReasonDigest || r.stored(s, damaged) {
			t.Errorf("a damaged page: %+v", result)
		}
		report, err := r.store.Verify(t.Context(), 0, func(p Problem) { t.Errorf("%+v", p) }, func(VerifyReport) {})
		if pages := r.store.Stats().Pages["probationary"]; err != nil || report.Pages != pages {
			t.Errorf("%d of %d pages were verified: %v", report.Pages, pages, err)
		}
		r = r.again()
		s = r.namespace(1, 0, small)
		r.read(s, damaged) // nobody could be told that it is dropped
		r.mustRead(s, numbers(next, next+40)...)
		if status := r.store.Status(); status[0].State != "on" || r.count(s, 0, 40) != 39 {
			t.Errorf("after a restart: %+v", status)
		}
		r.close()
	})
}

// pageOn is the first page of from..to-1 that lies on the first volume.
func pageOn(r *rig, s space, from, to int) int {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	for number := from; number < to; number++ {
		if v, _, found := r.store.find(r.store.namespaces[s.handle], 0, keyOf(number)); found && v.number == 0 {
			return number
		}
	}
	r.t.Fatal("no page lies on the first volume")
	return 0
}

// A volume of a full file system is tried again, at a bounded rate, and takes writes again with all that it had, whatever it was that found no room and
// whatever of its index log is on the disk. Nobody is told of a page that a crash then takes away.
func TestAFullVolumeIsTriedAgain(t *testing.T) {
	for name, rule := range map[string]twin.Rule{
		"pages":                  {Operation: twin.Write, Name: format.PayloadName, Moved: 4096},
		"the barrier of pages":   {Operation: twin.Sync, Name: format.PayloadName},
		"records":                {Operation: twin.Write, Name: format.IndexName, Moved: 200},
		"the barrier of records": {Operation: twin.Sync, Name: format.IndexName},
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 0, 40<<10)
				for first := 0; first < 240; first += 20 { // more than there is room for: drops are on their way
					r.mustWrite(s, numbers(first, first+20)...)
				}
				rule.Onward, rule.Err = true, unix.ENOSPC
				other := r.namespace(2, 5, small) // that the index log does not know yet
				next := stopWriting(r, other, 0, rule, twin.Rule{Operation: twin.Write, Name: format.IndexNewName, Onward: true, Err: unix.EDQUOT})
				kept := r.store.Status()[0].Pages
				<-time.After(10*retryEvery + presenceTick)
				synctest.Wait()
				if tried := r.store.Stats().WriteRetriesTotal; tried < 8 || tried > 10 || r.store.Status()[0].Pages != kept {
					t.Errorf("in 10 minutes it was tried again %d times, and has %d pages, not %d", tried, r.store.Status()[0].Pages, kept)
				}
				readStored(r, s, 240)
				disks[0].Heal()
				<-time.After(retryEvery + presenceTick)
				synctest.Wait()
				if status := r.store.Status()[0]; status.State != "on" || status.Reason != "" || status.Pages != kept {
					t.Fatalf("%+v", status)
				}
				if err := r.store.Check(); err != nil {
					t.Error(err)
				}
				for first := 300; first < 500; first += 20 {
					r.mustWrite(s, numbers(first, first+20)...)
				}
				r.mustWrite(other, numbers(next, next+8)...)
				readStored(r, s, 500)
				stored := r.store.Stats().Pages["probationary"]
				after := openRigIn(t, r.arena, []*twin.Disk{disks[0].Crash()})
				readStored(after, after.namespace(1, 0, 40<<10), 500)
				after.mustRead(after.namespace(2, 5, small), numbers(next, next+8)...)
				if got := after.store.Stats(); got.RecoveredPages < stored || len(got.RecoveryProblems) > 0 { // drops may be on their way
					t.Errorf("%d pages were stored, %d came back, problems %v", stored, got.RecoveredPages, got.RecoveryProblems)
				}
				after.close()
				r.close()
			})
		})
	}
}

// readStored reads every page of 0..to-1 that is said to be stored.
func readStored(r *rig, s space, to int) {
	r.t.Helper()
	for number := range to {
		if r.stored(s, number) {
			r.mustRead(s, number)
		}
	}
}

// While a write from before the failure is with the device nothing is tried: the barrier that failed may have been for it as well.
func TestNothingIsTriedAgainBesideAnOldWrite(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 4)...)
		r.store.Drop(s.handle, 0, keyOf(0)) // a commit without pages
		synctest.Wait()
		gate := disks[0].Gate(twin.Write, format.PayloadName)
		old := r.begin(s, 0, 10)
		gate.Wait(1)
		disks[0].Fail(twin.Rule{Operation: twin.Sync, Name: format.IndexName, Err: unix.ENOSPC})
		r.store.Drop(s.handle, 0, keyOf(1))
		<-time.After(5 * retryEvery)
		synctest.Wait()
		if status, stats := r.store.Status()[0], r.store.Stats(); status.State != "read_only" || stats.WriteRetriesTotal != 0 {
			t.Errorf("%+v, tried again %d times", status, stats.WriteRetriesTotal)
		}
		gate.Open()
		if result := <-old; result.OK || result.Reason != ReasonReadOnly {
			t.Errorf("the old write ended as %+v", result)
		}
		<-time.After(presenceTick)
		synctest.Wait()
		if status := r.store.Status()[0]; status.State != "on" {
			t.Errorf("%+v", status)
		}
		r.mustWrite(s, 10)
		r.close()
	})
}

// A stop tries a full volume a last time, so that what was dropped meanwhile stays so.
func TestAStopTriesAFullVolumeAgain(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		gone := r.namespace(2, 9, small)
		r.mustWrite(gone, numbers(0, 8)...)
		stopWriting(r, s, 8, twin.Rule{Operation: twin.Write, Name: format.IndexName, Onward: true, Err: unix.ENOSPC})
		r.store.Drop(s.handle, 0, keyOf(3))
		r.store.DropNamespace(gone.handle)
		disks[0].Heal()
		r = r.again()
		s = r.namespace(1, 0, small)
		if got := r.store.Stats().RecoveredPages; got != 7 || r.stored(s, 3) {
			t.Errorf("%d pages came back, and the dropped one: %v", got, r.stored(s, 3))
		}
		r.close()
	})
}

// A page whose bytes were wrong before they were written has the right digest: where its drop cannot be made durable, somebody is told.
func TestAWrongPageOnAVolumeThatTakesNoWritesIsTold(t *testing.T) {
	quietly(t, func(t *testing.T) {
		var log bytes.Buffer
		r := openRig(t, oneDisk(1), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		stopWriting(r, s, 8, twin.Rule{Operation: twin.Sync, Name: format.PayloadName, Onward: true, Err: unix.EIO})
		r.store.Drop(s.handle, 0, keyOf(3))
		if r.stored(s, 3) {
			t.Error("it is still stored")
		}
		r.close()
		synctest.Wait()
		if text := log.String(); strings.Count(text, "may come back with a restart") != 1 {
			t.Errorf("the log says %s", text)
		}
	})
}

// What was on its way to a volume when its writes failed ends at once, and what was dropped is free when it takes writes again. One failure more is borne
// then, as on any volume.
func TestWhatWasUnderWayWhenAVolumeFilled(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.WriteInflight = 1 })
		s, gone := r.namespace(1, 0, small), r.namespace(2, 5, small)
		r.mustWrite(s, numbers(0, 8)...)
		r.mustWrite(gone, numbers(0, 8)...)
		gate := disks[0].Gate(twin.Sync, format.IndexName)
		r.store.Drop(s.handle, 0, keyOf(0)) // whose commit fails when the writes have
		gate.Wait(1)
		disks[0].Fail(twin.Rule{Operation: twin.Sync, Name: format.IndexName, Err: unix.ENOSPC})
		disks[0].Fail(twin.Rule{Operation: twin.Write, Name: format.PayloadName, Nth: 2, Onward: true, Err: unix.ENOSPC})
		pages := disks[0].Gate(twin.Write, format.PayloadName) // all of them are taken before the volume fails
		var ends []<-chan WriteResult
		for number := 10; number < 12+failuresInARow; number++ {
			ends = append(ends, r.begin(s, 0, number))
		}
		pages.Open()
		for i, ended := range ends {
			want := ReasonNoSpace
			if i == 0 || i > failuresInARow { // written and without a record, or not begun
				want = ReasonReadOnly
			}
			if result := <-ended; result.OK || result.Reason != want {
				t.Errorf("page %d of the queue ended as %+v, want %s", i, result, want)
			}
		}
		gate.Open()
		synctest.Wait()
		r.store.Drop(s.handle, 0, keyOf(1))
		r.store.DropNamespace(gone.handle)
		disks[0].Fail(twin.Rule{Operation: twin.Write, Name: format.IndexNewName, Onward: true, Err: unix.ENOSPC})
		<-time.After(retryEvery + presenceTick)
		synctest.Wait()
		if tried := r.store.Stats().WriteRetriesTotal; tried != 1 || r.store.Check() != nil {
			t.Errorf("it was tried again %d times: %v", tried, r.store.Check())
		}
		disks[0].Heal()
		disks[0].Fail(twin.Rule{Operation: twin.Write, Name: format.PayloadName, Err: unix.EIO})
		<-time.After(retryEvery + presenceTick)
		synctest.Wait()
		if result := r.write(s, 20); result.Reason != ReasonIO {
			t.Errorf("a write that fails ended as %+v", result)
		}
		if status := r.store.Status()[0]; status.State != "on" || status.UsedBytes != 6*format.ExtentBytes(small) {
			t.Errorf("%+v, want the space of 6 pages", status)
		}
		r.mustWrite(s, 20)
		after := openRigIn(t, r.arena, []*twin.Disk{disks[0].Crash()})
		if stats := after.store.Stats(); stats.Namespaces != 1 || stats.RecoveredPages != 7 {
			t.Errorf("after a crash: %d namespaces, %d pages", stats.Namespaces, stats.RecoveredPages)
		}
		after.close()
		r.close()
	})
}

// A volume that is off while its index log is written anew keeps its pages for the next start.
func TestAVolumeThatGoesOffInTheMiddleOfANewIndexKeepsItsPages(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		stopWriting(r, s, 8, twin.Rule{Operation: twin.Sync, Name: format.IndexName, Onward: true, Err: unix.ENOSPC})
		disks[0].Heal()
		gate := disks[0].Gate(twin.Open, format.IndexNewName)
		<-time.After(retryEvery + presenceTick)
		gate.Wait(1)
		turnOff(r, disks[0], s, 0)
		if state := r.store.Status()[0].State; state != "off" {
			t.Fatalf("the volume is %s", state)
		}
		gate.Open()
		synctest.Wait()
		disks[0].Heal()
		r = r.again()
		r.mustRead(r.namespace(1, 0, small), numbers(failuresInARow, 8)...) // the others could not be read
		r.close()
	})
}

// An error that is not for lack of room ends the attempts on a full volume, whether a barrier under way meets it or the attempt itself.
func TestAFullVolumeThatFailsOtherwiseIsNotTriedAgain(t *testing.T) {
	for name, inAttempt := range map[string]bool{"a barrier under way": false, "the attempt": true} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 0, small)
				r.mustWrite(s, numbers(0, 8)...)
				gate := disks[0].Gate(twin.Sync, format.IndexName)
				if r.store.Drop(s.handle, 0, keyOf(0)); inAttempt {
					gate.Open()
					synctest.Wait()
				} else {
					gate.Wait(1)
				}
				disks[0].Fail(twin.Rule{Operation: twin.Sync, Name: format.IndexName, Onward: true, Err: unix.EIO})
				stopWriting(r, s, 8, twin.Rule{Operation: twin.Write, Name: format.PayloadName, Onward: true, Err: unix.ENOSPC})
				gate.Open()
				<-time.After(retryEvery + presenceTick)
				synctest.Wait()
				disks[0].Heal()
				<-time.After(10 * retryEvery)
				synctest.Wait()
				status, tried := r.store.Status()[0], r.store.Stats().WriteRetriesTotal
				if status.State != "read_only" || tried > 1 || tried == 1 != inAttempt || !strings.Contains(status.Reason, "until a restart") {
					t.Errorf("tried again %d times: %+v", tried, status)
				}
				r.mustRead(s, numbers(1, 8)...)
				r.close()
			})
		})
	}
}
