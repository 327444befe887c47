package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// begin is how a record begins in a log.
var begin = []byte("cache_timeline {")

// The stages that this package knows more of than their names. The adapters and the Manager write them.
const (
	Process       = "process" // the first of a process; it belongs to no request
	Queued        = "queued"
	ReadStart     = "read_start"
	HostReady     = "host_ready"
	Staged        = "staged"
	RestoreSubmit = "restore_submit"
	LayerReady    = "layer_ready"
	LayerUsed     = "layer_used"
	GPUReady      = "gpu_ready"
	FirstUse      = "first_use"
)

// Bounds of one record.
const (
	LineBytesMax  = 64 << 10 // of a log, that may carry one
	stageBytesMax = 64
	textBytesMax  = 256
	layersMax     = 4096
	elapsedMax    = 365 * 24 * time.Hour
	momentMax     = 1 << 62 // so that no difference overflows
)

// Absent is the value of a number that a record does not say.
const Absent = -1

// Record is one record of a timeline.
type Record struct {
	Stage     string
	Request   string // empty for Process
	PID       int64
	At        int64 // of the process's monotonic clock, ns
	Engine    string
	Run       Run
	Boot      string // of Process
	Namespace string // of Process, the time namespace
	Details
}

// Run says which start of which backend of a measurement a record is of; logs say nothing of it.
type Run struct {
	Backend       string
	Pass, Attempt int64 // Absent where it is not said
}

// Details are what a stage says besides its time. Numbers may be Absent.
type Details struct {
	Layer    int32
	Elapsed  time.Duration
	Pages    int64
	Hits     int64 // leading pages that a query gets
	Bytes    int64
	Requests int64 // of a batch
	Failed   bool
	Stopped  bool
	Warmup   bool // of a hint, which reads ahead of the request
}

// written is a record as it stands in a log.
type written struct {
	Stage     string `json:"stage"`
	Request   string `json:"request_id"`
	PID       *int64 `json:"pid"`
	At        *int64 `json:"monotonic_ns"`
	Engine    string `json:"engine"`
	Backend   string `json:"backend"`
	Pass      *int64 `json:"pass"`
	Attempt   *int64 `json:"attempt"`
	Boot      string `json:"boot_id"`
	Namespace string `json:"time_namespace"`
	Layer     *int64 `json:"layer"`
	ElapsedUS *int64 `json:"elapsed_us"`
	Pages     *int64 `json:"pages"`
	Hits      *int64 `json:"hit_blocks"`
	Bytes     *int64 `json:"bytes"`
	Requests  *int64 `json:"requests"`
	Success   *bool  `json:"success"`
	Stopped   bool   `json:"stopped"`
	Warmup    bool   `json:"warmup"`
}

// Cut returns a line of a log from the JSON of its first record on. found is false when it carries none.
func Cut(line []byte) (text []byte, found bool) {
	at := bytes.Index(line, begin)
	if at < 0 {
		return nil, false
	}
	return line[at+len(begin)-1:], true
}

// Next returns the first record that a line of a log carries, and the rest of the line behind it. found is false when the line carries none. An error says
// what is wrong with a record that begins and is none; the rest may carry another, since lines of several processes may run into one another.
func Next(line []byte) (r Record, rest []byte, found bool, err error) {
	text, found := Cut(line)
	if !found {
		return Record{}, nil, false, nil
	}
	var w written
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&w); err != nil {
		return Record{}, text, true, plain(err)
	}
	r, err = w.record()
	return r, text[decoder.InputOffset():], true, err
}

// Parse returns the record that a whole text is.
func Parse(text []byte) (Record, error) {
	var w written
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&w); err != nil {
		return Record{}, plain(err)
	}
	if rest := bytes.TrimSpace(text[decoder.InputOffset():]); len(rest) > 0 {
		return Record{}, errors.New("more than one value in the line")
	}
	return w.record()
}

// plain says what JSON's reader found, without names of this package's types.
func plain(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return fmt.Errorf("%s is a %s", wrong.Field, wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("the record is a %s", wrong.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the record is cut off")
	}
	return fmt.Errorf("the record is no JSON: %w", err)
}

func (w *written) record() (Record, error) {
	switch {
	case w.Stage == "":
		return Record{}, errors.New("no stage")
	case w.PID == nil || *w.PID < 0:
		return Record{}, errors.New("no pid")
	case w.At == nil:
		return Record{}, errors.New("no monotonic_ns")
	case *w.At < 0 || *w.At > momentMax:
		return Record{}, fmt.Errorf("monotonic_ns of %d", *w.At)
	case w.Request == "" && w.Stage != Process:
		return Record{}, errors.New("no request_id")
	case len(w.Stage) > stageBytesMax:
		return Record{}, fmt.Errorf("a stage of %d bytes", len(w.Stage))
	}
	for _, text := range []struct{ name, value string }{
		{"request_id", w.Request}, {"engine", w.Engine}, {"backend", w.Backend}, {"boot_id", w.Boot}, {"time_namespace", w.Namespace},
	} {
		if len(text.value) > textBytesMax {
			return Record{}, fmt.Errorf("a %s of %d bytes", text.name, len(text.value))
		}
	}
	r := Record{
		Stage: w.Stage, Request: w.Request, PID: *w.PID, At: *w.At, Engine: w.Engine, Boot: w.Boot, Namespace: w.Namespace,
		Run: Run{w.Backend, or(w.Pass), or(w.Attempt)},
		Details: Details{
			Layer: Absent, Elapsed: Absent, Pages: count(w.Pages), Hits: count(w.Hits), Bytes: count(w.Bytes), Requests: count(w.Requests),
			Failed: w.Success != nil && !*w.Success, Stopped: w.Stopped, Warmup: w.Warmup,
		},
	}
	if w.Layer != nil {
		if *w.Layer < 0 || *w.Layer >= layersMax {
			return Record{}, fmt.Errorf("layer %d", *w.Layer)
		}
		r.Layer = int32(*w.Layer)
	}
	if w.ElapsedUS != nil {
		if *w.ElapsedUS < 0 || *w.ElapsedUS > elapsedMax.Microseconds() {
			return Record{}, fmt.Errorf("elapsed_us of %d", *w.ElapsedUS)
		}
		r.Elapsed = time.Duration(*w.ElapsedUS) * time.Microsecond
	}
	return r, nil
}

func or(n *int64) int64 {
	if n == nil {
		return Absent
	}
	return *n
}

// count is a number of things, which cannot be negative.
func count(n *int64) int64 { return max(or(n), Absent) }
