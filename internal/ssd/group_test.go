package ssd

import (
	"testing"
	"testing/synctest"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

// A page that has no room beside those that wait for their record waits until they have it, whatever their sum.
func TestAHugePageIsWrittenBehindOthers(t *testing.T) {
	for _, mib := range []uint64{33, 44, 45, 65} {
		quietly(t, func(t *testing.T) {
			disks := oneDisk(1)
			r := openRigIn(t, newArena(3, mib<<20), disks, func(c *Config) { c.CapacityBytes = 256 << 20 })
			large, huge := r.namespace(1, 0, 20<<20), r.namespace(2, 0, mib<<20)
			gate := disks[0].Gate(twin.Write, format.PayloadName)
			ends := []<-chan WriteResult{r.begin(large, 0, 1), r.begin(huge, 0, 2), r.begin(large, 0, 3)}
			gate.Wait(1)
			gate.Open()
			for i, ended := range ends {
				if result := <-ended; !result.OK {
					t.Errorf("page %d of those beside one of %d MiB was not written: %s", i, mib, result.Reason)
				}
			}
			r.mustRead(huge, 2)
			r.close()
		})
	}
}

// On a slow device pages do not wait for a whole batch, since they keep memory meanwhile.
func TestASlowDeviceCommitsBeforeABatchIsFull(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		gate := disks[0].Gate(twin.Write, format.PayloadName)
		var ends []<-chan WriteResult
		for number := range 8 {
			ends = append(ends, r.begin(s, 0, number))
		}
		gate.Wait(DefaultWriteInflight)
		gate.Pass(1)
		synctest.Wait()
		if r.stored(s, 0) || r.stored(s, 1) {
			t.Error("a page was committed although others were about to join it")
		}
		<-time.After(groupWait)
		gate.Pass(1)
		synctest.Wait()
		if n := r.count(s, 0, 8); n != 2 {
			t.Errorf("%d pages are stored, the 2 that were written have waited long enough", n)
		}
		gate.Open()
		for _, ended := range ends {
			<-ended
		}
		r.close()
	})
}

// A killed process may keep the lock for a moment after its end.
func TestALockThatGoesIsWaitedFor(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		held, err := disks[0].Open(format.PayloadName, vfs.Direct)
		if err == nil {
			err = held.Lock()
		}
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-time.After(lockWait / 2)
			if err := held.Close(); err != nil {
				t.Error(err)
			}
		}()
		openRig(t, disks).close()
	})
}
