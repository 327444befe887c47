package ssd

import (
	"testing"
	"time"

	"orbitkv/internal/vfs/twin"
)

func TestTmpHuge(t *testing.T) {
	disk := twin.New(1)
	a := newArena(8, 60<<20)
	r := openRigIn(t, a, []*twin.Disk{disk}, func(c *Config) { c.CapacityBytes = 512 << 20 })
	s := r.namespace(1, 0, 20<<20)
	h := r.namespace(2, 0, 60<<20)
	e1 := r.begin(s, 0, 1)
	e2 := r.begin(h, 0, 2)
	for _, e := range []<-chan WriteResult{e1, e2} {
		select {
		case res := <-e:
			t.Log(res.OK, res.Reason)
		case <-time.After(20 * time.Second):
			t.Fatal("stuck", r.store.Stats())
		}
	}
	r.close()
}
