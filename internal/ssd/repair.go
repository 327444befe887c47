package ssd

import (
	"context"
	"errors"
	"fmt"

	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs"
)

// RebuildIndex makes the index log of a volume anew from what stands beside each page, in place of the log that there is. No process may have the volume
// open. progress is called with bytes of the payload. It returns how many pages were found, and what was not used, by reason; after an error the
// folder is as it was.
func RebuildIndex(ctx context.Context, folder vfs.FS, progress func(done, total uint64)) (pages uint64, problems map[string]uint64, err error) {
	v := &volume{store: &Store{}, name: folder.Name(), fs: folder}
	err = v.openPayload()
	if err == nil {
		var state journal.State
		state, err = journal.Rebuild(ctx, folder, v.payload, v.id, v.limits(), progress)
		pages, problems = uint64(len(state.Puts)), state.Problems
	}
	if v.payload != nil {
		err = errors.Join(err, v.payload.Close())
	}
	if err != nil {
		return 0, nil, fmt.Errorf("ssd: %s: %w", v.name, err)
	}
	return pages, problems, nil
}
