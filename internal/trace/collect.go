package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Bounds of what is kept in memory. What is beyond is counted in Left.
const (
	RequestsMax  = 10_000
	EventsMax    = 8_192 // of one request
	RecordsMax   = 1_000_000
	ProcessesMax = 1_024
	DamagesMax   = 8 // that are named; all are counted
)

// Damage is a place where a record begins and cannot be read.
type Damage struct {
	File   string
	Line   int
	Reason string
}

// Left counts records that were read and not kept.
type Left struct {
	Requests  int // of requests beyond RequestsMax
	Events    int // beyond EventsMax of one request, or beyond RecordsMax of all
	Processes int // of processes beyond ProcessesMax
}

// Collector reads logs and keeps what they say of requests. Create it with NewCollector.
type Collector struct {
	file      string // that is being read
	line      int
	current   map[processKey]*Source
	lanes     map[clock]int
	requests  map[requestKey]*Request
	order     []*Request
	names     map[string]string // texts that many records share
	records   int
	sources   int
	damages   []Damage
	damaged   int
	left      Left
	files     map[string]bool
	fileOrder []string
}

// processKey tells processes apart. Ids are given again: by another machine or container in another file, by another start in the same.
type processKey struct {
	file string
	run  Run
	pid  int64
}

type requestKey struct {
	run Run
	id  string
}

// NewCollector returns a collector that has read nothing.
func NewCollector() *Collector {
	return &Collector{
		current: map[processKey]*Source{}, lanes: map[clock]int{}, requests: map[requestKey]*Request{}, names: map[string]string{}, files: map[string]bool{},
	}
}

// Read takes the records out of one log, or out of a file of records. The error is the reader's, or says that the name was read before.
func (c *Collector) Read(name string, from io.Reader) error {
	if c.files[name] {
		return fmt.Errorf("%s is named twice: its records would count twice", name)
	}
	c.files[name] = true
	c.fileOrder = append(c.fileOrder, name)
	c.file, c.line = name, 0
	in := bufio.NewReaderSize(from, LineBytesMax)
	bare := false // a file of records, without a mark before each
	for {
		line, err := in.ReadSlice('\n')
		c.line++
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if bare || bytes.Contains(line, begin) {
				c.damage(fmt.Errorf("a line of more than %d bytes", LineBytesMax))
			}
			err = skipLine(in)
		default:
			bare = c.take(line, bare)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s cannot be read: %w", name, err)
		}
	}
}

// skipLine reads up to the end of a line.
func skipLine(in *bufio.Reader) error {
	for {
		if _, err := in.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// take keeps the records of one line. It says whether the file is one of bare records: a line that is one, in a file without marks, shows it.
func (c *Collector) take(line []byte, bare bool) bool {
	if text := bytes.TrimSpace(line); bytes.HasPrefix(text, []byte("{")) && !bytes.Contains(text, begin) {
		r, err := Parse(text)
		switch {
		case err == nil:
			c.Add(r)
			return true
		case bare:
			c.damage(err)
		}
		return bare
	}
	for {
		r, rest, found, err := Next(line)
		switch {
		case !found:
			return bare
		case err != nil:
			c.damage(err)
		default:
			c.Add(r)
		}
		line = rest
	}
}

func (c *Collector) damage(err error) {
	c.damaged++
	if len(c.damages) < DamagesMax {
		c.damages = append(c.damages, Damage{c.file, c.line, err.Error()})
	}
}

// Add keeps one record.
func (c *Collector) Add(r Record) {
	key := processKey{c.file, r.Run, r.PID}
	source := c.current[key]
	if source == nil || r.Stage == Process {
		if c.sources == ProcessesMax {
			c.left.Processes++
			return
		}
		c.sources++
		source = c.newSource(r)
		c.current[key] = source
	}
	if source.Engine == "" {
		source.Engine = c.shared(r.Engine)
	}
	if r.Stage == Process {
		return
	}
	request := c.request(r)
	switch {
	case request == nil:
		c.left.Requests++
	case len(request.events) == EventsMax || c.records == RecordsMax:
		c.left.Events++
	default:
		c.records++
		request.events = append(request.events, Event{Stage: c.shared(r.Stage), At: r.At, Source: source, Details: r.Details})
	}
}

// newSource begins a process, or another life of its id, and gives it its place among the clocks.
func (c *Collector) newSource(r Record) *Source {
	s := &Source{File: c.file, PID: r.PID, Run: r.Run}
	at := clock{boot: r.Boot, namespace: r.Namespace}
	if r.Stage == Process && at.known() {
		s.Known = true
	} else {
		at = clock{alone: s}
	}
	if _, ok := c.lanes[at]; !ok {
		c.lanes[at] = len(c.lanes)
	}
	s.clock = c.lanes[at]
	return s
}

// request finds or begins a request; nil when there are too many.
func (c *Collector) request(r Record) *Request {
	key := requestKey{r.Run, r.Request}
	if found := c.requests[key]; found != nil {
		return found
	}
	if len(c.order) == RequestsMax {
		return nil
	}
	q := &Request{ID: r.Request, Run: r.Run}
	c.requests[key] = q
	c.order = append(c.order, q)
	return q
}

// shared returns one copy of a text that many records say. It keeps few: other texts are their records' own.
func (c *Collector) shared(text string) string {
	const most = 256
	if kept, ok := c.names[text]; ok {
		return kept
	}
	if len(c.names) < most {
		c.names[text] = text
	}
	return text
}
