package ssd

import (
	"testing"
	"testing/synctest"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// Pages get digest and place ahead of the device, some and not many bytes of them, and the end of one write begins the next.
func TestPagesAreReadyAheadOfTheDevice(t *testing.T) {
	for name, c := range map[string]struct {
		bytes   uint64
		ready   int
		written int
	}{
		"small":                  {small, readyPagesMax, 20},
		"some together":          {readyBytesMax / 2, 2, 8},
		"larger than the bound":  {readyBytesMax + format.Granule, 1, 6},
		"one more than is ready": {small, 1, DefaultWriteInflight + 1},
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRigIn(t, newArena(c.written, c.bytes), disks, func(cfg *Config) { cfg.CapacityBytes = 256 << 20 })
				s := r.namespace(1, 0, c.bytes)
				gate := disks[0].Gate(twin.Write, format.PayloadName)
				var ends []<-chan WriteResult
				for number := range c.written {
					ends = append(ends, r.begin(s, 0, number))
				}
				v := r.store.volumes[0]
				for ended := range c.written - c.ready - DefaultWriteInflight + 1 {
					gate.Wait(DefaultWriteInflight)
					synctest.Wait()
					least := c.ready // and half of readyPagesMax once some were taken
					if ended > 0 {
						least = min(least, readyPagesMax/2+1)
					}
					n := v.ready.len()
					if v.writing != DefaultWriteInflight || n < least || n > c.ready || v.readyBytes != uint64(n)*c.bytes {
						t.Fatalf("behind %d writes that ended %d are under way, %d pages of %d bytes are ready, want %d to %d", ended, v.writing, n, v.readyBytes, least, c.ready)
					}
					if err := r.store.Check(); err != nil {
						t.Fatal(err)
					}
					if ended+c.ready+DefaultWriteInflight < c.written {
						gate.Pass(1)
					}
				}
				gate.Open()
				for number, ended := range ends {
					if result := <-ended; !result.OK {
						t.Errorf("page %d was not written: %s", number, result.Reason)
					}
				}
				if v.ready.len() != 0 || v.readyBytes != 0 {
					t.Errorf("%d bytes are ready behind all writes", v.readyBytes)
				}
				r.close()
			})
		})
	}
}

// Pages that are ready when their namespace is dropped, the store is cleared or its volume fails end with the reason, and their space comes back.
func TestReadyPagesEndWithTheReason(t *testing.T) {
	for reason, end := range map[string]func(*rig, space){
		ReasonDropped: func(r *rig, s space) { r.store.DropNamespace(s.handle) },
		ReasonOff: func(r *rig, _ space) {
			r.store.mu.Lock()
			defer r.store.leave()
			r.store.volumes[0].off("the test says so")
		},
	} {
		t.Run(reason, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 0, small)
				r.mustWrite(s, 100)
				gate := disks[0].Gate(twin.Write, format.PayloadName)
				var ends []<-chan WriteResult
				for number := range DefaultWriteInflight + readyPagesMax {
					ends = append(ends, r.begin(s, 0, number))
				}
				gate.Wait(DefaultWriteInflight)
				synctest.Wait()
				end(r, s)
				synctest.Wait()
				for _, ended := range ends[DefaultWriteInflight:] {
					select {
					case result := <-ended:
						if result.OK || result.Reason != reason {
							t.Errorf("a ready page ended as %+v", result)
						}
					default:
						t.Error("a ready page has not ended")
					}
				}
				if v := r.store.volumes[0]; v.unrecorded != DefaultWriteInflight {
					t.Errorf("%d pages are unrecorded, %d are being written", v.unrecorded, v.writing)
				}
				gate.Open()
				for _, ended := range ends[:DefaultWriteInflight] {
					if result := <-ended; result.OK || result.Reason != reason {
						t.Errorf("a page that was being written ended as %+v", result)
					}
				}
				r.close()
			})
		})
	}
}
