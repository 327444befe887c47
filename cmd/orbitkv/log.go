package main

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	logLinesMax = 1024        // lines that wait for whoever takes the log
	logGrace    = time.Second // at the end, for the lines that still wait
)

// logQueue passes lines on to a writer without ever waiting for it: whoever reads the log may hang, and a Manager that waits for its log
// would serve nobody. Lines without room are dropped and counted.
type logQueue struct {
	lines   chan []byte
	dropped atomic.Uint64
	done    chan struct{}
}

func newLogQueue(to io.Writer) *logQueue {
	q := &logQueue{lines: make(chan []byte, logLinesMax), done: make(chan struct{})}
	go q.pass(to)
	return q
}

func (q *logQueue) pass(to io.Writer) {
	defer close(q.done)
	for line := range q.lines {
		if line == nil {
			return
		}
		_, err := to.Write(line)
		if n := q.dropped.Swap(0); n > 0 && err == nil {
			_, err = fmt.Fprintf(to, "level=WARN msg=\"the log was not read in time\" lines_lost=%d\n", n)
		}
		if err != nil {
			continue // there is no other place to tell, and a reader may come back
		}
	}
}

// Write takes one line.
func (q *logQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// Close waits logGrace for the lines that are left. Lines that come later are lost.
func (q *logQueue) Close() {
	end := time.After(logGrace)
	select {
	case q.lines <- nil:
	case <-end:
		return
	}
	select {
	case <-q.done:
	case <-end:
	}
}
