package single

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"orbitkv/bench/launch"
)

// Bounds of what is taken out of a log.
const (
	timelineLineMax = 64 << 10
	timelineMax     = 200_000 // records of one start
)

var timelineMark = []byte("cache_timeline ")

// timeline takes the transfers' records out of the engine's log of this start. They are kept with the backend, pass and attempt, because their times
// compare inside one process only.
func (s *stage) timeline() error {
	if !s.ask.TraceTransfers || s.backend != launch.OrbitKV {
		return nil
	}
	file, err := os.Open(s.logs(launch.PartEngine))
	if err != nil {
		return fmt.Errorf("reading the timeline: %w", err)
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, timelineLineMax)
	for kept := 0; kept < timelineMax; {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue // No record is that long: it is other text of the log.
		case err != nil:
			return fmt.Errorf("reading the timeline: %w", err)
		}
		record := timelineRecord(line)
		if record == nil {
			continue
		}
		record["backend"], record["pass"], record["attempt"] = s.backend, s.pass, s.dir.Attempt()
		if err := s.dir.Timeline(record); err != nil {
			return err
		}
		kept++
	}
	return nil
}

// timelineRecord returns the record that a line of a log carries; nil for other lines, and for a record that another line runs into.
func timelineRecord(line []byte) map[string]any {
	_, text, found := bytes.Cut(line, timelineMark)
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
