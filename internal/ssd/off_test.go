package ssd

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// turnOff lets the reads of a disk fail until its volume is off.
func turnOff(r *rig, disk *twin.Disk, s space, first int) {
	disk.Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Onward: true, Err: unix.EIO})
	for number := range failuresInARow {
		r.read(s, first+number)
	}
}

// With every volume off a page is wanted as far as the page goes, and Write counts why it is not taken.
func TestPagesOfATierThatIsOffAreCountedAsSuch(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(10, 20)...)
	turnOff(r, disks[0], s, 10)
	if state := r.store.Status()[0].State; state != "off" {
		t.Fatalf("the volume is %s", state)
	}
	if !r.store.Wanted(s.handle, 0, keyOf(2)) {
		t.Error("a page that is neither stored nor being written is told to be")
	}
	if r.write(s, 2).Reason != "refused" || r.store.Stats().WriteSkipsTotal[SkipOff] != 1 {
		t.Errorf("a page for a tier that is off is counted as %v", r.store.Stats().WriteSkipsTotal)
	}
	r.close()
}

// A folder that is deleted under a store is noticed within presenceTick, and its neighbour goes on.
func TestDeletedFilesTurnAVolumeOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disks := []*twin.Disk{twin.New(1), twin.New(2)}
		r := openRig(t, disks)
		<-time.After(presenceTick)
		synctest.Wait()
		for _, name := range disks[0].Names() {
			if err := disks[0].Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		if status := r.store.Status(); status[0].State != "on" {
			t.Fatalf("the volume is off before its files were deleted: %s", status[0].Reason)
		}
		<-time.After(presenceTick) // of the bubble's clock
		synctest.Wait()
		status := r.store.Status()
		if status[0].State != "off" || !strings.Contains(status[0].Reason, "were deleted") || status[1].State != "on" {
			t.Errorf("the files of the first volume were deleted: %+v", status)
		}
		s := r.namespace(1, 0, small)
		r.mustWrite(s, 1)
		r.mustRead(s, 1)
		r.close()
	})
}
