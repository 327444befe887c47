package ssd

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"orbitkv/internal/vfs"
)

// Defaults of Config.
const (
	BatchBytes             = 32 << 20 // the unit of queue depths, and the most payload of one group commit
	DefaultReadInflight    = 16
	DefaultReadQueueBytes  = 2 * BatchBytes
	DefaultWriteInflight   = 2
	DefaultWriteQueueBytes = 8 * BatchBytes
)

// Bounds.
const (
	VolumesMax       = 64
	NamespacesMax    = 4096                   // that are registered or have pages; of those that nobody uses the oldest go first
	PageBytesMax     = 4 << 30                // padded
	groupPagesMax    = 1024                   // pages of one group commit
	readyPagesMax    = 8                      // pages that have a place and wait for the device
	readyBytesMax    = BatchBytes / 8         // of these, and one page at least
	groupWait        = 200 * time.Millisecond // how long a page that was written waits for others to join its commit
	drainWait        = 5 * time.Second        // how long Close writes what is queued
	failuresInARow   = 5                      // failed transfers of one direction after which a volume is off, or takes no writes
	retryEvery       = time.Minute            // how often a volume that takes no writes since its file system was full is tried again
	unclaimedFor     = 24 * time.Hour         // how long pages of an epoch that nobody registers are kept
	retainedPercent  = 80                     // of a volume's payload: the most that retained pages hold
	scrubChunkBytes  = 1 << 20                // one read of scrubber and verifier
	sweepRecords     = 1024                   // records of the index that one hold of the mutex looks at
	evictionsMax     = 256                    // pages that one hold of the mutex evicts
	volumeBytesMin   = 24 << 20               // share of the capacity below which a volume is refused: the index log takes most of it
	pageShareBytes   = 32 << 10               // of the share for each page that the index log has room for
	reclaimEffort    = 4                      // a page that finds no room may evict this many times its own bytes
	warnEvery        = time.Second            // a volume warns of failed or damaged pages no more often
	hangsAfter       = 30 * time.Second       // a read that has been with the device for so long: it hangs, and its pages are misses until it answers
	presenceTick     = 5 * time.Second        // how often the files, transfers that hang and volumes to be tried again are looked for
	housekeepingTick = 10 * time.Minute       // how often unclaimed namespaces are looked at
)

// Config is what a Store is made with. A zero field takes its default.
type Config struct {
	Volumes             []VolumeConfig
	CapacityBytes       uint64                              // hard limit of the bytes on disk of all volumes, each of which has an equal share; zero only looks: it takes volumes as they are, makes and writes nothing, and changes the index log only to forget pages that are damaged
	Backend             string                              // auto, uring or pool; see package blockio
	ReadInflight        int                                 // pages that a volume reads at a time
	ReadQueueBytes      uint64                              // of pages that wait to be read, and at least one page
	WriteInflight       int                                 // pages that a volume writes at a time
	WriteQueueBytes     uint64                              // of pages that wait to be written, and at least one page; volumes share it equally
	HeldBytesMax        uint64                              // of pages that wait, are being written or wait for their record, and at least one page; default and most: the queue, and two batches a volume
	ScrubBytesPerSecond uint64                              // zero: no scrubbing
	Memory              func(location, bytes uint64) []byte // of a part of a page; called with the mutex held, so that it must not block or call the store
	MemoryRegions       [][]byte                            // that Memory hands out parts of, to be registered with io_uring
	Log                 *slog.Logger
	Now                 func() time.Time
	Seed                uint64 // of the index's hash; zero takes one from the system
}

// VolumeConfig is one folder of the store.
type VolumeConfig struct {
	FS   vfs.FS
	Name string // for people; empty takes the folder's path
}

func (cfg Config) withDefaults() Config {
	setDefault(&cfg.Backend, "auto")
	setDefault(&cfg.ReadInflight, DefaultReadInflight)
	setDefault(&cfg.ReadQueueBytes, DefaultReadQueueBytes)
	setDefault(&cfg.WriteInflight, DefaultWriteInflight)
	setDefault(&cfg.WriteQueueBytes, DefaultWriteQueueBytes)
	setDefault(&cfg.HeldBytesMax, math.MaxUint64)
	cfg.HeldBytesMax = min(cfg.HeldBytesMax, cfg.WriteQueueBytes+uint64(len(cfg.Volumes))*2*BatchBytes)
	setDefault(&cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Volumes = append([]VolumeConfig(nil), cfg.Volumes...)
	for i := range cfg.Volumes {
		if v := &cfg.Volumes[i]; v.Name == "" && v.FS != nil {
			v.Name = v.FS.Name()
		}
	}
	return cfg
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (cfg *Config) check() error {
	switch {
	case len(cfg.Volumes) == 0:
		return errors.New("ssd: no folder is given")
	case len(cfg.Volumes) > VolumesMax:
		return fmt.Errorf("ssd: %d folders are given, at most %d can be used", len(cfg.Volumes), VolumesMax)
	case cfg.Memory == nil:
		return errors.New("ssd: Config.Memory is missing")
	case cfg.ReadInflight < 0 || cfg.WriteInflight < 0:
		return fmt.Errorf("ssd: %d pages read and %d written at a time: both must be positive", cfg.ReadInflight, cfg.WriteInflight)
	case cfg.CapacityBytes > 0 && cfg.share() < volumeBytesMin:
		return fmt.Errorf("ssd: a capacity of %d bytes over %d folders is %d bytes each, and at least %d are needed: raise the capacity or name fewer folders",
			cfg.CapacityBytes, len(cfg.Volumes), cfg.share(), volumeBytesMin)
	}
	for _, v := range cfg.Volumes {
		if v.FS == nil {
			return errors.New("ssd: a volume without a folder is given")
		}
	}
	return nil
}

// looks says whether the store only reads what is there.
func (cfg *Config) looks() bool { return cfg.CapacityBytes == 0 }

// share is the part of the capacity that each volume has, in bytes.
func (cfg *Config) share() uint64 { return cfg.CapacityBytes / uint64(len(cfg.Volumes)) }
