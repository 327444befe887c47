package ssd

import (
	"context"
	"errors"
	"strings"
	"testing"
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
