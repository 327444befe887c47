package ssd

import (
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// With every volume off a page is wanted as far as the page goes, and Write counts why it is not taken.
func TestPagesOfATierThatIsOffAreCountedAsSuch(t *testing.T) {
	disks := oneDisk(1)
	r := openRig(t, disks)
	s := r.namespace(1, 0, small)
	disks[0].Fail(twin.Rule{Operation: twin.Sync, Name: format.IndexName, Onward: true, Err: unix.EIO})
	r.write(s, 1)
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
