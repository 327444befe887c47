package single

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"orbitkv/bench/record"
	"orbitkv/internal/trace"
)

// timelineMax bounds what is taken out of one log of one start, in records.
const timelineMax = 200_000

// timeline takes the transfers' records out of the logs of this start. They are kept with the backend, pass and attempt, because their times compare
// inside one start only.
func (s *stage) timeline() error {
	if !s.ask.TraceTransfers || s.backend != record.OrbitKV {
		return nil
	}
	for _, part := range []string{record.PartEngine, record.PartManager} {
		if err := s.timelineOf(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) timelineOf(part string) error {
	file, err := os.Open(s.logs(part))
	if err != nil {
		return fmt.Errorf("reading the timeline: %w", err)
	}
	defer file.Close()
	more, err := s.takeTimeline(file, timelineMax)
	if err != nil || !more {
		return err
	}
	return s.dir.Update(func(m *record.Manifest) {
		m.Notes = append(m.Notes, fmt.Sprintf("%s, pass %d, attempt %d: the log of the %s has more than the %d timeline records that are kept", s.backend, s.pass, s.dir.Attempt(), part, timelineMax))
	})
}

// takeTimeline keeps the records of a log, as many as the bound, and says whether there are more.
func (s *stage) takeTimeline(log io.Reader, most int) (more bool, err error) {
	in := bufio.NewReaderSize(log, trace.LineBytesMax)
	for kept := 0; ; {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue // No record is that long: it is other text of the log.
		case err != nil:
			return false, fmt.Errorf("reading the timeline: %w", err)
		}
		found := timelineRecord(line)
		switch {
		case found == nil:
			continue
		case kept == most:
			return true, nil
		}
		found["backend"], found["pass"], found["attempt"] = s.backend, s.pass, s.dir.Attempt()
		if err := s.dir.Timeline(found); err != nil {
			return false, err
		}
		kept++
	}
}

// timelineRecord returns the record that a line of a log carries; nil for other lines, and for a record that another line runs into.
func timelineRecord(line []byte) map[string]any {
	text, found := trace.Cut(line)
	if !found {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // The times are nanoseconds of more than 53 bits.
	var record map[string]any
	if decoder.Decode(&record) != nil {
		return nil
	}
	return record
}
