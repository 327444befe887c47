package ssd

import (
	"strings"
	"testing"

	"orbitkv/internal/vfs"
)

// A real folder, by each engine that the machine has: pages come back by the same one and by the other one, and the files occupy what the store says.
func TestARealFolder(t *testing.T) {
	path := t.TempDir()
	a := newArena(64, 64<<10)
	written := 0
	for _, backend := range []string{"pool", "auto", "pool"} {
		folder, err := vfs.NewOS(path)
		if err != nil {
			t.Fatal(err)
		}
		config := configOf(a, nil)
		config.Volumes, config.CapacityBytes, config.Backend = []VolumeConfig{{FS: folder}}, 2*capacity, backend
		config.MemoryRegions = [][]byte{a.memory}
		store, err := Open(config)
		if err != nil {
			t.Skipf("the temporary folder takes no direct I/O: %v", err)
		}
		if written == 0 {
			if _, err := Open(config); err == nil || !strings.Contains(err.Error(), "another process has the folder") {
				t.Errorf("a second store was opened: %v", err)
			}
		}
		r := &rig{t: t, store: store, arena: a}
		s := r.namespace(1, 0, 40<<10)
		r.mustRead(s, numbers(0, written)...)
		r.mustWrite(s, numbers(written, written+50)...)
		written += 50
		r.mustRead(s, numbers(0, written)...)
		status, stats := store.Status()[0], store.Stats()
		t.Logf("%s: %s; %d bytes on disk", status.Engine, status.EngineReason, stats.DiskBytes)
		if stats.DiskBytes > 2*capacity || stats.DiskBytes < stats.PayloadBytes {
			t.Errorf("the files occupy %d bytes, the payload is %d", stats.DiskBytes, stats.PayloadBytes)
		}
		if report, err := store.Verify(t.Context(), 0, func(p Problem) { t.Errorf("%+v", p) }, func(VerifyReport) {}); err != nil || report.Pages != uint64(written) {
			t.Errorf("%+v, %v", report, err)
		}
		r.close()
	}
}
