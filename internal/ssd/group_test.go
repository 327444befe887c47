package ssd

import (
	"testing"

	"orbitkv/internal/ssd/format"
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
