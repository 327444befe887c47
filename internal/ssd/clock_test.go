package ssd

import (
	"strings"
	"testing"
	"testing/synctest"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// The store measures with a clock that nobody sets: its default is time.Now as it is, whose times have a reading of that clock beside the one on the wall.
func TestTheClockOnlyGoesOn(t *testing.T) {
	now := (&Config{}).withDefaults().Now()
	if !strings.Contains(now.String(), " m=") || strings.Contains(now.Round(0).String(), " m=") {
		t.Errorf("%v is a time on the wall alone", now)
	}
}

// A clock that was set back by years between two starts costs nothing: what was stored is there, what is written then is, too, and after what was written
// before in the eyes of a repair; what was cleared stays so. Where the index is lost as well, what is written then is there all the same.
func TestAClockThatWasSetBack(t *testing.T) {
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk})
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 8)...)
	r.store.Clear()
	if err := r.store.AwaitClear(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mustWrite(s, numbers(8, 16)...)
	r.close()
	arena := newArena(64, 64<<10)         // channels of a bubble stay in it
	synctest.Test(t, func(t *testing.T) { // it is the year 2000
		r := openRigIn(t, newArena(64, 64<<10), []*twin.Disk{disk})
		s := r.namespace(1, 0, small)
		r.mustRead(s, numbers(8, 16)...)
		for number := 8; number < 12; number++ { // and written anew
			r.store.Drop(s.handle, 0, keyOf(number))
		}
		synctest.Wait()
		r.mustWrite(s, numbers(8, 12)...)
		r.mustWrite(s, numbers(16, 20)...)
		if got := r.rebuiltAfter(disk.Crash()); got != 12 {
			t.Errorf("a repair finds %d pages, want 12", got)
		}
		r = r.again()
		s = r.namespace(1, 0, small)
		r.mustRead(s, numbers(8, 20)...)
		if r.count(s, 0, 8) != 0 {
			t.Error("what was cleared is there")
		}
		r.close()
		if err := disk.Remove(format.IndexName); err != nil {
			t.Fatal(err)
		}
		r = openRigIn(t, r.arena, []*twin.Disk{disk})
		r.mustWrite(r.namespace(1, 0, small), numbers(0, 8)...)
		r = r.again()
		s = r.namespace(1, 0, small)
		r.mustRead(s, numbers(0, 8)...)
		if r.count(s, 8, 20) != 0 {
			t.Error("a store that began empty is not")
		}
		r.close()
	})
	after := openRigIn(t, arena, []*twin.Disk{disk})
	after.mustRead(after.namespace(1, 0, small), numbers(0, 8)...)
	after.close()
}
