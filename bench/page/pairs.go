package page

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

func (p plotted) pairedPart() (part, error) {
	out := part{Title: "Paired differences between backends"}
	if len(p.summary.Paired) == 0 && !p.serial() {
		return part{}, nil
	}
	if len(p.summary.Paired) == 0 {
		out.Text = []string{"There is no pair of backends that answered the same prompts in the same state, so there is no difference to draw."}
		return out, nil
	}
	var contrasts []contrast
	unpaired := 0
	for i := range p.summary.Paired {
		each := &p.summary.Paired[i]
		at := slices.IndexFunc(contrasts, func(c contrast) bool { return c.first == each.B.Backend && c.second == each.A.Backend })
		if at < 0 {
			at = len(contrasts)
			contrasts = append(contrasts, contrast{first: each.B.Backend, second: each.A.Backend})
		}
		d := difference{label: pairingName(each), median: each.Difference, n: each.N}
		d.low, d.high = ends(each.Interval)
		if !each.Paired {
			d.label, d.n = d.label+" (not paired)", min(each.A.TTFT.N, each.B.TTFT.N)
			unpaired++
		}
		if d.n == 0 {
			d.median = math.NaN()
		}
		contrasts[at].rows = append(contrasts[at].rows, d)
	}
	for _, c := range contrasts {
		svg, err := drawForest(c)
		if err != nil {
			return part{}, err
		}
		out.Figures = append(out.Figures, figure{svg, []string{fmt.Sprintf(
			"TTFT of %s less TTFT of %s for the same prompt in the same state and pass: median of the differences, its 95 %% bootstrap interval, and the number of pairs. Filled: the interval does not hold 0.",
			oneLine(c.first), oneLine(c.second))}})
	}
	out.Text = []string{"After pressure only samples that show the state count: restores from outside without a hit in device memory, and recomputations on an engine without a cache. The table says what was left out."}
	if unpaired > 0 {
		out.Text = append(out.Text, counted(unpaired, "difference")+" could not be paired and stands as a difference of two medians, with the smaller n.")
	}
	out.Table = pairedTable(p.summary.Paired)
	return out, nil
}

func pairingName(each *report.Pairing) string {
	name := stateOf(each.Workload, each.Phase, each.Variant)
	if each.Length > 0 {
		name += " · " + grouped(int64(each.Length))
	}
	if each.Concurrency > 1 {
		name += fmt.Sprintf(" · C %d", each.Concurrency)
	}
	return name
}

func pairedTable(pairings []report.Pairing) *table {
	t := &table{Head: []column{
		{Text: "State and length"},
		{Text: "A"},
		{Text: "TTFT p50", Unit: "ms", Number: true},
		{Text: "B"},
		{Text: "TTFT p50", Unit: "ms", Number: true},
		{Text: "B − A", Unit: "ms", Number: true},
		{Text: "B / A", Number: true},
		{Text: "Pairs", Number: true},
		{Text: "Left out"},
	}}
	for i := range pairings {
		each := &pairings[i]
		pairs := countCell(each.N, false)
		if !each.Paired {
			pairs = numberCell("not paired")
		}
		begins := i > 0 && (pairings[i-1].A.Backend != each.A.Backend || pairings[i-1].B.Backend != each.B.Backend)
		t.Rows = append(t.Rows, row{Begins: begins, Cells: []cell{
			textCell(pairingName(each)),
			backendCell(each.A.Backend),
			windowEstimate(each.A.TTFT),
			backendCell(each.B.Backend),
			windowEstimate(each.B.TTFT),
			intervalCell(plus(each.Difference), interval(each.Interval, plus)),
			numberCell(number(each.Ratio)),
			pairs,
			textCell(each.LeftOut()),
		}})
	}
	return t
}

func (p plotted) linkPart() (part, error) {
	out := part{Title: "Restores beside the link"}
	if len(p.summary.Exposed) == 0 {
		if p.summary.Workload != record.WorkloadLatency {
			return part{}, nil
		}
		out.Text = []string{"The exposed restore time is not known: it needs samples after pressure that came from outside and hits in device memory of the same length, of the engine without a cache or of the same backend."}
		return out, nil
	}
	var rows []linkRow
	for _, e := range p.summary.Exposed {
		each := linkRow{backend: e.Backend, label: e.Backend + " · " + grouped(int64(e.Length)), exposed: e.Difference.Median, link: math.NaN()}
		each.note = fmt.Sprintf("n=%d and %d hits", e.AfterPressure.N, e.Hit.N)
		if e.LinkMs > 0 {
			each.link = e.LinkMs
		}
		if e.LinkShare != nil {
			each.note = fmt.Sprintf("link is %.0f %% of it, ", 100**e.LinkShare) + each.note
		}
		rows = append(rows, each)
	}
	svg, err := drawLink(rows)
	caption := "Exposed restore time: median TTFT after pressure, of restores from outside alone, less the median TTFT of a hit in device memory of the same length. "
	if p.summary.Link.BytesPerS > 0 {
		caption += fmt.Sprintf("The link moved %s (%s); the lower bar is the time of the restored bytes at that rate. A share above 100 %% means that a part of the copies ran behind the computation.",
			linkRate(p.summary.Link.BytesPerS), oneLine(p.summary.Link.How))
	} else {
		caption += "The link was not measured, so its share is not known."
	}
	out.Figures = []figure{{svg, []string{caption, restoredText(p.summary.Exposed)}}}
	out.Table = exposedTable(p.summary.Exposed)
	return out, err
}

// restoredText says how the restored bytes are known.
func restoredText(exposed []report.Exposed) string {
	var parts []string
	for _, e := range exposed {
		if part := oneLine(e.Backend + ", " + e.RestoredHow); !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return "The restored bytes of one request are the median of: " + strings.Join(parts, "; ") + "."
}

func exposedTable(exposed []report.Exposed) *table {
	t := &table{Head: []column{
		{Text: "Backend"},
		{Text: "Length", Number: true},
		{Text: "After pressure", Unit: "ms", Number: true},
		{Text: "HBM hit", Unit: "ms", Number: true},
		{Text: "of"},
		{Text: "Exposed", Unit: "ms", Number: true},
		{Text: "Restored a request", Number: true},
		{Text: "Link alone", Unit: "ms", Number: true},
		{Text: "Link share", Number: true},
		{Text: "Note"},
	}}
	for _, e := range exposed {
		link, share := numberCell(notKnown), numberCell(notKnown)
		if e.LinkMs > 0 {
			link = numberCell(milliseconds(e.LinkMs))
		}
		if e.LinkShare != nil {
			share = numberCell(fmt.Sprintf("%.0f %%", 100**e.LinkShare))
		}
		t.Rows = append(t.Rows, row{Cells: []cell{
			backendCell(e.Backend),
			numberCell(grouped(int64(e.Length))),
			windowEstimate(e.AfterPressure),
			windowEstimate(e.Hit),
			backendCell(e.HitBackend),
			intervalCell(milliseconds(e.Difference.Median), interval(e.Difference.Interval, milliseconds)),
			numberCell(size(e.MedianRestoredBytes)),
			link,
			share,
			textCell(e.Note),
		}})
	}
	return t
}
