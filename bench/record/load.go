package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Run is everything that an output directory holds. It does not change after Load and may be read by many goroutines.
type Run struct {
	Path         string
	Manifest     Manifest
	Samples      []Sample
	Windows      []Window
	Finished     []Finished
	Failures     []Failure
	Attributions []Attribution
	Drains       []Drain
	Timeline     []map[string]any
	Volumes      []Volume // that SSD tiers wrote to
	Notes        []string // what a reader must know of the files themselves

	finishedBy map[string]int // attempt by cell
}

// Load reads an output directory, finished or not, without locking it. A last line that was cut off is noted in Run.Notes; any other line that
// is not a row is an error that names file and line.
func Load(path string) (*Run, error) {
	manifest, err := readManifest(path)
	if err != nil {
		return nil, err
	}
	r := &Run{Path: path, Manifest: manifest}
	if r.Volumes, err = readVolumes(path); err != nil {
		return nil, err
	}
	for _, file := range r.files() {
		torn, err := file.read(path)
		if err != nil {
			return nil, err
		}
		if torn != nil {
			r.Notes = append(r.Notes, torn.note(file.name))
		}
	}
	r.finishedBy = make(map[string]int, len(r.Finished))
	for _, finished := range r.Finished {
		r.finishedBy[finished.Cell] = finished.Attempt
	}
	return r, nil
}

// Final says whether a row belongs to the attempt that finished its cell. Rows of unfinished cells are not final.
func (r *Run) Final(p Place) bool {
	if r.finishedBy != nil {
		attempt, ok := r.finishedBy[p.Cell]
		return ok && attempt == p.Attempt
	}
	for _, finished := range r.Finished {
		if finished.Cell == p.Cell {
			return finished.Attempt == p.Attempt
		}
	}
	return false
}

// rows is one file of rows and where they go.
type rows struct {
	name string
	add  func(line []byte) error
}

// files lists the files of rows in the order in which they are read: cells first, so that in a directory that is being written every cell that
// reads as finished has its rows.
func (r *Run) files() []rows {
	seen := map[string]bool{}
	return []rows{
		{cellsFile, func(line []byte) error {
			var one []Finished
			if err := decode(line, &one); err != nil {
				return err
			}
			if cell := one[0].Cell; cell == "" || seen[cell] {
				return fmt.Errorf("cell %q has no name or is finished twice", cell)
			}
			seen[one[0].Cell] = true
			r.Finished = append(r.Finished, one...)
			return nil
		}},
		{samplesFile, func(line []byte) error { return decode(line, &r.Samples) }},
		{windowsFile, func(line []byte) error { return decode(line, &r.Windows) }},
		{failuresFile, func(line []byte) error { return decode(line, &r.Failures) }},
		{attributionsFile, func(line []byte) error { return decode(line, &r.Attributions) }},
		{drainsFile, func(line []byte) error { return decode(line, &r.Drains) }},
		{timelineFile, func(line []byte) error { return decode(line, &r.Timeline) }},
	}
}

// decode appends the one row of a line. A field that the format does not have is an error: the row was written by something else.
func decode[T any](line []byte, to *[]T) error {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	var row T
	if err := decoder.Decode(&row); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value in the line")
	}
	*to = append(*to, row)
	return nil
}

// tear is a last line without its end.
type tear struct {
	line  int
	at    int64 // offset of its first byte
	text  []byte
	whole bool // only its newline is missing: it was read as a row
}

// read hands every line of a file to add; an absent file has no rows. It returns the tear at its end, if there is one.
func (f rows) read(folder string) (*tear, error) {
	path := filepath.Join(folder, f.name)
	file, err := openPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading rows: %w", err)
	}
	defer file.Close()
	reader := bufio.NewReaderSize(file, LineBytesMax)
	var at int64
	for number := 1; ; number++ {
		line, err := reader.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil, nil
		case errors.Is(err, io.EOF):
			failed := f.add(line)
			return &tear{line: number, at: at, text: bytes.Clone(line), whole: failed == nil}, nil
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("%s:%d: the line is longer than %d bytes", path, number, LineBytesMax)
		case err != nil:
			return nil, fmt.Errorf("reading rows: %w", err)
		}
		at += int64(len(line))
		if at > FileBytesMax {
			return nil, fmt.Errorf("%s is larger than %d bytes, the bound of a file of rows", path, int64(FileBytesMax))
		}
		if err := f.add(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w; the file is damaged: take the folder from a copy, or begin a new run", path, number, err)
		}
	}
}

// openPlain opens an ordinary file; to open another might wait for ever.
func openPlain(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no ordinary file", path)
	}
	return os.Open(path)
}

// note tells a reader what a tear means.
func (t *tear) note(name string) string {
	if t.whole {
		return fmt.Sprintf("%s:%d: the last line lacked its newline; its row is whole and was read", name, t.line)
	}
	const shown = 120
	text, more := t.text, ""
	if len(text) > shown {
		text, more = text[:shown], fmt.Sprintf(" and %d bytes more", len(t.text)-shown)
	}
	return fmt.Sprintf("%s:%d: the last line was cut off and is no row: %q%s", name, t.line, text, more)
}

// mend makes the file end with a whole line again.
func (t *tear) mend(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("mending rows: %w", err)
	}
	if t.whole {
		_, err = file.Write([]byte{'\n'})
	} else {
		err = file.Truncate(t.at)
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("mending rows: %w", err)
	}
	return nil
}

// readManifest reads manifest.json of an output directory.
func readManifest(folder string) (Manifest, error) {
	var m Manifest
	path := filepath.Join(folder, manifestFile)
	text, err := readBounded(path, ManifestBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("%s is not an output directory of a measurement: it has no %s", folder, manifestFile)
	}
	if err != nil {
		return m, fmt.Errorf("reading a manifest: %w", err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s is damaged: %w: take the folder from a copy, or begin a new run", path, err)
	}
	if m.Format != Format {
		return m, fmt.Errorf("%s has format %d, this version reads format %d; use the orbitkv that wrote it (version %s)", path, m.Format, Format, m.Version)
	}
	return m, nil
}

// readBounded reads a whole ordinary file of at most so many bytes.
func readBounded(path string, most int) ([]byte, error) {
	file, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return text, err
}
