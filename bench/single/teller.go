package single

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	passingAhead = 64              // lines that may be replaced or dropped, that wait for the reader
	lastingAhead = 1024            // lines that stay, of those
	flushWait    = 2 * time.Second // for a reader who is behind, at the end
)

// told is one line that waits to be written.
type told struct {
	text  string
	stays bool // the next line does not replace it
	ends  bool // no text: the terminal's line is ended where one is open
}

// teller writes lines from a goroutine of its own, which lasts as long as there are some: a reader who stops, as a full pipe or a terminal after Ctrl-S
// does, must not stop the requests that are measured. Lines that pass are dropped where the reader is behind, and counted; those that stay wait for him.
type teller struct {
	to       io.Writer
	terminal *os.File // nil where it is none

	mu      sync.Mutex
	waiting []told
	passing int           // of the waiting lines
	dropped int           // lines since the latest that found room
	writing bool          // the goroutine runs
	idle    chan struct{} // closed when it has ended

	open bool // the terminal's line is not ended; the goroutine's own
}

// add lets a line be written. It never waits for the reader.
func (t *teller) add(line told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(t.waiting) - 1
	switch {
	case !line.stays && t.terminal != nil && last >= 0 && !t.waiting[last].stays:
		t.waiting[last] = line
		return
	case !line.stays && t.passing >= passingAhead, line.stays && len(t.waiting)-t.passing >= lastingAhead:
		t.dropped++
		return
	case t.dropped > 0 && t.terminal == nil:
		t.waiting = append(t.waiting, told{text: fmt.Sprintf("%d lines are left out here: nobody read them", t.dropped), stays: true})
	}
	t.dropped = 0
	if !line.stays {
		t.passing++
	}
	t.waiting = append(t.waiting, line)
	if !t.writing {
		t.writing, t.idle = true, make(chan struct{})
		go t.write()
	}
}

// flush ends the terminal's line and waits for everything to be written.
func (t *teller) flush() {
	t.add(told{stays: true, ends: true})
	t.await()
}

// await returns once everything is written, or after flushWait.
func (t *teller) await() {
	t.mu.Lock()
	idle := t.idle
	t.mu.Unlock()
	if idle == nil {
		return
	}
	late := time.NewTimer(flushWait)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
	}
}

// write writes what waits until nothing does.
func (t *teller) write() {
	for {
		t.mu.Lock()
		if len(t.waiting) == 0 {
			t.writing = false
			close(t.idle)
			t.mu.Unlock()
			return
		}
		line := t.waiting[0]
		t.waiting = t.waiting[1:]
		if !line.stays {
			t.passing--
		}
		t.mu.Unlock()
		t.put(line)
	}
}

// put writes one line.
func (t *teller) put(line told) {
	text := printable(line.text)
	if t.terminal != nil && !line.stays {
		if runes, columns := []rune(text), t.columns(); len(runes) >= columns {
			text = string(runes[:columns-4]) + "..."
		}
		fmt.Fprintf(t.to, "\r\x1b[K%s", text)
		t.open = true
		return
	}
	if t.open {
		fmt.Fprintln(t.to)
		t.open = false
	}
	if !line.ends {
		fmt.Fprintln(t.to, text)
	}
}

// columns is the width of the terminal now: a line that wraps cannot be replaced.
func (t *teller) columns() int {
	size, err := unix.IoctlGetWinsize(int(t.terminal.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return columnsDefault
	}
	return max(int(size.Col), columnsMin)
}
