package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// barCells is how wide a bar of the waterfall is, in characters.
const barCells = 32

// Row is one line of a waterfall: an event, or the same stage of several layers.
type Row struct {
	Stage    string
	From, To time.Duration // since the lane's first event; the same but for layers
	Since    time.Duration // since the row before
	Source   *Source
	What     string // the details in words
}

// Rows returns a lane's events as lines, those of layers as one a stage and process.
func (l *Lane) Rows() []Row {
	var rows []Row
	first := l.Events[0].At
	type group struct {
		stage  string
		source *Source
	}
	layers, places := map[group]int{}, map[group]int{}
	for i := range l.Events {
		e := &l.Events[i]
		at := time.Duration(e.At - first)
		if e.Layer >= 0 {
			g := group{e.Stage, e.Source}
			layers[g]++
			if place, again := places[g]; again {
				rows[place].To = at
				rows[place].What = fmt.Sprintf("%d layers, the last %s later", layers[g], Milliseconds(at-rows[place].From))
				continue
			}
			places[g] = len(rows)
		}
		row := Row{Stage: e.Stage, From: at, To: at, Source: e.Source, What: e.what()}
		if len(rows) > 0 {
			row.Since = at - rows[len(rows)-1].From
		}
		rows = append(rows, row)
	}
	return rows
}

// what says an event's details in words.
func (e *Event) what() string {
	var parts []string
	say := func(known bool, format string, values ...any) {
		if known {
			parts = append(parts, fmt.Sprintf(format, values...))
		}
	}
	say(e.Failed, "failed")
	say(e.Warmup, "ahead, for a hint")
	say(e.Layer >= 0, "layer %d", e.Layer)
	say(e.Hits > 0 || e.Hits == 0 && e.Stage == HostReady && !e.Warmup, "%d pages found", e.Hits)
	switch {
	case e.Stage == ReadStart:
		say(e.Pages >= 0, "%d pages to read", e.Pages)
	case e.Stage == HostReady && !e.Warmup:
		say(e.Pages >= 0, "%d of them read", e.Pages)
	default:
		say(e.Pages >= 0, "%d pages", e.Pages)
	}
	say(e.Bytes >= 0, "%s", bytesText(e.Bytes))
	say(e.Requests > 1, "the first of %d requests", e.Requests)
	say(e.Stopped, "stopped")
	switch e.Stage {
	case HostReady:
		say(e.Elapsed >= 0, "%s of preparing", Milliseconds(e.Elapsed))
	case Staged:
		say(e.Elapsed >= 0, "%s waited", Milliseconds(e.Elapsed))
	case FirstUse:
		say(e.Elapsed >= 0, "%s since it was queued", Milliseconds(e.Elapsed))
	}
	return strings.Join(parts, ", ")
}

// Milliseconds writes a time as a person compares it.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond))
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// WriteText writes the waterfalls of some requests and the figures of all, for a terminal.
func (t *Trace) WriteText(to io.Writer, shown []*Request) error {
	out := bufio.NewWriter(to)
	for _, q := range shown {
		q.write(out)
	}
	if len(shown) < len(t.Requests) {
		fmt.Fprintf(out, "%d of %d requests are shown, those of the longest spans first.\n\n", len(shown), len(t.Requests))
	}
	t.writeIntervals(out)
	for _, line := range t.Summary() {
		fmt.Fprintln(out, visible(line))
	}
	return out.Flush()
}

func (q *Request) write(out io.Writer) {
	fmt.Fprintf(out, "request %s\n", visible(q.ID))
	for i := range q.Lanes {
		l := &q.Lanes[i]
		fmt.Fprintf(out, "  %s\n", visible(l.Clock()))
		var lines bytes.Buffer
		table := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
		for _, row := range l.Rows() {
			since := ""
			if row.Since > 0 {
				since = "+" + Milliseconds(row.Since)
			}
			source := ""
			if len(l.Sources) > 1 {
				source = row.Source.Name()
			}
			fmt.Fprintf(table, "  %12s\t%12s\t|%s|\t%s\t%s\t%s\n", Milliseconds(row.From), since, bar(row, l.Span()), visible(row.Stage), visible(source), row.What)
		}
		table.Flush() // a buffer takes everything
		for line := range strings.Lines(lines.String()) {
			fmt.Fprintln(out, strings.TrimRight(line, " \n"))
		}
	}
	if len(q.Lanes) > 1 {
		fmt.Fprintln(out, "  The times of these processes do not compare: their clocks are of different boots or time namespaces, or not all say which they read.")
	}
	fmt.Fprintln(out)
}

// bar draws what a row waited for: the time since the row before it and, of layers, the time to the last.
func bar(row Row, span time.Duration) string {
	cell := func(at time.Duration) int {
		if span <= 0 {
			return 0
		}
		return min(barCells-1, int(float64(at)/float64(span)*barCells))
	}
	cells := []byte(strings.Repeat(" ", barCells))
	for i := cell(row.From - row.Since); i <= cell(row.To); i++ {
		cells[i] = '-'
	}
	for i := cell(row.From); i <= cell(row.To); i++ {
		cells[i] = '#'
	}
	return string(cells)
}

func (t *Trace) writeIntervals(out io.Writer) {
	found := t.Intervals()
	if len(found) == 0 {
		return
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "BETWEEN\tREQUESTS\t%14s\t%14s\t%14s\n", "MEDIAN", "90 %", "LONGEST")
	for _, i := range found {
		fmt.Fprintf(table, "%s to %s\t%8d\t%14s\t%14s\t%14s\n", i.From, i.To, i.Requests, Milliseconds(i.Median), Milliseconds(i.P90), Milliseconds(i.Most))
	}
	table.Flush()
	fmt.Fprintln(out)
}

// Summary says what was read, and what of it was left out and why.
func (t *Trace) Summary() []string {
	lines := []string{fmt.Sprintf("%s of %s in %s", counted(t.Records, "record"), counted(len(t.Requests), "request"), counted(len(t.Files), "file"))}
	say := func(n int, format string, values ...any) {
		if n > 0 {
			lines = append(lines, fmt.Sprintf(format, values...))
		}
	}
	say(t.Repeated, "%s left out: the same stands there twice", counted(t.Repeated, "record"))
	say(t.Left.Requests, "%s left out, of requests beyond the first %d: read fewer logs at once", counted(t.Left.Requests, "record"), RequestsMax)
	say(t.Left.Events, "%s left out, beyond %d of one request or %d in all: read fewer logs at once", counted(t.Left.Events, "record"), EventsMax, RecordsMax)
	say(t.Left.Processes, "%s left out, of processes beyond the first %d: read fewer logs at once", counted(t.Left.Processes, "record"), ProcessesMax)
	say(t.Damaged, "%s left out:", counted(t.Damaged, "damaged record"))
	for _, d := range t.Damages {
		lines = append(lines, fmt.Sprintf("  %s:%d: %s", d.File, d.Line, d.Reason))
	}
	say(t.Damaged-len(t.Damages), "  and %d more", t.Damaged-len(t.Damages))
	return lines
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// visible takes out what would move a terminal's cursor, change its colours or break a table.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
