package single

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

const (
	columnsDefault = 80 // of a terminal that does not say its width
	columnsMin     = 20
)

// progress tells a person how far a run is: one line that changes on a terminal, one line for each request that is measured elsewhere. It may be
// called from any goroutine, and never waits for whoever reads; close alone does so, for a bounded time.
type progress struct {
	teller
	mu  sync.Mutex
	now func() time.Time

	cells    int // of the run
	done     int // of them, finished
	measured int // by this attempt
	spent    time.Duration
	starts   int           // of backends, that are still to come
	start    time.Duration // that the longest one took
	at       string        // the cell that is being measured
	shown    time.Time
}

func newProgress(to io.Writer, now func() time.Time) *progress {
	p := &progress{teller: teller{to: to}, now: now}
	if file, ok := to.(*os.File); ok {
		if _, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil {
			p.terminal = file
		}
	}
	return p
}

// plan says how much there is.
func (p *progress) plan(total, missing int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cells, p.done = total, total-missing
	if p.done > 0 {
		p.lasting(fmt.Sprintf("%d of %d cells were measured before", p.done, total))
	}
}

// line tells something that stays.
func (p *progress) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lasting(text)
}

// step tells what the run waits for.
func (p *progress) step(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passing(p.count() + text)
}

// cell begins a cell.
func (p *progress) cell(place record.Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = place.Cell
}

// sample tells of one request. On a terminal every one is shown, elsewhere those that are measured.
func (p *progress) sample(row *record.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal == nil && !row.Measured {
		return
	}
	result := fmt.Sprintf("TTFT %.1f ms, %s", row.TTFTms, row.Source)
	if row.Error != "" {
		result = "failed: " + row.Error
	}
	p.passing(fmt.Sprintf("%s%s %s: %s%s", p.count(), row.Cell, row.Phase, result, p.left()))
}

// window tells of a burst or window.
func (p *progress) window(row *record.Window, samples []record.Sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sources := map[record.Source]int{}
	for i := range samples {
		sources[samples[i].Source]++
	}
	var parts []string
	for _, source := range record.Sources {
		if sources[source] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", sources[source], source))
		}
	}
	p.passing(fmt.Sprintf("%s%s %s: %d requests in %.2f s, %s%s", p.count(), row.Cell, row.Phase, row.Requests, row.WallSeconds, strings.Join(parts, ", "), p.left()))
}

// admitted tells how far a window is; it does so twice a second, and on a terminal only.
func (p *progress) admitted(requests int, since time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal == nil || p.now().Sub(p.shown) < time.Second/2 {
		return
	}
	p.passing(fmt.Sprintf("%s%s: %d requests in %.0f s%s", p.count(), p.at, requests, since.Seconds(), p.left()))
}

// finished counts a cell.
func (p *progress) finished(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.measured++
	p.spent += took
}

// close ends the terminal's line once everything is told.
func (p *progress) close() { p.flush() }

// count says which cell is next; nothing before the run is planned.
func (p *progress) count() string {
	if p.cells == 0 {
		return ""
	}
	return fmt.Sprintf("cell %d of %d: ", min(p.done+1, p.cells), p.cells)
}

// ahead says how many backends are still to be started, and how long a start takes.
func (p *progress) ahead(starts int, start time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts, p.start = starts, start
}

// left estimates the time of the cells that are missing by those that this attempt measured, and of the starts that they need.
func (p *progress) left() string {
	if p.measured == 0 {
		return ""
	}
	cells := p.spent / time.Duration(p.measured) * time.Duration(p.cells-p.done)
	return fmt.Sprintf("; about %v left", (cells + p.start*time.Duration(p.starts)).Round(time.Second))
}

// lasting writes a line that stays.
func (p *progress) lasting(text string) { p.add(told{text: text, stays: true}) }

// passing writes a line that the next one may replace.
func (p *progress) passing(text string) {
	p.shown = p.now()
	p.add(told{text: text})
}

// printable makes a line of a text, without what would move a terminal's cursor or change its colours: an engine's own words are told, too.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case r == '\n' || r == '\t':
			return ' '
		}
		return '?'
	}, text)
}
