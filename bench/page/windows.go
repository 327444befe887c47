package page

import (
	"fmt"
	"slices"
	"strings"

	"orbitkv/bench/report"
	"orbitkv/bench/stat"
)

func windowHead() []column {
	return []column{{Text: "Window"}, {Text: "C", Number: true}, {Text: "Pass", Number: true}, {Text: "Backend"}}
}

func windowCells(w *report.Window) []cell {
	return []cell{textCell(windowName(w)), countCell(w.Concurrency, false), countCell(w.Pass, false), backendCell(w.Backend)}
}

// windowName says which state and which requests a window is of.
func windowName(w *report.Window) string {
	parts := []string{words(w.Workload)}
	if w.Variant != "" {
		parts = append(parts, w.Variant)
	}
	if string(w.Phase) != w.Workload {
		parts = append(parts, words(string(w.Phase)))
	}
	if w.Length > 0 {
		parts = append(parts, grouped(int64(w.Length))+" tokens")
	}
	return strings.Join(parts, ", ")
}

// rateTable has a row for each window. A burst is admitted at once and drains until its end, so it has prompts in the place of these times.
func rateTable(windows []report.Window) *table {
	bursts := !slices.ContainsFunc(windows, func(w report.Window) bool { return !w.Burst() })
	t := &table{Head: append(windowHead(), column{Text: "Requests", Number: true}, column{Text: "Failed", Number: true})}
	if bursts {
		t.Head = append(t.Head, column{Text: "Prompts", Unit: "of tokens"})
	} else {
		t.Head = append(t.Head, column{Text: "Admission", Unit: "s", Number: true}, column{Text: "ended by"}, column{Text: "Drain", Unit: "s", Number: true})
	}
	t.Head = append(
		t.Head,
		column{Text: "Wall", Unit: "s", Number: true},
		column{Text: "Requests/s", Number: true},
		column{Text: "Output tokens/s", Number: true},
		column{Text: "Goodput/s", Number: true},
	)
	for i := range windows {
		w := &windows[i]
		goodput := numberCell(notKnown)
		if w.GoodputPerS != nil {
			goodput = intervalCell(number(*w.GoodputPerS), fmt.Sprintf("%d of %d", *w.Good, w.Requests))
		}
		cells := append(windowCells(w), countCell(w.Requests, false), countCell(w.Failed, w.Failed > 0))
		if bursts {
			cells = append(cells, textCell(promptsText(w.Lengths)))
		} else {
			cells = append(cells, numberCell(number(w.AdmitSeconds)), textCell(strings.Join(w.Stops, ", ")), numberCell(number(w.DrainSeconds)))
		}
		cells = append(cells, numberCell(number(w.WallSeconds)), numberCell(number(w.RequestsPerS)), numberCell(number(w.OutputTokensPerS)), goodput)
		t.Rows = append(t.Rows, row{Begins: beginsWindow(windows, i), Cells: cells})
	}
	return t
}

func beginsWindow(windows []report.Window, i int) bool {
	return i > 0 && windowName(&windows[i-1]) != windowName(&windows[i])
}

// windowLatencyTable has a row for each window: what its requests waited, and where their KV came from.
func windowLatencyTable(windows []report.Window) *table {
	t := &table{Head: append(
		windowHead(),
		column{Text: "Prompts", Unit: "of tokens"},
		column{Text: "KV came from"},
		column{Text: "TTFT p50", Unit: "ms", Number: true},
		column{Text: "p99", Number: true},
		column{Text: "TPOT p50", Unit: "ms", Number: true},
		column{Text: "p99", Number: true},
		column{Text: "ITL p50", Unit: "ms", Number: true},
		column{Text: "p99", Number: true},
		column{Text: "Outputs differ", Number: true},
	)}
	for i := range windows {
		w := &windows[i]
		t.Rows = append(t.Rows, row{Begins: beginsWindow(windows, i), Cells: append(
			windowCells(w),
			textCell(promptsText(w.Lengths)),
			textCell(sourcesText(w.Sources)),
			windowEstimate(w.TTFT),
			optionalCell(w.TTFTp99),
			windowEstimate(w.TPOT),
			optionalCell(w.TPOTp99),
			windowEstimate(w.ITL),
			optionalCell(w.ITLp99),
			outputsCell(w.Outputs),
		)})
	}
	return t
}

// promptsText counts the prompts of a window by their length. Its lines break between lengths.
func promptsText(lengths []report.LengthCount) string {
	var parts []string
	for _, l := range lengths {
		parts = append(parts, fmt.Sprintf("%d\u00a0of\u00a0%s", l.N, grouped(int64(l.Length))))
	}
	if len(parts) == 0 {
		return notKnown
	}
	return strings.Join(parts, ", ")
}

// sourcesText counts samples by source.
func sourcesText(sources []report.SourceCount) string {
	var parts []string
	for _, s := range sources {
		parts = append(parts, fmt.Sprintf("%s %d", words(string(s.Source)), s.N))
	}
	if len(parts) == 0 {
		return notKnown
	}
	return strings.Join(parts, ", ")
}

func windowEstimate(e stat.Estimate) cell {
	if e.N == 0 {
		return numberCell(notKnown)
	}
	return intervalCell(milliseconds(e.Median), beside(e))
}

// counterTable has a row for each watched value that was ever above 0 in a window, and for everything pending.
func counterTable(windows []report.Window) (t *table, quiet int) {
	t = &table{Head: append(
		windowHead(),
		column{Text: "Watched value"},
		column{Text: "Start", Number: true},
		column{Text: "End", Number: true},
		column{Text: "Largest seen", Number: true},
		column{Text: "Looks", Number: true},
	)}
	for i := range windows {
		w := &windows[i]
		first := true
		for _, g := range w.Gauges {
			pending := strings.Contains(g.Name, "pending")
			if none(g.Start) && none(g.End) && none(g.Peak) && !pending {
				quiet++
				continue
			}
			cells := append(
				windowCells(w),
				codeCell(g.Name),
				numberCell(gaugeText(g.Name, g.Start)),
				cell{Text: gaugeText(g.Name, g.End), Number: true, Look: !none(g.End) && pending},
				numberCell(gaugeText(g.Name, g.Peak)),
				countCell(w.PeakSamples, false),
			)
			t.Rows = append(t.Rows, row{Begins: first && len(t.Rows) > 0, Cells: cells})
			first = false
		}
	}
	return t, quiet
}

func none(v *float64) bool { return v == nil || *v == 0 }

// gaugeText writes a watched value, of bytes where its name says so; nil is one that was not read.
func gaugeText(name string, v *float64) string {
	if v == nil {
		return notKnown
	}
	return valueText(name, *v)
}

func valueText(name string, v float64) string {
	if strings.Contains(name, "bytes") {
		return size(v)
	}
	return number(v)
}
