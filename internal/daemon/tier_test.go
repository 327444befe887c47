package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orbitkv/internal/arena"
	"orbitkv/internal/cache"
	"orbitkv/internal/config"
	"orbitkv/internal/ssd"
	"orbitkv/internal/wire"
)

const pageBytes = 8 << 10

// newPool makes a pool of one arena and its views.
func newPool(t *testing.T) (*arena.Pool, *arena.Views) {
	t.Helper()
	pool, err := arena.Create(arena.Config{PoolBytes: 4 << 20, Incarnation: "test"})
	if err != nil {
		t.Fatal(err)
	}
	views, err := pool.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := views.Close(); err != nil {
			t.Error(err)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool, views
}

func settings(paths ...string) config.SSD {
	return config.SSD{
		Paths: paths, CapacityBytes: uint64(len(paths)) * 64 << 20, Backend: config.BackendPool, WriteQueueBatches: 1, ReadQueueBatches: 1,
		WritesInflight: 1, ReadsInflight: 1, WritePolicy: config.WriteAll,
	}
}

func TestTheFolderIsMadeButNotTheOneAboveIt(t *testing.T) {
	pool, views := newPool(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "made")
	tier, err := openTier(settings(path), pool, views, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.close(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("%v, %v; want a folder of mode 0700", info, err)
	}
	_, err = openTier(settings(path, filepath.Join(dir, "none", "deep")), pool, views, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "mount the device") || !strings.HasSuffix(err.Error(), "(mkdir -p "+filepath.Join(dir, "none")+")") || !strings.Contains(err.Error(), "--ssd-cache-path") {
		t.Errorf("%v, want what to do", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("the folder above was made (%v)", err)
	}
}

func TestFaultsThatAreNoneAreRefused(t *testing.T) {
	pool, views := newPool(t)
	cfg := settings(t.TempDir())
	cfg.FaultInjection = "nonsense"
	if _, err := openTier(cfg, pool, views, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--ssd-fault-injection") {
		t.Errorf("%v, want the name of the flag", err)
	}
}

// TestAPageGoesThroughTheStoreAndBack writes a page of two parts from the pool, and reads it into others.
func TestAPageGoesThroughTheStoreAndBack(t *testing.T) {
	pool, views := newPool(t)
	tier, err := openTier(settings(t.TempDir()), pool, views, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	namespace := tier.Namespace([32]byte{1}, 0, pageBytes)
	key := wire.Key{7}
	part := func(offset uint64) cache.TierPart {
		return cache.TierPart{Location: wire.At(0, offset), Bytes: pageBytes / 2}
	}
	for i, at := range []uint64{0, 1 << 20} {
		for j := range views.Slice(0, at, pageBytes/2) {
			views.Arena(0)[at+uint64(j)] = byte(i*31 + j)
		}
	}
	written := make(chan ssd.WriteResult, 1)
	if !tier.store.Write(ssd.Write{
		Namespace: namespace, Key: ssd.Key(key), Parts: partsOf([]cache.TierPart{part(0), part(1 << 20)}),
		Done: func(r ssd.WriteResult) { written <- r },
	}) {
		t.Fatal("the page was not taken")
	}
	if r := <-written; !r.OK || !tier.Stored(namespace, 0, &key) || tier.Wanted(namespace, 0, &key) {
		t.Fatalf("%+v; stored %v", r, tier.Stored(namespace, 0, &key))
	}
	read := make(chan ssd.ReadResult, 1)
	if !tier.store.Read(ssd.Read{
		Namespace: namespace, Key: ssd.Key(key), Parts: partsOf([]cache.TierPart{part(2 << 20), part(3 << 20)}), Priority: priorities[cache.ReadDemand],
		Done: func(r ssd.ReadResult) { read <- r },
	}) {
		t.Fatal("the page is not read")
	}
	if r := <-read; !r.OK {
		t.Fatalf("%+v", r)
	}
	for i, at := range []uint64{2 << 20, 3 << 20} {
		for j, got := range views.Slice(0, at, pageBytes/2) {
			if got != byte(i*31+j) {
				t.Fatalf("part %d, byte %d is %d", i, j, got)
			}
		}
	}
	if tier.tell(namespace, 0, &key) || !tier.tell(namespace, 0, &wire.Key{8}) {
		t.Error("a stored page is lacking, or one that is not stored is not")
	}
	tier.Clear()
	if tier.Stored(namespace, 0, &key) || tier.ReadRoom() == 0 {
		t.Error("the page is there after Clear")
	}
	if err := tier.close(); err != nil {
		t.Error(err)
	}
}
