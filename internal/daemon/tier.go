package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"orbitkv/internal/arena"
	"orbitkv/internal/cache"
	"orbitkv/internal/config"
	"orbitkv/internal/ssd"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/faulty"
	"orbitkv/internal/wire"
)

// heldShare says which part of the pool, one in so many, pages may take that wait for the disk or are written: one that is slower than the engines publish
// must not keep the whole pool.
const heldShare = 4

// tier is the SSD store as the cache sees it. Its methods are called with the cache's mutex held, those of the store take its own mutex shortly, and what the
// store tells back comes from goroutines that hold neither.
type tier struct {
	store   *ssd.Store
	views   *arena.Views // the pool as the store reads and writes it
	cache   *cache.Cache // set before the cache is asked anything
	demands *demands
}

// priorities are the store's of the cache's.
var priorities = [...]ssd.Priority{cache.ReadDemand: ssd.Demand, cache.ReadPrepare: ssd.Prepare, cache.ReadWarm: ssd.Warm}

// openTier opens the store, which reads and writes the pool through views. The error says what to change; nothing is left open then.
func openTier(cfg config.SSD, pool *arena.Pool, views *arena.Views, log *slog.Logger) (*tier, error) {
	volumes, err := openFolders(cfg)
	if err != nil {
		return nil, err
	}
	t := &tier{views: views, demands: newDemands()}
	var regions [][]byte
	for _, a := range pool.Arenas() {
		regions = append(regions, views.Arena(a.ID))
	}
	t.store, err = ssd.Open(ssd.Config{
		Volumes: volumes, CapacityBytes: cfg.CapacityBytes, Backend: cfg.Backend, ReadInflight: int(cfg.ReadsInflight), WriteInflight: int(cfg.WritesInflight),
		ReadQueueBytes: cfg.ReadQueueBatches * ssd.BatchBytes, WriteQueueBytes: cfg.WriteQueueBatches * ssd.BatchBytes,
		HeldBytesMax: pool.Bytes() / heldShare, ScrubBytesPerSecond: cfg.ScrubRate, Memory: t.memory, MemoryRegions: regions, Log: log,
	})
	if err != nil {
		if cfg.CapacityDefault && errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w; nobody gave --%s, so that it is the default, %s", err, config.FlagSSDCapacity, config.Find(config.FlagSSDCapacity).Default)
		}
		return nil, fmt.Errorf("--%s: %w", config.FlagSSDPath, err)
	}
	if cfg.FaultInjection != "" {
		log.Warn("the SSD is slow or fails on purpose: never serve with this flag", "flag", "--"+config.FlagSSDFaults, "faults", cfg.FaultInjection)
	}
	tellRecovered(log, t.store.Stats())
	return t, nil
}

// openFolders opens or makes each folder.
func openFolders(cfg config.SSD) (volumes []ssd.VolumeConfig, err error) {
	faults, err := faulty.Parse(cfg.FaultInjection)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", config.FlagSSDFaults, err)
	}
	for _, path := range cfg.Paths {
		folder, err := openFolder(path)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", config.FlagSSDPath, err)
		}
		if cfg.FaultInjection != "" {
			folder = faulty.Wrap(folder, faults)
		}
		volumes = append(volumes, ssd.VolumeConfig{FS: folder, Name: path})
	}
	return volumes, nil
}

// openFolder makes no more than the last folder of a path: where the one above is missing, a device is probably not mounted, and its pages would fill
// another one.
func openFolder(path string) (vfs.FS, error) {
	above := filepath.Dir(path)
	if _, err := os.Stat(above); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("neither %s nor %s is there: mount the device, or make the second (mkdir -p %s)", path, above, above)
	}
	return vfs.NewOS(path)
}

// start lets the tier tell the cache of ends and of pages that it lacks.
func (t *tier) start(c *cache.Cache) {
	t.cache = c
	t.demands.run(t)
}

// tellRecovered logs what the folders held.
func tellRecovered(log *slog.Logger, found ssd.Stats) {
	level, problems := slog.LevelInfo, uint64(0)
	for _, n := range found.RecoveryProblems {
		problems += n
	}
	if problems > 0 {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "SSD tier opened", "capacity_bytes", found.CapacityBytes, "payload_bytes", found.PayloadBytes, "disk_bytes", found.DiskBytes,
		"recovered_pages", found.RecoveredPages, "recovered_bytes", found.StoredBytes, "took", time.Duration(found.RecoverySeconds*float64(time.Second)).Round(time.Millisecond),
		"records_not_used", problems, "problems", found.RecoveryProblems)
}

// close writes what is queued, for a bounded time, and waits for what was submitted. No session may be open any more.
func (t *tier) close() error {
	t.demands.stop()
	return t.store.Close()
}

func (t *tier) memory(location, bytes uint64) []byte {
	at := wire.Location(location)
	return t.views.Slice(at.Arena(), at.Offset(), bytes)
}

// Namespace implements cache.Tier.
func (t *tier) Namespace(identity [32]byte, epoch, pageBytes uint64) uint32 {
	return t.store.Namespace(identity, epoch, pageBytes)
}

// DropNamespace implements cache.Tier.
func (t *tier) DropNamespace(namespace uint32) { t.store.DropNamespace(namespace) }

// ReleaseNamespace implements cache.Tier.
func (t *tier) ReleaseNamespace(namespace uint32) { t.store.ReleaseNamespace(namespace) }

// Clear implements cache.Tier.
func (t *tier) Clear() { t.store.Clear() }

// Drop implements cache.Tier.
func (t *tier) Drop(namespace uint32, group uint16, key *wire.Key) {
	t.store.Drop(namespace, group, (*ssd.Key)(key))
}

// Stored implements cache.Tier.
func (t *tier) Stored(namespace uint32, group uint16, key *wire.Key) bool {
	return t.store.Stored(namespace, group, (*ssd.Key)(key))
}

// Wanted implements cache.Tier.
func (t *tier) Wanted(namespace uint32, group uint16, key *wire.Key) bool {
	return t.store.Wanted(namespace, group, (*ssd.Key)(key))
}

// ReadRoom implements cache.Tier.
func (t *tier) ReadRoom() int { return t.store.ReadRoom() }

// Expected implements cache.Tier.
func (t *tier) Expected(a cache.Awaited) time.Duration {
	return t.store.Expected(ssd.Awaited{
		Namespace: a.Namespace, Group: a.Group, Reading: pointers(a.Reading), Unread: pointers(a.Unread), UnreadPages: a.UnreadPages, BeforeBytes: a.BeforeBytes,
	})
}

func pointers(keys []*wire.Key) []*ssd.Key {
	out := make([]*ssd.Key, len(keys))
	for i, key := range keys {
		out[i] = (*ssd.Key)(key)
	}
	return out
}

// Read implements cache.Tier.
func (t *tier) Read(p cache.TierPage, priority cache.ReadPriority) bool {
	return t.store.Read(ssd.Read{
		Namespace: p.Namespace, Group: p.Group, Key: ssd.Key(p.Key), Parts: partsOf(p.Parts), Priority: priorities[priority],
		Done: func(r ssd.ReadResult) { t.cache.PageRead(p.Page, r.Digest, r.OK) },
	})
}

// Hasten implements cache.Tier.
func (t *tier) Hasten(namespace uint32, group uint16, key *wire.Key) {
	t.store.Hasten(namespace, group, (*ssd.Key)(key))
}

// Write implements cache.Tier.
func (t *tier) Write(p cache.TierPage) bool {
	return t.store.Write(ssd.Write{
		Namespace: p.Namespace, Group: p.Group, Key: ssd.Key(p.Key), Parts: partsOf(p.Parts),
		Done: func(r ssd.WriteResult) { t.cache.PageWritten(p.Page, r.Digest, r.OK) },
	})
}

// Demanded implements cache.Tier.
func (t *tier) Demanded(namespace uint32, group uint16, keys []wire.Key) {
	t.demands.add(namespace, group, keys)
}

func partsOf(parts []cache.TierPart) []ssd.Part {
	out := make([]ssd.Part, len(parts))
	for i, p := range parts {
		out[i] = ssd.Part{Location: uint64(p.Location), Bytes: p.Bytes}
	}
	return out
}
