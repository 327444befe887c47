package ssd

import (
	"strings"
	"testing"

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
				err := r.store.AwaitClear()
				dead := name == "a dead disk"
				if dead != (err != nil) || dead && !strings.Contains(err.Error(), "remove its file "+format.IndexName) {
					t.Errorf("a clear ended with %v", err)
				}
				disks[0].Heal()
				for range 8 {
					after := openRigIn(t, r.arena, []*twin.Disk{disks[0].Crash()})
					if n := after.store.Stats().RecoveredPages; !dead && n > 0 {
						t.Errorf("%d pages came back", n)
					}
					after.close()
				}
				r.close()
			})
		})
	}
}
