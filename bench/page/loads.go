package page

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// loadPart draws the windows of the concurrent and sustained workloads.
func (p plotted) loadPart() (part, error) {
	out := part{Title: "Load by concurrency"}
	if len(p.summary.Windows) == 0 {
		if p.summary.Workload == record.WorkloadConcurrent || p.summary.Workload == record.WorkloadSustained {
			out.Text = []string{"No window is finished, so there is nothing to draw."}
			return out, nil
		}
		return part{}, nil
	}
	var names []string
	for i := range p.summary.Windows {
		if name := windowName(&p.summary.Windows[i]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		svg, err := p.drawLoad(name)
		if err != nil {
			return part{}, err
		}
		out.Figures = append(out.Figures, figure{svg, []string{
			strings.ToUpper(name[:1]) + name[1:] + ". A mark is one window, and n counts windows; the number of requests in each stands in the tables above. C is the number of requests in flight at most. Axes begin at 0." + mixedText(p.summary.Windows, name),
		}})
	}
	counters, quiet := counterTable(p.summary.Windows)
	out.Text = []string{"The table has what was watched around each window. The largest value seen is a lower bound: it was looked at every 25 ms."}
	if quiet > 0 {
		out.Text = append(out.Text, counted(quiet, "other watched value")+" stayed at 0 throughout its window.")
	}
	if len(counters.Rows) > 0 {
		out.Table = counters
	}
	return out, nil
}

// mixedText says what a figure over concurrencies does not show where windows of its name mix lengths.
func mixedText(windows []report.Window, name string) string {
	for i := range windows {
		if windows[i].Variant == record.Mixed && windowName(&windows[i]) == name && report.LengthsNote(windows) != "" {
			return " The windows hold other shares of lengths at each C: compare backends at one C, not one C with the next."
		}
	}
	return ""
}

// metric is one value of a window.
type metric struct {
	title, unit string
	of          func(w *report.Window) (float64, bool)
}

var windowMetrics = []metric{
	{"Throughput", "requests/s", func(w *report.Window) (float64, bool) { return w.RequestsPerS, true }},
	{"Output", "tokens/s", func(w *report.Window) (float64, bool) { return w.OutputTokensPerS, true }},
	{"Goodput", "requests/s", func(w *report.Window) (float64, bool) { return given(w.GoodputPerS) }},
	{"TTFT p50", "ms", func(w *report.Window) (float64, bool) { return w.TTFT.Median, w.TTFT.N > 0 }},
	{"TTFT p99", "ms", func(w *report.Window) (float64, bool) { return given(w.TTFTp99) }},
	{"TPOT p50", "ms", func(w *report.Window) (float64, bool) { return w.TPOT.Median, w.TPOT.N > 0 }},
	{"TPOT p99", "ms", func(w *report.Window) (float64, bool) { return given(w.TPOTp99) }},
	{"ITL p50", "ms", func(w *report.Window) (float64, bool) { return w.ITL.Median, w.ITL.N > 0 }},
	{"ITL p99", "ms", func(w *report.Window) (float64, bool) { return given(w.ITLp99) }},
}

func given(v *float64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return *v, true
}

// drawLoad draws the metrics that at least one window of the name has.
func (p plotted) drawLoad(name string) (template.HTML, error) {
	var panels []stripPanel
	for _, m := range windowMetrics {
		panel := stripPanel{title: m.title, unit: m.unit}
		for i := range p.summary.Windows {
			w := &p.summary.Windows[i]
			v, ok := m.of(w)
			if !ok || windowName(w) != name {
				continue
			}
			panel.add(fmt.Sprintf("C %d", w.Concurrency), w.Backend, v)
		}
		if len(panel.groups) > 0 {
			panels = append(panels, panel)
		}
	}
	return drawStrips("Load by concurrency: "+name, panels, 2, false)
}

// add puts one value into the strip of a backend.
func (p *stripPanel) add(label, backend string, v float64) {
	at := slices.IndexFunc(p.groups, func(g stripGroup) bool { return g.label == label })
	if at < 0 {
		at = len(p.groups)
		p.groups = append(p.groups, stripGroup{label: label})
	}
	g := &p.groups[at]
	s := slices.IndexFunc(g.strips, func(s strip) bool { return s.backend == backend })
	if s < 0 {
		s = len(g.strips)
		g.strips = append(g.strips, strip{backend: backend, median: math.NaN(), low: math.NaN(), high: math.NaN()})
	}
	g.strips[s].dots = append(g.strips[s].dots, dot{value: v})
	g.strips[s].n++
}
