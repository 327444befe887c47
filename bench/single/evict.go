package single

import (
	"context"
	"errors"
	"fmt"
	"os"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

// ssdFolder is the folder of the output directory that holds the SSD tiers of this run, each in a folder of its own for as long as its start lives.
const ssdFolder = "ssd"

// evictLimit bounds the tries to empty the Manager's memory. A page that is still leased is none of the measurement's: nothing is under way.
const evictLimit = 3

// evict brings a prompt to where the SSD tier alone has it: other prompts press it out of device memory, everything that waits is written, and the Manager
// empties its memory. The engine alone has nothing more to lose after the pressure.
func (s *stage) evict(ctx context.Context, place record.Place, name string) error {
	if err := s.pressure(ctx, place, name+"/eviction"); err != nil {
		return err
	}
	if s.backend != record.OrbitKV {
		return nil
	}
	leased := 0
	for range evictLimit {
		// At rest nothing waits to be written, so that the tier has what it was given.
		if _, err := s.atRest(ctx); err != nil {
			return err
		}
		var err error
		if _, leased, err = s.stack.CleanMemory(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &broken{record.AtServe, record.PartManager, fmt.Sprintf("its memory could not be emptied: %v", err), s.inside(s.logs(record.PartManager))}
		}
		s.settled = nil // The counters of evictions moved.
		if leased == 0 {
			return nil
		}
	}
	return &broken{
		record.AtServe, record.PartManager,
		fmt.Sprintf("%d pages were still leased when its memory was emptied, with no request under way: what is asked for next could come from there", leased), s.inside(s.logs(record.PartManager)),
	}
}

// tierFolder is where the SSD tier of a start lies; empty for a start that has none. The Manager makes it, in a folder that is there.
func (r *run) tierFolder(backend string, pass int, control bool) (string, error) {
	if r.ask.SSDGiB == 0 || backend != record.OrbitKV || control {
		return "", nil
	}
	if err := os.MkdirAll(r.dir.Path(ssdFolder), 0o700); err != nil {
		return "", fmt.Errorf("a folder for the SSD tier: %w", err)
	}
	return r.dir.Path(ssdFolder, fmt.Sprintf("%s-p%d-a%d", backend, pass, r.dir.Attempt())), nil
}

// proveTier keeps what the SSD tier of a start writes to, and refuses one that goes through the page cache: its hits would be hits in memory.
func (r *run) proveTier(stack Stack, log string) error {
	v, err := stack.Volume()
	if err != nil {
		return &launch.StartError{Part: record.PartManager, Reason: err.Error(), Log: log}
	}
	v.File = r.inside(v.File)
	how := fmt.Sprintf("held (flags %v of the Manager's descriptors)", v.Flags)
	if !v.Direct {
		how = fmt.Sprintf("refused: the Manager's descriptors have the flags %v", v.Flags)
	}
	storage := record.Storage{Use: "ssd", Path: v.File, Mount: v.Findmnt.Target, Filesystem: v.Findmnt.FSType, Device: v.Findmnt.Source, Direct: how}
	if err := errors.Join(r.dir.Volume(v), r.keepStorage(storage)); err != nil {
		return err
	}
	if !v.Direct {
		return &launch.StartError{Part: record.PartManager, Log: log, Reason: fmt.Sprintf(
			"its SSD tier in %s goes through the page cache (flags %v without O_DIRECT), so that its hits would be hits in memory: name an --%s on a file system such as ext4 or xfs",
			v.File, v.Flags, FlagOutput)}
	}
	return nil
}

// tidyTiers removes what a measurement that was killed left of its SSD tiers. No other process has the output directory.
func (r *run) tidyTiers() error { return os.RemoveAll(r.dir.Path(ssdFolder)) }
