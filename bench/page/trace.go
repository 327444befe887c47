package page

import (
	"fmt"
	"io"
	"strings"
	"time"

	"orbitkv/internal/trace"
)

// WriteTrace writes the waterfalls of some requests of a trace, and the figures of all, as one HTML file. The error is the writer's, or says which figure
// could not be drawn.
func WriteTrace(w io.Writer, all *trace.Trace, shown []*trace.Request, version string) error {
	requests, err := requestSection(all, shown)
	if err != nil {
		return err
	}
	v := view{
		Kind:     "OrbitKV trace",
		Title:    counted(len(all.Requests), "request"),
		Facts:    traceFacts(all),
		Findings: traceFindings(all),
		Sections: []section{intervalSection(all), requests},
		Footer: oneLine(fmt.Sprintf("Made by orbitkv %s from the cache_timeline records of the named files. A stage is written when a process notices it: first use is a callback of the engine, "+
			"no time of the device.", version)),
		Style: styleSheet(),
	}
	if err := pageTemplate.Execute(w, v); err != nil {
		return fmt.Errorf("page: writing the trace: %w", err)
	}
	return nil
}

// traceFacts names the files, as many as a line may hold.
func traceFacts(all *trace.Trace) []string {
	const most = 8
	var facts []string
	for _, name := range all.Files[:min(most, len(all.Files))] {
		facts = append(facts, oneLine(name))
	}
	if more := len(all.Files) - most; more > 0 {
		facts = append(facts, fmt.Sprintf("%d files more", more))
	}
	return facts
}

// traceFindings are what was read, and what was left out of it.
func traceFindings(all *trace.Trace) []finding {
	summary := all.Summary()
	found := []finding{{good, oneLine(summary[0])}}
	for _, line := range summary[1:] {
		found = append(found, finding{look, oneLine(line)})
	}
	return found
}

func intervalSection(all *trace.Trace) section {
	out := section{ID: "stages", Title: "Between the stages"}
	out.Intro = []string{"Of each request that has both stages by one clock. Stages overlap: a request may compute its first layers while the last are copied."}
	t := &table{Head: []column{{Text: "From"}, {Text: "To"}, {Text: "Requests", Number: true}}}
	for _, name := range []string{"Median", "90 %", "Longest"} {
		t.Head = append(t.Head, column{name, "ms", true})
	}
	for _, i := range all.Intervals() {
		r := row{Cells: []cell{textCell(words(i.From)), textCell(words(i.To)), countCell(i.Requests, false)}}
		for _, d := range []time.Duration{i.Median, i.P90, i.Most} {
			r.Cells = append(r.Cells, numberCell(milliseconds(float64(d)/float64(time.Millisecond))))
		}
		t.Rows = append(t.Rows, r)
	}
	if len(t.Rows) == 0 {
		out.Intro = []string{"No request has two stages by one clock."}
		return out
	}
	out.Parts = []part{{Table: t}}
	return out
}

func requestSection(all *trace.Trace, shown []*trace.Request) (section, error) {
	out := section{ID: "requests", Title: "Requests"}
	out.Intro = []string{fmt.Sprintf("%d of %s, those that took longest first. Times of two processes share an axis where both say that they read the same clock; others have an axis each, and do not compare.",
		len(shown), counted(len(all.Requests), "request"))}
	for _, q := range shown {
		p := part{Title: oneLine(q.ID)}
		for i := range q.Lanes {
			w := waterfall{q, &q.Lanes[i]}
			svg, err := drawWaterfall(w)
			if err != nil {
				return section{}, err
			}
			p.Figures = append(p.Figures, figure{svg, laneCaption(w.lane)})
		}
		out.Parts = append(out.Parts, p)
	}
	return out, nil
}

// laneCaption says whose clock it is and what the stages say besides their times.
func laneCaption(l *trace.Lane) []string {
	lines := []string{oneLine(l.Clock()) + "."}
	var said []string
	for _, row := range l.Rows() {
		if row.What != "" {
			said = append(said, words(row.Stage)+": "+row.What)
		}
	}
	if len(said) > 0 {
		lines = append(lines, oneLine(strings.Join(said, " · ")))
	}
	return lines
}
