package report

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// WriteTables writes a summary for people, as text for a terminal. The error is the writer's.
func WriteTables(w io.Writer, s *Summary) error {
	var t text
	t.head(s)
	t.latencies(s)
	t.differences("Differences of TTFT between backends, the same prompts in pairs (ms)", s.Paired)
	t.exposedTimes(s.Exposed)
	if len(s.Exposed) > 0 {
		t.link("link", s.Link)
	}
	t.windowTable(s)
	t.tierTable(s)
	t.gauges(s)
	t.agreementTable(s.Agreements)
	t.differing(s)
	t.undecided(s, record.Unexplained, "*** Outputs that the engine alone does not explain ***")
	t.undecided(s, record.OtherBoundary, "Outputs whose reuse ends where no hit of the engine's own can: neither for nor against the cache")
	t.failureTable(s)
	t.drainTable(s)
	t.line("")
	return t.to(w)
}

// head says what was measured, how much of it, and what must be known beside the figures.
func (t *text) head(s *Summary) {
	t.line("%s on %s, %s, workload %s, seed %d", strings.TrimSpace(s.Engine+" "+s.EngineVersion), s.Device, filepath.Base(s.Model.Path), s.Workload, s.Seed)
	t.line("%s, measured by orbitkv %s", s.Path, s.Version)
	var parts []string
	for _, c := range s.Coverage {
		parts = append(parts, fmt.Sprintf("%s %d of %d", c.Backend, c.Finished, c.Planned))
	}
	if s.Part.Complete() {
		t.line("complete: %d cells (%s)", s.Part.Planned, strings.Join(parts, ", "))
	} else {
		t.line("\n*** part: %d of %d cells (%s) ***", s.Part.Finished, s.Part.Planned, strings.Join(parts, ", "))
		t.line("*** The run is not complete: the figures below are of the finished cells alone. ***")
	}
	c := s.Counts
	t.line("%d requests: %d measured, %d of them failed, %d unverified; %d not measured, %d of unfinished cells", c.Samples, c.Measured, c.Failed, c.Unverified, c.Unmeasured, c.Superseded)
	for _, each := range []struct {
		kind  string
		lines []string
	}{{"caution", s.Cautions}, {"outcome", s.Outcomes}, {"note", s.Notes}} {
		for _, line := range each.lines {
			t.line("%s: %s", each.kind, line)
		}
	}
}

// latencies is the table of groups: one row a source, so that no latency mixes them.
func (t *text) latencies(s *Summary) {
	if len(s.Groups) == 0 {
		return
	}
	t.title("Latency by state and by the source of the prompt's KV (ms, medians; the interval is of TTFT p50)")
	var rows [][]string
	unexpected := false
	for i := range s.Groups {
		g := &s.Groups[i]
		for _, r := range g.Rows {
			rows = append(rows, g.line(r))
		}
		if g.Failed > 0 {
			rows = append(rows, append(g.place(), fmt.Sprint(g.Failed), "failed: no latency"))
		}
		if len(g.Rows) > 0 {
			first := rows[len(rows)-len(g.Rows)-min(g.Failed, 1)]
			first[len(first)-1] = outputWords(g.Outputs)
		}
		unexpected = unexpected || g.Unexpected > 0
	}
	t.table([]string{
		"length", "at once", "state", "backend", "n", "source", " TTFT p50", "95 % interval", "      p95", "      p99", "  E2E p50", " TPOT p50", "restored in all", "outputs",
	}, rows)
	if unexpected {
		t.line("  ! a source that the state is not meant to have; but for mixed HBM hits these samples are in no difference and in no restore time")
	}
	t.line("  intervals: percentile bootstrap, %d resamples, seeded; none below %d samples, no p95 below %d, no p99 below %d",
		stat.Resamples, stat.IntervalMin, stat.P95Min, stat.P99Min)
}

// place is the columns that name a group. Serial requests are not said to be one at a time.
func (g *Group) place() []string {
	atOnce := none
	if g.Workload == concurrent || g.Workload == sustained {
		atOnce = fmt.Sprint(g.Concurrency)
	}
	return []string{fmt.Sprintf("%6d", g.Length), atOnce, g.state(), g.Backend}
}

// line is one row of a group; its last column is left for the outputs of the whole group.
func (g *Group) line(r Row) []string {
	source := string(r.Source)
	if g.Expected != nil && !slices.Contains(g.Expected, r.Source) {
		source += " !"
	}
	return append(g.place(), fmt.Sprint(r.N), source, median(r.TTFT), interval(r.TTFT.Interval), msOr(r.TTFTp95), msOr(r.TTFTp99),
		median(r.E2E), median(r.TPOT), g.restored(r), "")
}

// restored is what the cache service says it restored. Some tell no bytes, and those of a burst belong to no single group.
func (g *Group) restored(r Row) string {
	if r.SumRestoredBytes == 0 && r.SumExternalTokens > 0 && (g.Workload == latency || g.Workload == partial) {
		return "not told"
	}
	return size(r.SumRestoredBytes)
}

// differences is the table of pairings.
func (t *text) differences(title string, pairings []Pairing) {
	if len(pairings) == 0 {
		return
	}
	t.title("%s", title)
	var rows [][]string
	for i := range pairings {
		rows = append(rows, pairings[i].line())
	}
	t.table([]string{"length", "state", "A", "B", "n", "    A p50", "    B p50", "    B - A", "95 % interval", "B / A", "left out"}, rows)
	t.line("  B / A is the ratio of the two medians; paired differences are medians of differences")
}

func (p *Pairing) line() []string {
	n := fmt.Sprintf("%d pairs", p.N)
	switch {
	case p.Paired && p.N == 1:
		n = "1 pair"
	case !p.Paired:
		n = fmt.Sprintf("%d, %d unpaired", p.A.TTFT.N, p.B.TTFT.N)
	}
	cells := []string{fmt.Sprintf("%6d", p.Length), StateWords(p.Workload, p.Variant, p.Phase), p.A.name(), p.B.name(), n, median(p.A.TTFT), median(p.B.TTFT)}
	if p.A.TTFT.N == 0 || p.B.TTFT.N == 0 {
		return append(cells, msOr(nil), none, none, p.LeftOut())
	}
	return append(cells, signed(p.Difference), interval(p.Interval), fmt.Sprintf("%.2f", p.Ratio), p.LeftOut())
}

// name is a side with the sources of its samples.
func (s *Side) name() string {
	name := labelled(s.Run, s.Backend)
	var from []string
	for _, source := range s.Sources {
		from = append(from, string(source.Source))
	}
	if len(from) == 0 {
		return name
	}
	return name + " (" + strings.Join(from, ", ") + ")"
}

// LeftOut says which samples of either side are in no difference.
func (p *Pairing) LeftOut() string {
	var all []string
	for _, side := range []struct {
		name string
		Side
	}{{"A", p.A}, {"B", p.B}} {
		if len(side.LeftOut) > 0 {
			all = append(all, side.name+": "+listed(side.LeftOut))
		}
		if side.Failed > 0 {
			all = append(all, fmt.Sprintf("%s: %d failed", side.name, side.Failed))
		}
	}
	if p.Without > 0 {
		all = append(all, fmt.Sprintf("%d without a partner", p.Without))
	}
	return strings.Join(all, "; ")
}

// exposedTimes is what restores cost and how much of it the link explains.
func (t *text) exposedTimes(all []Exposed) {
	if len(all) == 0 {
		return
	}
	t.title("Exposed restore time: TTFT after pressure (external alone) less TTFT of a hit in device memory (ms)")
	var rows [][]string
	for _, e := range all {
		share, link := none, msOr(nil)
		if e.LinkMs > 0 {
			link = ms(e.LinkMs)
		}
		if e.LinkShare != nil {
			share = fmt.Sprintf("%.0f %%", *e.LinkShare*100)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%6d", e.Length), labelled(e.Run, e.Backend), fmt.Sprint(e.AfterPressure.N), median(e.AfterPressure), median(e.Hit),
			fmt.Sprintf("%s (%s)", labelled(e.HitRun, e.HitBackend), listed(e.HitSources)),
			signed(e.Difference.Median), interval(e.Difference.Interval), size(e.MedianRestoredBytes), link, share, e.Note,
		})
	}
	t.table([]string{"length", "backend", "n", " pressure", "      hit", "hit of", "  exposed", "95 % interval", "restored", "     link", "link share", ""}, rows)
	t.line("  link share: the time that the restored bytes need on the measured link over the exposed time; above 100 %% where a part of the copy")
	t.line("  ran beside the computation")
}

// link names what was measured as the link.
func (t *text) link(name string, l Link) {
	if l.BytesPerS == 0 {
		t.line("  %s: not measured, so there is no share of it", name)
		return
	}
	t.line("  %s: %s, measured as %s", name, rate(l.BytesPerS), l.How)
}

// labelled is a backend with the label of its run, where there are several.
func labelled(run, backend string) string {
	if run == "" {
		return backend
	}
	return run + ":" + backend
}

// differing says what explains the outputs that differ from the cold ones.
func (t *text) differing(s *Summary) {
	var rows [][]string
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Outputs.Differing > 0 {
			rows = append(rows, append(g.place(), outputWords(g.Outputs), g.Outputs.why()))
		}
	}
	if len(rows) == 0 {
		return
	}
	t.title("Outputs that differ from the cold ones")
	t.table([]string{"length", "at once", "state", "backend", "outputs", "what a control on the engine alone says"}, rows)
}

// undecided lists the outputs of a verdict that leaves the cache in question: what is alike in one line, with the backends that answered alike.
func (t *text) undecided(s *Summary, verdict record.Verdict, title string) {
	var order []string
	alike := map[string][]string{} // requests by the rest of their line
	cells := map[string][]string{}
	for i := range s.Differing {
		d := &s.Differing[i]
		if d.Verdict != verdict {
			continue
		}
		line := d.line()
		name := strings.Join(line, "\t")
		if alike[name] == nil {
			order = append(order, name)
		}
		alike[name], cells[name] = append(alike[name], d.Request), line
	}
	if len(order) == 0 {
		return
	}
	t.title("%s", title)
	var rows [][]string
	for _, name := range order {
		requests := alike[name]
		first := requests[0]
		if more := len(requests) - 1; more > 0 {
			first += fmt.Sprintf(" and %d more", more)
		}
		rows = append(rows, append(cells[name], fmt.Sprint(len(requests)), first))
	}
	t.table([]string{"backend", "state", "length", "at once", "source", "reused", "engine's hit reused", "engine's hit", "same text from", "n", "requests"}, rows)
}

// line is a differing output without what names the single request.
func (d *Differing) line() []string {
	atOnce := none
	if d.Workload == concurrent || d.Workload == sustained {
		atOnce = fmt.Sprint(d.Concurrency)
	}
	reused, own := none, none
	if d.ControlReused != nil {
		reused = tokens(*d.ControlReused)
	}
	if d.ControlDiffers != nil {
		own = "as its cold one"
		if *d.ControlDiffers {
			own = "another than its cold one"
		}
	}
	return []string{d.Backend, d.state(), fmt.Sprintf("%6d", d.Length), atOnce, string(d.Source), tokens(d.Reused), reused, own, d.Alike()}
}

// tokens is a number of tokens that an answer may not say.
func tokens(n int) string {
	if n < 0 {
		return "not said"
	}
	return fmt.Sprint(n)
}

// Alike names the other backends that gave the request of a differing output the very same text.
func (d *Differing) Alike() string {
	switch {
	case d.Others == 0:
		return "no other was asked"
	case len(d.SameText) == 0:
		return fmt.Sprintf("none of %d", d.Others)
	}
	return strings.Join(d.SameText, ", ")
}

// failureTable lists what could not be measured; none of it is a latency.
func (t *text) failureTable(s *Summary) {
	if len(s.Failures) == 0 {
		return
	}
	t.title("Failures: what could not be measured, and is no sample of anything")
	for _, f := range s.Failures {
		after := ""
		if f.Recovered {
			after = " (measured later)"
		}
		cell := f.Cell
		if cell == "" {
			cell = fmt.Sprintf("%s/p%d", f.Backend, f.Pass)
		}
		t.line("  %s, attempt %d: %s, %s%s: %s", cell, f.Attempt, f.Stage, f.Part, after, strings.ReplaceAll(f.Reason, "\n", "\n      "))
		if f.Log != "" {
			t.line("      log: %s", f.Log)
		}
	}
}

// drainTable says whether each backend gave back what its requests had borrowed.
func (t *text) drainTable(s *Summary) {
	if len(s.Drains) == 0 {
		return
	}
	t.title("Drain: whether everything that requests borrow was given back at the end")
	var rows [][]string
	for _, d := range s.Drains {
		verdict := "everything was given back"
		switch {
		case !d.Checked:
			verdict = "not checked"
		case !d.Drained:
			verdict = "*** NOT given back ***"
		}
		rows = append(rows, []string{d.Backend, fmt.Sprint(d.Pass), fmt.Sprint(d.Attempt), fmt.Sprintf("%.0f ms", d.WaitMs), verdict, d.Why})
	}
	t.table([]string{"backend", "pass", "attempt", "waited", "verdict", ""}, rows)
}
