package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
	"orbitkv/bench/stat"
)

// headline is the first section: medians for people who read nothing else, then every group.
func headline(run *record.Run, s *report.Summary) section {
	out := section{ID: "headline", Title: "Results"}
	if serial := serialGroups(s); len(serial) > 0 {
		out.Parts = append(out.Parts, part{
			Title: "Time to first text",
			Text: []string{"Median of the client's time to the first non-empty text in milliseconds, with its 95 % bootstrap interval from 5 samples on and the number of samples. " +
				"Each row is one cache source; samples of different sources are never taken together."},
			Table: matrix(serial),
		})
	}
	if len(s.Windows) > 0 {
		rates := []string{"Rates are over the wall time of each window, the drain after the last admission included. " + objectivesText(s.Objectives)}
		latencies := []string{"C is the number of requests in flight at most. A window's latencies are of all its whole answers, whatever their source; the sources stand beside them."}
		if note := report.LengthsNote(s.Windows); note != "" {
			rates, latencies = append(rates, note+"."), append(latencies, note+".")
		}
		out.Parts = append(out.Parts, part{Title: "Throughput", Text: rates, Table: rateTable(s.Windows)}, part{Title: "Latency under load", Text: latencies, Table: windowLatencyTable(s.Windows)})
	}
	if tiered := s.Tiered(); len(tiered) > 0 {
		out.Parts = append(out.Parts, part{Title: "Tiers of OrbitKV", Text: tierTexts, Table: tierTable(tiered)})
	}
	if len(s.Groups) == 0 {
		out.Intro = append(out.Intro, "No finished cell has a measured request, so there are no figures.")
		return out
	}
	out.Parts = append(out.Parts, part{
		Title: "Every group of samples",
		Text: []string{fmt.Sprintf("p95 is given from %d and p99 from %d samples on. A failed request is counted and has no latency. Marked sources are not the ones that the state is meant to show.",
			stat.P95Min, stat.P99Min)},
		Table: groupTable(s.Groups),
	})
	if reasons := reasonTable(run); len(reasons.Rows) > 0 {
		out.Parts = append(out.Parts, part{
			Title: "Sources that need a word",
			Text:  []string{fmt.Sprintf("What did not add up for measured requests, the first %d kinds; samples.jsonl has the counters of each request.", reasonsMax)},
			Table: reasons,
		})
	}
	return out
}

// serialGroups are the groups of the workloads that send one request at a time.
func serialGroups(s *report.Summary) []report.Group {
	var serial []report.Group
	for _, g := range s.Groups {
		if g.Workload == record.WorkloadLatency || g.Workload == record.WorkloadPartial {
			serial = append(serial, g)
		}
	}
	return serial
}

func objectivesText(o report.Objectives) string {
	if !o.Set() {
		return "No objective was set, so there is no goodput."
	}
	return "Goodput counts answers with " + o.Words() + "."
}

// stateOf names the state of a group.
func stateOf(workload string, phase record.Phase, variant string) string {
	return oneLine(report.StateWords(workload, variant, phase))
}

// odd says whether a source is another than the group is meant to have.
func odd(g *report.Group, source record.Source) bool {
	return len(g.Expected) > 0 && !slices.Contains(g.Expected, source)
}

// matrix has a row for each state, backend and source, and a column for each length.
func matrix(groups []report.Group) *table {
	type place struct {
		state, backend string
		source         record.Source
	}
	var lengths []int
	var backends []string
	var rows []place
	cells := map[place]map[int]cell{}
	for i := range groups {
		g := &groups[i]
		if !slices.Contains(lengths, g.Length) {
			lengths = append(lengths, g.Length)
		}
		if !slices.Contains(backends, g.Backend) {
			backends = append(backends, g.Backend)
		}
		for _, r := range g.Rows {
			p := place{stateOf(g.Workload, g.Phase, g.Variant), g.Backend, r.Source}
			if cells[p] == nil {
				cells[p] = map[int]cell{}
				rows = append(rows, p)
			}
			cells[p][g.Length] = cell{Text: milliseconds(r.TTFT.Median), Small: beside(r.TTFT), Number: true, Look: odd(g, r.Source)}
		}
	}
	slices.Sort(lengths)
	slices.SortStableFunc(rows, func(a, b place) int {
		return cmp.Or(firstOf(groups, a.state)-firstOf(groups, b.state), slices.Index(backends, a.backend)-slices.Index(backends, b.backend))
	})
	t := &table{Head: []column{{Text: "State"}, {Text: "Backend"}, {Text: "KV came from"}}}
	for _, length := range lengths {
		t.Head = append(t.Head, column{Text: grouped(int64(length)), Unit: "tokens", Number: true})
	}
	before := ""
	for _, p := range rows {
		line := row{Begins: p.state != before, Cells: []cell{textCell(p.state), backendCell(p.backend), {Text: sourceText(p.source)}}}
		if p.state == before {
			line.Cells[0].Text = ""
		}
		before = p.state
		for _, length := range lengths {
			each, measured := cells[p][length]
			if !measured {
				each = numberCell(notKnown)
			}
			line.Cells[2].Look = line.Cells[2].Look || each.Look
			line.Cells = append(line.Cells, each)
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

// firstOf returns the rank of a state: states keep the order in which the summary has them.
func firstOf(groups []report.Group, state string) int {
	return slices.IndexFunc(groups, func(g report.Group) bool { return stateOf(g.Workload, g.Phase, g.Variant) == state })
}

func sourceText(source record.Source) string {
	if source == record.Miss {
		return "nowhere (miss)"
	}
	return words(oneLine(string(source)))
}

// beside writes what must stand beside a median.
func beside(e stat.Estimate) string {
	return strings.TrimSpace(interval(e.Interval, milliseconds) + fmt.Sprintf(" n=%d", e.N))
}

func interval(i *stat.Interval, write func(float64) string) string {
	if i == nil {
		return ""
	}
	return "[" + write(i.Low) + ", " + write(i.High) + "]"
}

// reasonsMax bounds the kinds of reasons that are shown.
const reasonsMax = 40

// reasonTable counts what the evidence says of sources that are not plain.
func reasonTable(run *record.Run) *table {
	type kind struct {
		backend, state string
		source         record.Source
		why            string
	}
	counts := map[kind]int{}
	var kinds []kind
	for i := range run.Samples {
		s := &run.Samples[i]
		if s.Why == "" || !s.Measured || s.Error != "" || !run.Final(s.Place) {
			continue
		}
		k := kind{s.Backend, stateOf(s.Workload, s.Phase, s.Variant), s.Source, s.Why}
		if counts[k]++; counts[k] == 1 {
			kinds = append(kinds, k)
		}
	}
	t := &table{Head: []column{{Text: "Backend"}, {Text: "State"}, {Text: "Source"}, {Text: "Why"}, {Text: "n", Number: true}}}
	for _, k := range kinds[:min(len(kinds), reasonsMax)] {
		t.Rows = append(t.Rows, row{Cells: []cell{backendCell(k.backend), textCell(k.state), textCell(sourceShort(k.source)), textCell(k.why), countCell(counts[k], false)}})
	}
	return t
}

func groupTable(groups []report.Group) *table {
	t := &table{Head: []column{
		{Text: "State"},
		{Text: "Length", Number: true},
		{Text: "C", Number: true},
		{Text: "Backend"},
		{Text: "Source"},
		{Text: "n", Number: true},
		{Text: "Failed", Number: true},
		{Text: "TTFT p50", Unit: "ms", Number: true},
		{Text: "p95", Number: true},
		{Text: "p99", Number: true},
		{Text: "E2E p50", Unit: "ms", Number: true},
		{Text: "TPOT p50", Unit: "ms", Number: true},
		{Text: "Restored in all", Number: true},
		{Text: "Outputs differ", Number: true},
	}}
	for i := range groups {
		g := &groups[i]
		begins := i > 0 && !sameState(&groups[i-1], g)
		if len(g.Rows) == 0 {
			cells := append(groupHead(g), textCell(notKnown), countCell(0, false), countCell(g.Failed, g.Failed > 0))
			for len(cells) < len(t.Head)-1 {
				cells = append(cells, numberCell(notKnown))
			}
			t.Rows = append(t.Rows, row{Begins: begins, Cells: append(cells, outputsCell(g.Outputs))})
		}
		for j, r := range g.Rows {
			t.Rows = append(t.Rows, row{Begins: begins && j == 0, Cells: groupCells(g, r, j == 0)})
		}
	}
	return t
}

func sameState(a, b *report.Group) bool {
	x, y := a.Key, b.Key
	x.Backend, y.Backend = "", ""
	return x == y
}

func groupHead(g *report.Group) []cell {
	length := notKnown
	if g.Length > 0 {
		length = grouped(int64(g.Length))
	}
	return []cell{textCell(stateOf(g.Workload, g.Phase, g.Variant)), numberCell(length), countCell(g.Concurrency, false), backendCell(g.Backend)}
}

// groupCells writes one source of a group; what counts the whole group stands in its first row alone.
func groupCells(g *report.Group, r report.Row, first bool) []cell {
	failed, outputs := numberCell(""), numberCell("")
	if first {
		failed, outputs = countCell(g.Failed, g.Failed > 0), outputsCell(g.Outputs)
	}
	restored := notKnown
	switch {
	case r.SumRestoredBytes > 0:
		restored = size(r.SumRestoredBytes)
	case r.SumExternalTokens > 0 && (g.Workload == record.WorkloadLatency || g.Workload == record.WorkloadPartial):
		restored = "not told"
	}
	return append(groupHead(g),
		cell{Text: words(oneLine(string(r.Source))), Look: odd(g, r.Source)},
		countCell(r.N, false),
		failed,
		intervalCell(milliseconds(r.TTFT.Median), interval(r.TTFT.Interval, milliseconds)),
		optionalCell(r.TTFTp95),
		optionalCell(r.TTFTp99),
		estimateCell(r.E2E),
		estimateCell(r.TPOT),
		numberCell(restored),
		outputs,
	)
}

func outputsCell(o report.Outputs) cell {
	if o.Compared == 0 {
		return numberCell(notKnown)
	}
	return cell{Text: fmt.Sprintf("%d of %d", o.Differing, o.Compared), Number: true, Look: o.Differing > 0}
}

func optionalCell(v *float64) cell {
	if v == nil {
		return numberCell(notKnown)
	}
	return numberCell(milliseconds(*v))
}

func estimateCell(e stat.Estimate) cell {
	if e.N == 0 {
		return numberCell(notKnown)
	}
	return numberCell(milliseconds(e.Median))
}
