package micro

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"orbitkv/internal/ssd"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs"
)

// Sizes of the section recovery.
const (
	recoveryPage      = 4 << 10  // bytes of a page: recovery reads records alone, whatever a page's size
	recoveryShare     = 36 << 10 // bytes of capacity for each page, so that the index log may have as many
	recoveryPagesMin  = 1000
	recoveryPagesMax  = 16 << 20
	recoveryCommit    = 32 << 10 // records of one commit
	recoveryCapacity  = 1 << 30  // at least
	recoveryNamespace = 1        // its number in the log
)

func (o SSDOptions) recoveryBytes() uint64 {
	return max(recoveryCapacity, uint64(o.RecoveryPages)*recoveryShare)
}

// recovery measures how long a store takes to know its pages again: from the records of a log, as after a crash, and from the snapshot that a stop in order
// leaves.
func (o SSDOptions) recovery(ctx context.Context, r *report) (err error) {
	dir, err := os.MkdirTemp(o.Path, "orbitkv-bench-")
	if err != nil {
		return fmt.Errorf("no folder can be made in %s: %w: name a folder that you may write to", o.Path, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	disk, err := vfs.NewOS(dir)
	if err != nil {
		return err
	}
	if _, err := o.reopen(disk, 0); err != nil { // makes the volume
		return err
	}
	if err := o.writeLog(ctx, disk, dir); err != nil {
		return err
	}
	for _, what := range []string{"after a crash, from the log", "after a stop, from its snapshot"} {
		took, err := o.reopen(disk, o.RecoveryPages)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		r.add(figure{
			Name: fmt.Sprintf("recovery of %d pages %s", o.RecoveryPages, what), Unit: "ms/M pages", N: o.RecoveryPages, P50: took.Seconds() * 1000 * 1e6 / float64(o.RecoveryPages),
		})
	}
	return nil
}

// reopen opens the store, checks how many pages it found, and closes it in order. Only the opening is timed.
func (o SSDOptions) reopen(disk vfs.FS, want int) (time.Duration, error) {
	begun := time.Now()
	s, err := ssd.Open(ssd.Config{
		Volumes: []ssd.VolumeConfig{{FS: disk}}, CapacityBytes: o.recoveryBytes(), Backend: "pool", Memory: func(uint64, uint64) []byte { return nil },
	})
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	found := s.Stats()
	if found.RecoveredPages != uint64(want) {
		err = fmt.Errorf("%d pages were recovered of %d: %v", found.RecoveredPages, want, found.RecoveryProblems)
	}
	return took, errors.Join(err, s.Close())
}

// writeLog appends the records of as many pages to the index log of a volume, as if they had been stored and the Manager been killed.
func (o SSDOptions) writeLog(ctx context.Context, disk vfs.FS, dir string) error {
	block, err := os.ReadFile(filepath.Join(dir, format.SuperblockName))
	if err != nil {
		return err
	}
	super, err := format.DecodeSuperblock(block)
	if err != nil {
		return err
	}
	log, _, err := journal.Open(disk, super.Volume, journal.Limits{PayloadBytes: super.PayloadBytes})
	if err != nil {
		return err
	}
	log.Namespace(journal.Namespace{Number: recoveryNamespace, Identity: tierIdentity, PageBytes: recoveryPage})
	for i := range o.RecoveryPages {
		log.Put(journal.Put{
			Namespace: recoveryNamespace, Key: key(uint64(i)), Offset: format.ScratchBytes + uint64(i)*format.ExtentBytes(recoveryPage), Bytes: recoveryPage,
			Digest: [16]byte{1}, Sequence: log.NextSequence(),
		})
		if (i+1)%recoveryCommit == 0 {
			if err := errors.Join(log.Commit(), ctx.Err()); err != nil {
				return errors.Join(err, log.Close())
			}
		}
	}
	return errors.Join(log.Commit(), log.Close())
}
