package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// Bounds of one answer.
const (
	lineMax   = 1 << 20  // bytes of one line of a stream
	bodyMax   = 32 << 20 // bytes of a whole stream; SGLang repeats the text so far in every event
	eventsMax = 65536    // of a stream
)

// Errors of a stream.
var (
	errLine   = fmt.Errorf("a line of the stream is longer than %d bytes", lineMax)
	errBody   = fmt.Errorf("the stream is longer than %d bytes", bodyMax)
	errEvents = fmt.Errorf("the stream has more than %d events", eventsMax)
	errNoDone = errors.New("the stream ended without [DONE]")
)

var (
	doneMark  = []byte("[DONE]")
	dataField = []byte("data")
)

// event is one server-sent event that carries data: when its last data line was whole, and what it says. The first byte of a line is no text yet:
// a stream that sends the head of an event ahead of its text would look faster than it is.
type event struct {
	at   time.Duration
	read int // which read of the stream ended that line, from 1
	data []byte
}

// readEvents reads a stream of server-sent events up to [DONE] and then to its end. Every line has the time of the read that ended it; nothing is
// decoded. It returns the events before [DONE] and when [DONE] or the failure came.
func readEvents(body io.Reader, since func() time.Duration) ([]event, time.Duration, error) {
	var p parser
	buffer := make([]byte, readBuffer)
	total := 0
	for {
		n, err := body.Read(buffer)
		at := since()
		p.reads++
		total += n
		if total > bodyMax {
			return p.events, p.end(at), errBody
		}
		if failure := p.feed(buffer[:n], at); failure != nil {
			return p.events, p.end(at), failure
		}
		switch {
		case errors.Is(err, io.EOF) && p.done:
			return p.events, p.end(at), nil
		case errors.Is(err, io.EOF):
			return p.events, at, errNoDone
		case err != nil && p.done:
			return p.events, p.end(at), fmt.Errorf("the connection broke after [DONE]: %w", err)
		case err != nil:
			return p.events, at, err
		}
	}
}

// parser turns bytes into events. Its zero value is ready.
type parser struct {
	events []event
	line   []byte        // the part of a line that has come
	data   []byte        // of the event that is being read
	open   bool          // the event has a data field
	at     time.Duration // when its latest data line was whole
	read   int           // the read that brought its end
	reads  int           // until now
	done   bool
	doneAt time.Duration
}

// end returns when the stream said that it is complete, else now.
func (p *parser) end(now time.Duration) time.Duration {
	if p.done {
		return p.doneAt
	}
	return now
}

// feed takes the bytes of one read.
func (p *parser) feed(chunk []byte, at time.Duration) error {
	for len(chunk) > 0 && !p.done {
		head, rest, whole := bytes.Cut(chunk, []byte{'\n'})
		if len(p.line)+len(head) > lineMax {
			return errLine
		}
		p.line = append(p.line, head...)
		if !whole {
			return nil
		}
		chunk = rest
		err := p.take(bytes.TrimSuffix(p.line, []byte{'\r'}), at)
		p.line = p.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

// take handles one line that was whole at a time. An empty one ends the event; comments and fields other than data are nothing to a completion.
func (p *parser) take(line []byte, at time.Duration) error {
	if len(line) == 0 {
		return p.dispatch()
	}
	field, value, _ := bytes.Cut(line, []byte{':'})
	if !bytes.Equal(field, dataField) {
		return nil
	}
	value = bytes.TrimPrefix(value, []byte{' '})
	if p.open {
		p.data = append(p.data, '\n')
	}
	p.open, p.at, p.read = true, at, p.reads
	if len(p.data)+len(value) > lineMax {
		return errLine
	}
	p.data = append(p.data, value...)
	return nil
}

// dispatch ends the event that is being read.
func (p *parser) dispatch() error {
	if !p.open {
		return nil
	}
	data := p.data
	p.open, p.data = false, nil
	if bytes.Equal(data, doneMark) {
		p.done, p.doneAt = true, p.at
		return nil
	}
	if len(p.events) == eventsMax {
		return errEvents
	}
	p.events = append(p.events, event{p.at, p.read, data})
	return nil
}
