package ssd

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// A write that fails is a miss at once and after a restart; what ended well is there; nothing that is read is wrong. Whatever operation fails, once or
// from then on, and however.
func TestFailuresOfEveryKind(t *testing.T) {
	a := newArena(64, 32<<10)
	type place struct {
		operation twin.Operation
		name      string
	}
	for _, at := range []place{
		{twin.Write, format.PayloadName},
		{twin.Read, format.PayloadName},
		{twin.Sync, format.PayloadName},
		{twin.Write, format.IndexName},
		{twin.Sync, format.IndexName},
		{twin.Rename, format.IndexName},
		{twin.SyncFolder, ""},
	} {
		for _, failure := range []error{unix.EIO, unix.ENOSPC, unix.EINVAL, unix.EROFS, nil} {
			if failure == nil && at.operation != twin.Read && at.operation != twin.Write {
				continue
			}
			for _, onward := range []bool{false, true} {
				for nth := 1; nth <= 3; nth += 2 {
					rule := twin.Rule{Operation: at.operation, Name: at.name, Nth: nth, Onward: onward, Err: failure, Moved: 4096}
					t.Run(fmt.Sprintf("%v %s %d onward %v %v", at.operation, at.name, nth, onward, failure), func(t *testing.T) {
						failing(t, a, rule)
					})
				}
			}
		}
	}
}

// stateAfter is what becomes of a volume: single transfers may fail, and nothing renames before the store is closed. After a failed barrier or record
// nobody knows what the device has, and nothing is written any more.
func stateAfter(rule twin.Rule) string {
	transfer := rule.Name == format.PayloadName && rule.Operation != twin.Sync
	switch {
	case rule.Operation == twin.Rename, rule.Operation == twin.SyncFolder, transfer && !rule.Onward:
		return "on"
	case rule.Operation == twin.Read:
		return "off"
	}
	return "read_only"
}

func failing(t *testing.T, a *arena, rule twin.Rule) {
	disk := twin.New(3)
	r := openRigIn(t, a, []*twin.Disk{disk})
	s := r.namespace(1, 0, 12<<10)
	r.mustWrite(s, numbers(0, 6)...)
	disk.Fail(rule)
	good, bad := map[int]bool{}, map[int]bool{}
	for number := 6; number < 18; number++ {
		if ended := r.begin(s, 0, number); ended != nil {
			good[number] = (<-ended).OK
		}
		if !good[number] {
			bad[number] = true
		}
		if bad[number] && r.stored(s, number) {
			t.Errorf("the write of page %d failed, and it is stored", number)
		}
		if result := r.read(s, number-6); !result.OK && rule.Operation != twin.Read && !bad[number-6] { // whose bytes are compared
			t.Errorf("page %d was written and cannot be read: %s", number-6, result.Reason)
		}
	}
	state := r.store.Status()[0].State
	if want := stateAfter(rule); state != want {
		t.Errorf("the volume is %s, want %s", state, want)
	}
	if err := r.store.Check(); err != nil {
		t.Error(err)
	}
	lost := map[int]bool{} // by reads that failed
	for number := range 18 {
		lost[number] = state != "off" && !r.stored(s, number)
		if good[number] && lost[number] && rule.Operation != twin.Read {
			t.Errorf("page %d was written and is no more stored", number)
		}
	}
	crashed := disk.Crash()
	disk.Heal()
	for name, after := range map[string]func() *rig{
		"a loss of power": func() *rig { return openRigIn(t, a, []*twin.Disk{crashed}) },
		"a restart": func() *rig {
			_ = r.store.Close() // whose error is that of the failed index log
			return openRigIn(t, a, []*twin.Disk{disk})
		},
	} {
		r := after()
		s := r.namespace(1, 0, 12<<10)
		for number := range 18 {
			result := r.read(s, number)
			recorded := rule.Operation == twin.Sync && rule.Name == format.IndexName || rule.Operation == twin.Write && rule.Name == format.IndexName
			switch {
			case result.OK && bad[number] && !recorded:
				t.Errorf("after %s: the write of page %d failed, and it is stored", name, number)
			case !result.OK && (number < 6 || good[number]) && !lost[number] && rule.Operation != twin.Read:
				t.Errorf("after %s: page %d was written and is lost: %s", name, number, result.Reason)
			}
		}
		r.close()
	}
}

// Damage is found by the read that meets it: the page is a miss from then on, and after a restart.
func TestRottenPagesAreDropped(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 8)...)
	for i, at := range []int64{0, small / 2, small - 1} {
		disks[0].Damage(format.PayloadName, int64(r.offset(s, i))+at, 1)
	}
	disks[0].Damage(format.PayloadName, int64(r.offset(s, 3))+small, 4096) // its header block alone
	for number := range 3 {
		if result := r.read(s, number); result.OK || result.Reason != ReasonDigest {
			t.Errorf("damaged page %d was read: %+v", number, result)
		}
		if r.stored(s, number) || !r.store.Wanted(s.handle, 0, keyOf(number)) {
			t.Errorf("damaged page %d is still stored, or not wanted", number)
		}
	}
	r.mustRead(s, numbers(3, 8)...)
	stats := r.store.Stats()
	if stats.ReadFailuresTotal[ReasonDigest] != 3 || stats.DamagedPagesTotal[FoundByRead] != 3 || stats.EvictionsTotal[ReasonDigest] != 3 {
		t.Errorf("3 damaged pages were counted as %v, dropped as %v", stats.ReadFailuresTotal, stats.EvictionsTotal)
	}
	r = r.again()
	s = r.namespace(1, 0, small)
	if got := r.count(s, 0, 8); got != 5 {
		t.Errorf("%d pages are stored after a restart, want 5", got)
	}
	r.mustWrite(s, 0)
	r.mustRead(s, 0)
	r.close()
}

// offset is where a page lies in the payload.
func (r *rig) offset(s space, number int) uint64 {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	v, h, ok := r.store.find(r.store.namespaces[s.handle], 0, keyOf(number))
	if !ok {
		r.t.Fatalf("page %d is not stored", number)
	}
	return v.index.Location(h)
}

// A volume whose reads fail one after the other is off: its pages are misses, its folder is named with a reason, and the other one goes on.
func TestAFailingVolumeIsOff(t *testing.T) {
	disks := []*twin.Disk{twin.New(1), twin.New(2)}
	r := openRig(t, disks)
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 40)...)
	disks[0].Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Onward: true, Err: unix.EIO})
	failed := 0
	for number := range 40 {
		if result := r.read(s, number); result.Reason == ReasonIO {
			failed++
		}
	}
	status := r.store.Status()
	if failed != failuresInARow || status[0].State != "off" || !strings.Contains(status[0].Reason, "input/output error") || status[1].State != "on" {
		t.Errorf("after %d failures the volumes are %+v", failed, status)
	}
	left := r.count(s, 0, 40)
	if left == 0 || left == 40 || uint64(left) != status[1].Pages {
		t.Errorf("%d pages are stored, the volume that is left has %d", left, status[1].Pages)
	}
	r.mustWrite(s, numbers(100, 130)...)
	r.mustRead(s, numbers(100, 130)...)
	if stats := r.store.Stats(); stats.Volumes["off"] != 1 || stats.Volumes["on"] != 1 {
		t.Errorf("volumes by state: %v", stats.Volumes)
	}
	disks[0].Heal()
	r = r.again()
	s = r.namespace(1, 0, small)
	r.mustRead(s, numbers(100, 130)...)
	if got := r.count(s, 0, 40); got <= left { // the volume could not tell of all pages that it lost
		t.Errorf("%d of the first 40 pages came back, %d were left", got, left)
	}
	r.close()
}

// One failure between good transfers turns nothing off.
func TestSingleFailuresAreBorne(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	defer r.close()
	s := r.namespace(1, 0, small)
	for round := range 4 * failuresInARow {
		disks[0].Fail(twin.Rule{Operation: twin.Write, Name: format.PayloadName, Err: unix.EIO})
		if result := r.write(s, 2*round); result.OK || result.Reason != ReasonIO {
			t.Fatalf("a failed write ended as %+v", result)
		}
		disks[0].Heal()
		r.mustWrite(s, 2*round+1)
	}
	if status := r.store.Status()[0]; status.State != "on" || status.Pages != 4*failuresInARow {
		t.Errorf("%+v", status)
	}
}

// A disk without room for the payload gives a reason and no volume; without another one there is no store.
func TestADiskThatIsTooSmall(t *testing.T) {
	tight := twin.New(1)
	tight.Capacity(2 << 20)
	if _, err := Open(configOf(newArena(1, small), []*twin.Disk{tight})); err == nil || !strings.Contains(err.Error(), "lower the capacity") {
		t.Errorf("a store on a disk of 2 MiB: %v", err)
	}
	if used := tight.Used(); used > 64<<10 {
		t.Errorf("%d bytes are still taken", used)
	}
	r := openRig(t, []*twin.Disk{tight, twin.New(2)})
	defer r.close()
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 10)...)
	r.mustRead(s, numbers(0, 10)...)
	if status := r.store.Status(); status[0].State != "off" || !strings.Contains(status[0].Reason, "no space left") {
		t.Errorf("%+v", status[0])
	}
}

// A device without room for the index log fails the pages of that commit and all later ones; what was written before can be read, and after a restart.
func TestAFullDisk(t *testing.T) {
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk})
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 10)...)
	disk.Capacity(disk.Used())
	failed := 0
	for number := 10; number < 200; number++ {
		if result := r.write(s, number); !result.OK {
			failed++
		}
	}
	if status := r.store.Status()[0]; failed == 0 || status.State != "read_only" || !strings.Contains(status.Reason, "no space left") {
		t.Errorf("%d writes failed, %+v", failed, status)
	}
	r.mustRead(s, numbers(0, 200-failed)...)
	if skips := r.store.Stats().WriteSkipsTotal; skips[SkipReadOnly] == 0 || skips[SkipOff] != 0 {
		t.Errorf("pages for a volume that takes none are counted as %v", skips)
	}
	disk.Capacity(1 << 40)
	r = r.again()
	r.mustRead(r.namespace(1, 0, small), numbers(0, 200-failed)...)
	r.close()
}

// A volume that is off is cleared with the others: its pages do not come back at the next start.
func TestAVolumeThatIsOffIsCleared(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := []*twin.Disk{twin.New(1), twin.New(2)}
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 40)...)
		disks[0].Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Onward: true, Err: unix.EIO})
		for number := range 40 {
			r.read(s, number)
		}
		if status := r.store.Status(); status[0].State != "off" {
			t.Fatalf("%+v", status[0])
		}
		r.store.Clear()
		synctest.Wait()
		disks[0].Heal()
		r = r.again()
		if got := r.store.Stats(); got.RecoveredPages != 0 || got.Volumes["on"] != 2 {
			t.Errorf("%d pages came back after a clear, volumes %v", got.RecoveredPages, got.Volumes)
		}
		r.close()
	})
}
