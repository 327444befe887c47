package journal

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

// The reasons why something in a log does not count. Each is a miss, never a fault of the volume.
const (
	Header           = "header"            // the log's header is damaged: nothing of the log counts
	Torn             = "torn"              // the log ends in something that is neither record nor room, or before its snapshot does
	Damaged          = "crc"               // bytes that are no record, with records behind them
	Stale            = "stale"             // a record of another log or another place in this one, a page from before the last clear; in a repair, a page of another volume
	Duplicate        = "duplicate"         // a page was stored already under the same key; the later one counts
	UnknownNamespace = "unknown_namespace" // a page of a number that stands for no namespace, or for another one than when it was written
	OutOfBounds      = "out_of_bounds"     // a page that does not lie in the payload file
	Overlapping      = "overlapping"       // a page over which a later one was written
	Unreadable       = "unreadable"        // a block of the payload that the device does not give; a repair alone meets it
)

// Reasons are all of them.
var Reasons = []string{Header, Torn, Damaged, Stale, Duplicate, UnknownNamespace, OutOfBounds, Overlapping, Unreadable}

// State is what a volume holds.
type State struct {
	Namespaces []Namespace
	Puts       []Put             // disjoint, each of a known namespace and inside the payload; the oldest use first
	Problems   map[string]uint64 // reason to count
	Records    uint64            // places of the log up to the last one that is not zeros
	Bytes      int64             // size of the log
	Anew       bool              // there was no valid log: an empty one was made
}

// ErrNoLog says that there is no index log, or that its header is damaged, so that nothing of it counts.
var ErrNoLog = errors.New("there is no valid index")

// ErrOtherVolume says that an index log belongs to another volume than the folder it lies in.
var ErrOtherVolume = errors.New("the index log belongs to another volume")

// Open opens the index log of a volume and says what it holds, or makes an empty one where there is none. It reads the log alone. A log with
// any problem is replaced by one that says what was found good: the next commit never stands behind bytes that nobody understood, and each problem
// is counted once. A log that another volume or a newer version wrote is an error and stays as it is.
func Open(fs vfs.FS, volume [16]byte, limits Limits) (*Journal, State, error) {
	return openLog(fs, volume, limits, (*Journal).recover)
}

// Examine is Open for whoever only looks: it makes and changes nothing, so that the next one finds the same problems, and where there is no valid log it
// fails with ErrNoLog. What the journal is told goes into the log with a Compact alone.
func Examine(fs vfs.FS, volume [16]byte, limits Limits) (*Journal, State, error) {
	return openLog(fs, volume, limits, (*Journal).read)
}

func openLog(fs vfs.FS, volume [16]byte, limits Limits, load func(*Journal, Limits, *State) error) (*Journal, State, error) {
	j := &Journal{fs: fs, volume: volume, namespaces: newTable(nil), cleared: limits.Cleared}
	j.startAbove(limits.Cleared)
	state := State{Problems: map[string]uint64{}}
	exists, err := fs.Exists(format.IndexName)
	if err == nil && exists {
		j.file, err = fs.Open(format.IndexName, vfs.Buffered)
	}
	if err != nil {
		return nil, State{}, err
	}
	if err := load(j, limits, &state); err != nil {
		err = remedied(fs, err)
		if j.file != nil {
			err = errors.Join(err, j.file.Close())
		}
		return nil, State{}, err
	}
	return j, state, nil
}

func nothing(func(Put) bool) {}

// recover reads the log into the state and makes the journal ready to append.
func (j *Journal) recover(limits Limits, state *State) error {
	switch err := j.read(limits, state); {
	case errors.Is(err, ErrNoLog):
		state.Anew = true
		return j.replace(j.snapshot(nothing))
	case err != nil:
		return err
	case len(state.Problems) > 0:
		return j.Compact(slices.Values(state.Puts))
	}
	return j.settle()
}

// read reads the log into the state.
func (j *Journal) read(limits Limits, state *State) error {
	if j.file == nil {
		return ErrNoLog
	}
	size, err := j.file.Size()
	if err != nil {
		return err
	}
	state.Bytes = size
	header, err := readHeader(j.file, size)
	switch {
	case errors.Is(err, format.ErrShort), errors.Is(err, format.ErrForeign), errors.Is(err, format.ErrChecksum), errors.Is(err, format.ErrMalformed):
		state.Problems[Header]++
		return fmt.Errorf("%w: %w", ErrNoLog, err)
	case err != nil:
		return err
	case header.Volume != j.volume:
		return ErrOtherVolume
	}
	r := newReplay(header, limits, state.Problems)
	if j.room, err = r.read(j.file, size); err != nil {
		return err
	}
	state.Records = r.used
	r.finish(state)
	j.namespaces = newTable(state.Namespaces)
	j.generation, j.records = header.Generation, state.Records
	j.startAbove(max(r.sequence, limits.Cleared))
	return nil
}

// startAbove lets sequences begin above all that were ever given out: the highest that is recorded or cleared, and those of pages that no record tells of, since
// they were never recorded or the log is lost. The latter is for the clock to say, in microseconds; pages are not written so fast.
func (j *Journal) startAbove(recorded uint64) {
	j.sequence.Store(max(recorded+sequenceGap, uint64(max(0, time.Now().UnixMicro()))))
}

// remedied says of which log an error is, and what to do where something can be done.
func remedied(fs vfs.FS, err error) error {
	err = fmt.Errorf("index log of %s: %w", fs.Name(), err)
	switch {
	case errors.Is(err, format.ErrVersion):
		return fmt.Errorf("%w; start the version that wrote it, or remove the file %s to begin with an empty cache", err, format.IndexName)
	case errors.Is(err, ErrOtherVolume):
		return fmt.Errorf("%w; remove the file %s to begin with an empty cache", err, format.IndexName)
	}
	return err
}

// settle makes durable what was read: a process that was killed may have left records, or the name of the log, that a loss of power would still undo,
// and from here on the caller acts on them. What such a process left of a log that did not come to its name is removed.
func (j *Journal) settle() error {
	if err := j.fs.Remove(format.IndexNewName); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	return j.fs.SyncFolder()
}

// readHeader reads the first block of a log.
func readHeader(file vfs.File, size int64) (format.LogHeader, error) {
	if size < format.LogHeaderBytes {
		return format.LogHeader{}, format.ErrShort
	}
	block := make([]byte, format.LogHeaderBytes)
	if err := file.ReadAt([][]byte{block}, 0); err != nil {
		return format.LogHeader{}, err
	}
	return format.DecodeLogHeader(block)
}
