package page

import (
	"fmt"
	"math"
	"slices"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
	"orbitkv/bench/stat"
)

// rowKey names the samples behind one row of the summary.
type rowKey struct {
	report.Key
	source record.Source
}

// plotted is what the figures are drawn from: the summary, and the samples that its rows count.
type plotted struct {
	summary *report.Summary
	ttft    map[rowKey][]float64 // ms, in the order in which they were measured
}

func gather(run *record.Run, s *report.Summary) plotted {
	p := plotted{s, map[rowKey][]float64{}}
	for i := range run.Samples {
		each := &run.Samples[i]
		if each.Measured && each.Error == "" && run.Final(each.Place) {
			k := rowKey{report.KeyOf(each), each.Source}
			p.ttft[k] = append(p.ttft[k], each.TTFTms)
		}
	}
	return p
}

// figureSection draws everything that the run has data for and says in words what it has none for.
func figureSection(run *record.Run, s *report.Summary) (section, error) {
	data := gather(run, s)
	out := section{ID: "figures", Title: "Figures", Intro: []string{
		"A backend has one colour and one mark in every figure. The number of samples stands beside each figure; times are milliseconds.",
	}}
	for _, draw := range []func() (part, error){
		data.ttftPart, data.curvePart, data.pairedPart, data.linkPart, data.loadPart,
		func() (part, error) { return waterfallPart(run) },
	} {
		p, err := draw()
		if err != nil {
			return section{}, err
		}
		if p.Title != "" {
			out.Parts = append(out.Parts, p)
		}
	}
	return out, nil
}

// states lists the states of the serial workloads in the order of the summary.
func (p plotted) states() (states []string, lengths []int) {
	for _, g := range serialGroups(p.summary) {
		if state := stateOf(g.Workload, g.Phase, g.Variant); !slices.Contains(states, state) {
			states = append(states, state)
		}
		if !slices.Contains(lengths, g.Length) {
			lengths = append(lengths, g.Length)
		}
	}
	slices.Sort(lengths)
	return states, lengths
}

func (p plotted) ttftPart() (part, error) {
	out := part{Title: "TTFT by state and length"}
	states, lengths := p.states()
	if len(states) == 0 {
		return p.nothingSerial(out), nil
	}
	var overview, near []stripPanel
	for _, state := range states {
		panel := stripPanel{title: state, unit: "TTFT, ms"}
		for _, length := range lengths {
			group := stripGroup{label: grouped(int64(length)) + " tokens"}
			for i := range p.summary.Groups {
				g := &p.summary.Groups[i]
				if g.Length == length && stateOf(g.Workload, g.Phase, g.Variant) == state {
					group.strips = append(group.strips, p.strips(g)...)
				}
			}
			panel.groups = append(panel.groups, group)
			if len(group.strips) > 0 {
				near = append(near, stripPanel{state + " · " + group.label, "ms", []stripGroup{{strips: group.strips}}})
			}
		}
		overview = append(overview, panel)
	}
	const all = "Every sample is a mark; beside it stand the median and, from 5 samples on, its 95 % bootstrap interval. A column is one backend and one source of KV. "
	for _, each := range []struct {
		panels  []stripPanel
		columns int
		shared  bool
		caption string
	}{
		{overview, 1, true, all + "All states share one axis. " + dotsText},
		{near, columnsFor(lengths), false, "The same samples, each state and length on an axis of its own that begins at 0."},
	} {
		svg, err := drawStrips("TTFT by state and length", each.panels, each.columns, each.shared)
		if err != nil {
			return part{}, err
		}
		out.Figures = append(out.Figures, figure{svg, []string{each.caption}})
	}
	return out, nil
}

// columnsFor returns how many panels of one state and length stand side by side: the lengths of a state fill whole rows where they can.
func columnsFor(lengths []int) int {
	if n := len(lengths); n == 2 || n == 4 {
		return 2
	}
	return 3
}

var dotsText = fmt.Sprintf("Of a column with more than %d samples, %d at even ranks are drawn.", dotsMax, dotsMax)

// nothingSerial says why a figure of the serial workloads is missing; a run of another workload is not meant to have it.
func (p plotted) nothingSerial(out part) part {
	if !p.serial() {
		return part{}
	}
	out.Text = []string{"No finished cell has a measured request, so there is nothing to draw."}
	return out
}

// serial says whether the run's workload sends one request at a time.
func (p plotted) serial() bool {
	return p.summary.Workload == record.WorkloadLatency || p.summary.Workload == record.WorkloadPartial
}

// strips returns one column for each source of a group.
func (p plotted) strips(g *report.Group) []strip {
	var strips []strip
	for _, r := range g.Rows {
		s := strip{backend: g.Backend, source: sourceShort(r.Source), n: r.N, median: math.NaN(), low: math.NaN(), high: math.NaN()}
		if r.TTFT.N > 0 {
			s.median = r.TTFT.Median
		}
		s.low, s.high = ends(r.TTFT.Interval)
		for _, v := range p.ttft[rowKey{g.Key, r.Source}] {
			s.dots = append(s.dots, dot{v, odd(g, r.Source)})
		}
		strips = append(strips, s)
	}
	return strips
}

func ends(i *stat.Interval) (low, high float64) {
	if i == nil {
		return math.NaN(), math.NaN()
	}
	return i.Low, i.High
}

func sourceShort(source record.Source) string { return words(oneLine(string(source))) }

func (p plotted) curvePart() (part, error) {
	out := part{Title: "Distribution of TTFT"}
	states, lengths := p.states()
	var panels []curvePanel
	for _, state := range states {
		for _, length := range lengths {
			panel := curvePanel{title: state + " · " + grouped(int64(length)) + " tokens"}
			for i := range p.summary.Groups {
				g := &p.summary.Groups[i]
				if g.Length != length || stateOf(g.Workload, g.Phase, g.Variant) != state {
					continue
				}
				for _, r := range g.Rows {
					if values := p.ttft[rowKey{g.Key, r.Source}]; len(values) > 0 {
						panel.curves = append(panel.curves, curve{g.Backend, sourceShort(r.Source), odd(g, r.Source), values})
					}
				}
			}
			if len(panel.curves) > 0 {
				panels = append(panels, panel)
			}
		}
	}
	if len(panels) == 0 {
		return p.nothingSerial(out), nil
	}
	svg, err := drawCurves("Distribution of TTFT by state and length", panels, columnsFor(lengths))
	out.Figures = []figure{{svg, []string{
		"The share of samples whose first text came within so many milliseconds. Each panel has its own horizontal axis, which need not begin at 0. " +
			"Dashed: samples from another source than the state is meant to show.",
	}}}
	return out, err
}

func waterfallPart(run *record.Run) (part, error) {
	out := part{Title: "Timelines of restores"}
	found, unplaced := waterfalls(run.Timeline)
	switch {
	case len(run.Timeline) == 0 && run.Manifest.Options.TraceTransfers:
		out.Text = []string{"Tracing was on and no process wrote a record: no backend of the run traces, or nothing was restored."}
	case len(run.Timeline) == 0:
		out.Text = []string{"The run did not trace transfers (--trace-transfers), so there is no timeline."}
	case len(found) == 0:
		out.Text = []string{"No request has two records by one clock, so there is no timeline."}
	default:
		out.Text = []string{fmt.Sprintf("Times compare by one clock only, so each drawing is of one. Of each, up to %d requests with the most stages are drawn, of %d clocks at most.",
			waterfallsMax, processesMax)}
	}
	if unplaced > 0 {
		out.Text = append(out.Text, counted(unplaced, "record")+" without a stage, a request, a process or a time is left out.")
	}
	for _, w := range found {
		svg, err := drawWaterfall(w)
		if err != nil {
			return part{}, err
		}
		out.Figures = append(out.Figures, figure{svg, []string{fmt.Sprintf("Request %s in %s: n=1, %s.", oneLine(w.request.ID), oneLine(w.process()), counted(len(w.lane.Events), "record"))}})
	}
	return out, nil
}
