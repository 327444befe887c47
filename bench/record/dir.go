package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the files of an output directory. A writer refuses what a reader would refuse.
const (
	LineBytesMax     = 4 << 20  // of one row, its newline included
	FileBytesMax     = 4 << 30  // of one file of rows
	ManifestBytesMax = 16 << 20 // of manifest.json
	AttemptsMax      = 1000     // starts of one run
)

// linkTolerance is how far the link of a later attempt may be from that of the first before a reader is told, as a share of the first.
const linkTolerance = 0.1

// The files of an output directory. A file of rows exists once it has a row.
const (
	manifestFile     = "manifest.json"
	samplesFile      = "samples.jsonl"
	windowsFile      = "windows.jsonl"
	cellsFile        = "cells.jsonl"
	failuresFile     = "failures.jsonl"
	attributionsFile = "attributions.jsonl"
	drainsFile       = "drains.jsonl"
	timelineFile     = "timeline.jsonl"
	storageFile      = "storage.json"
	logsFolder       = "logs"
)

// ErrClosed is what a row meets after Close.
var ErrClosed = errors.New("the output directory was closed")

// outcomes are the words that an attempt may end with.
var outcomes = []string{Complete, Part, Failed, Interrupted}

// Dir is an output directory that is being written; the process that has it holds its lock.
type Dir struct {
	path    string
	attempt int

	mu       sync.Mutex
	lock     *os.File // the directory itself, with an exclusive flock
	manifest Manifest
	files    map[string]*rowFile
	done     map[string]bool
	closed   bool
}

// rowFile is one open file of rows.
type rowFile struct {
	file   *os.File
	size   int64
	broken error // a row that is in the file in part and could not be taken back
}

// Create begins a run in a folder that is absent or empty, and locks it. The folder is readable by its owner alone. It returns an error that
// names what is in the folder, or that another run holds it.
func Create(path string, m Manifest, command []string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the output directory: %w: name one that is absent or empty, where you may write", err)
	}
	d, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := vacant(path); err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	m.Format = Format
	d.manifest = m
	return d.begin(command)
}

// Reopen goes on with a run that was cut off. What was asked for, the model, the engine's packages and the version must be those that the
// directory keeps; the error names each difference. A machine or a link that differs is noted in the manifest. A row that was cut off in its last line is
// taken out of the file, and the note keeps its beginning.
func Reopen(path string, m Manifest, command []string) (*Dir, error) {
	d, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := d.takeUp(m); err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	return d.begin(command)
}

// open locks the directory for this process; the kernel gives the lock back when the process ends, however it ends.
func open(path string) (*Dir, error) {
	lock, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the output directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is being written by another run; wait for its end, or name another folder", path)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return &Dir{path: path, lock: lock, files: map[string]*rowFile{}, done: map[string]bool{}}, nil
}

// takeUp reads what an earlier attempt left and refuses what would not be one run with it.
func (d *Dir) takeUp(m Manifest) error {
	kept, err := readManifest(d.path)
	if err != nil {
		return err
	}
	if err := sameRun(kept, m); err != nil {
		return fmt.Errorf("%s cannot be resumed: %w", d.path, err)
	}
	if len(kept.Attempts) >= AttemptsMax {
		return fmt.Errorf("%s was started %d times, which is the bound; begin a new run", d.path, len(kept.Attempts))
	}
	d.manifest = kept
	attempt := len(kept.Attempts) + 1
	for _, difference := range Differences(kept.Machine, m.Machine) {
		d.manifest.Notes = append(d.manifest.Notes, fmt.Sprintf("attempt %d found the machine otherwise than the first: %s", attempt, difference))
	}
	if was, is := kept.Probe.LinkBytesPerS, m.Probe.LinkBytesPerS; math.Abs(is-was) > was*linkTolerance {
		d.manifest.Notes = append(d.manifest.Notes, fmt.Sprintf("attempt %d measured a link of %.3g GB/s and the first %.3g: shares of the link are of the first", attempt, is/1e9, was/1e9))
	}
	var run Run
	for _, file := range run.files() {
		torn, err := file.read(d.path)
		if err != nil {
			return err
		}
		if torn == nil {
			continue
		}
		if err := torn.mend(filepath.Join(d.path, file.name)); err != nil {
			return err
		}
		d.manifest.Notes = append(d.manifest.Notes, fmt.Sprintf("before attempt %d: %s", attempt, torn.note(file.name)))
	}
	for _, finished := range run.Finished {
		d.done[finished.Cell] = true
	}
	return nil
}

// sameRun compares what makes two attempts one run.
func sameRun(kept, asked Manifest) error {
	var all []string
	if kept.Version != asked.Version {
		all = append(all, Difference{"version", kept.Version, asked.Version}.String())
	}
	for _, part := range []struct {
		name        string
		kept, asked any
	}{
		{"options", kept.Options, asked.Options},
		{"model", kept.Model, asked.Model},
		{"packages", kept.Probe.Packages, asked.Probe.Packages},
	} {
		for _, difference := range Differences(part.kept, part.asked) {
			difference.Name = part.name + "." + difference.Name
			all = append(all, difference.String())
		}
	}
	if len(all) > 0 {
		return fmt.Errorf("it would not be the same run: %s; repeat the first command with --resume, or name a new folder", strings.Join(all, "; "))
	}
	return nil
}

// begin notes the attempt and writes the manifest.
func (d *Dir) begin(command []string) (*Dir, error) {
	now := time.Now().UTC()
	if d.manifest.Started.IsZero() {
		d.manifest.Started = now
	}
	d.manifest.Attempts = append(d.manifest.Attempts, Attempt{Command: slices.Clone(command), Started: now})
	d.attempt = len(d.manifest.Attempts)
	err := os.MkdirAll(d.Path(logsFolder), 0o700)
	if err == nil {
		err = d.save()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("beginning a run in %s: %w", d.path, err), d.lock.Close())
	}
	return d, nil
}

// listed names the first entries of a folder.
func listed(entries []fs.DirEntry) string {
	const shown = 5
	var names []string
	for _, entry := range entries[:min(len(entries), shown)] {
		names = append(names, entry.Name())
	}
	if more := len(entries) - shown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// Attempt returns the number of this start; the first is 1. Every row carries it.
func (d *Dir) Attempt() int { return d.attempt }

// Path returns a path inside the directory.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Done returns the cells that are finished, by this attempt or an earlier one. The map is the caller's own.
func (d *Dir) Done() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.done)
}

// Sample keeps one request.
func (d *Dir) Sample(s Sample) error { return d.append(samplesFile, s.Attempt, s) }

// Window keeps one span of requests.
func (d *Dir) Window(w Window) error { return d.append(windowsFile, w.Attempt, w) }

// Failure keeps what could not be measured.
func (d *Dir) Failure(f Failure) error { return d.append(failuresFile, f.Attempt, f) }

// Attribution keeps the control of one differing prompt.
func (d *Dir) Attribution(a Attribution) error { return d.append(attributionsFile, a.Attempt, a) }

// Drain keeps the check at the end of a backend.
func (d *Dir) Drain(drain Drain) error { return d.append(drainsFile, drain.Attempt, drain) }

// Timeline keeps one record of the transfers' timeline.
func (d *Dir) Timeline(record map[string]any) error { return d.append(timelineFile, d.attempt, record) }

// Finish says that a cell has every row it will have. The cell's rows reach the disk before it does, so that even after a power cut a cell that
// reads as finished has its rows. A cell that is finished already is an error.
func (d *Dir) Finish(f Finished) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.Cell == "" {
		return errors.New("finishing a cell without a name")
	}
	if d.done[f.Cell] {
		return fmt.Errorf("cell %s is finished already", f.Cell)
	}
	for name, rows := range d.files {
		if err := rows.file.Sync(); err != nil {
			return fmt.Errorf("writing %s to the disk: %w", d.Path(name), err)
		}
	}
	if err := d.appendLocked(cellsFile, f.Attempt, f); err != nil {
		return err
	}
	if err := d.files[cellsFile].file.Sync(); err != nil {
		return fmt.Errorf("writing %s to the disk: %w", d.Path(cellsFile), err)
	}
	d.done[f.Cell] = true
	return nil
}

func (d *Dir) append(name string, attempt int, row any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.appendLocked(name, attempt, row)
}

// appendLocked writes one row in one call; a row that was written in part is taken back, so that the file keeps whole lines.
func (d *Dir) appendLocked(name string, attempt int, row any) error {
	if d.closed {
		return fmt.Errorf("%s: %w", d.path, ErrClosed)
	}
	if attempt != d.attempt {
		return fmt.Errorf("a row for %s says attempt %d, this is attempt %d", name, attempt, d.attempt)
	}
	line, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("a row for %s: %w", name, err)
	}
	line = append(line, '\n')
	if len(line) > LineBytesMax {
		return fmt.Errorf("a row for %s has %d bytes, at most %d are kept", name, len(line), LineBytesMax)
	}
	rows, err := d.file(name)
	if err != nil {
		return err
	}
	return rows.append(line)
}

// file opens a file of rows when its first row comes.
func (d *Dir) file(name string) (*rowFile, error) {
	if rows := d.files[name]; rows != nil {
		return rows, nil
	}
	file, err := os.OpenFile(d.Path(name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a file of rows: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening a file of rows: %w", err), file.Close())
	}
	d.files[name] = &rowFile{file: file, size: info.Size()}
	return d.files[name], nil
}

func (r *rowFile) append(line []byte) error {
	if r.broken != nil {
		return r.broken
	}
	if r.size+int64(len(line)) > FileBytesMax {
		return fmt.Errorf("%s would pass %d bytes, the bound of a file of rows; split the run into several output directories", r.file.Name(), int64(FileBytesMax))
	}
	n, err := r.file.Write(line)
	if err == nil {
		r.size += int64(n)
		return nil
	}
	err = fmt.Errorf("writing a row: %w%s", err, remedy(err))
	if n > 0 {
		if cut := r.file.Truncate(r.size); cut != nil {
			r.broken = fmt.Errorf("%w; the part that was written could not be taken back: %w", err, cut)
			return r.broken
		}
	}
	return err
}

// Update changes the manifest; whoever reads the file sees it before the change or after it. The function must not call the Dir.
func (d *Dir) Update(change func(*Manifest)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s: %w", d.path, ErrClosed)
	}
	change(&d.manifest)
	return d.save()
}

func (d *Dir) save() error {
	text, err := json.MarshalIndent(d.manifest, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", manifestFile, err)
	}
	if len(text) > ManifestBytesMax {
		return fmt.Errorf("%s would have %d bytes, at most %d are kept", manifestFile, len(text), ManifestBytesMax)
	}
	return replace(d.Path(manifestFile), append(text, '\n'))
}

// remedy says what helps against an error of a disk; nothing where nothing is known to.
func remedy(err error) string {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return ": make room and go on by --resume"
	}
	return ""
}

// replace puts a file in the place of another in one step. What lies where the new one is written is left over from a crash, or not this
// package's: it is removed, and not written through.
func replace(path string, content []byte) error {
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = next.Write(content)
	err = errors.Join(err, next.Sync(), next.Close())
	if err != nil {
		return fmt.Errorf("writing %s: %w%s", path, err, remedy(err))
	}
	return os.Rename(path+".new", path)
}

// Close ends the attempt with one of complete, part, failed and interrupted, and gives the lock back. A second call does nothing.
func (d *Dir) Close(outcome string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if !slices.Contains(outcomes, outcome) {
		return fmt.Errorf("an attempt ends as one of %s, not as %q", strings.Join(outcomes, ", "), outcome)
	}
	d.closed = true
	var all []error
	for _, rows := range d.files {
		all = append(all, rows.file.Sync(), rows.file.Close())
	}
	last := &d.manifest.Attempts[d.attempt-1]
	last.Ended, last.Outcome = time.Now().UTC(), outcome
	all = append(all, d.save(), d.lock.Close())
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("closing %s: %w", d.path, err)
	}
	return nil
}
