package page

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// Write writes the report of a run as one HTML file. The run's directory is read for the ends of logs that failures name; one that is gone is said in
// the report. The error is the writer's, or says which figure could not be drawn.
func Write(w io.Writer, run *record.Run, s *report.Summary) error {
	figures, err := figureSection(run, s)
	if err != nil {
		return err
	}
	v := view{
		Kind:     "OrbitKV measurement",
		Title:    oneLine(engineName(s.Engine) + " · " + words(s.Workload)),
		Facts:    topFacts(run, s),
		Findings: findings(s),
		Sections: []section{
			headline(run, s), figures, differences(s), failures(run, s), drains(s), whatRan(&run.Manifest, s), notes(s),
		},
		Footer: oneLine(fmt.Sprintf("Made by orbitkv %s from the files of %s. Intervals are 95 %% bootstrap intervals of medians; summary.json has every figure of this page.",
			s.Version, s.Path)),
		Style: styleSheet(),
	}
	if err := pageTemplate.Execute(w, v); err != nil {
		return fmt.Errorf("page: writing the report of %s: %w", s.Path, err)
	}
	return nil
}

func engineName(engine string) string {
	switch engine {
	case record.VLLM:
		return "vLLM"
	case record.SGLang:
		return "SGLang"
	}
	return engine
}

func topFacts(run *record.Run, s *report.Summary) []string {
	m := &run.Manifest
	facts := []string{strings.TrimSpace(engineName(s.Engine) + " " + s.EngineVersion), "OrbitKV " + s.Version}
	if m.Model.Type != "" {
		facts = append(facts, fmt.Sprintf("%s, %d layers", m.Model.Type, m.Model.Layers))
	}
	if len(m.Machine.GPUs) > 0 {
		facts = append(facts, m.Machine.GPUs[0].Name)
	} else {
		facts = append(facts, strings.TrimSpace("no GPU, "+m.Machine.CPU))
	}
	facts = append(facts, fmt.Sprintf("seed %d", s.Seed), moment(m.Started))
	for i := range facts {
		facts[i] = oneLine(facts[i])
	}
	return facts
}

// findings are what a reader must know before the first figure.
func findings(s *report.Summary) []finding {
	found := []finding{coverageFinding(s)}
	const most = 5 // failures named here; their section has the others
	failed := 0
	for i := range s.Failures {
		f := &s.Failures[i]
		if f.Recovered {
			continue
		}
		if failed++; failed <= most {
			found = append(found, finding{look, oneLine(fmt.Sprintf("%s failed at its %s (%s): %s", f.Backend, f.Stage, f.Part, firstLine(f.Reason)))})
		}
	}
	if failed > most {
		found = append(found, finding{look, fmt.Sprintf("There are %d failures more.", failed-most)})
	}
	for _, caution := range s.Cautions {
		found = append(found, finding{look, sentence(caution)})
	}
	for _, outcome := range s.Outcomes {
		found = append(found, finding{plain, sentence(outcome)})
	}
	if len(s.Groups) > 0 {
		found = append(found, sourceFinding(s), outputFinding(s))
	}
	return append(found, drainFinding(s))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	const most = 240 // bytes: the whole reason stands in the section of failures
	if len(line) > most {
		line = strings.ToValidUTF8(line[:most], "") + "…"
	}
	return line
}

func coverageFinding(s *report.Summary) finding {
	var parts []string
	for _, c := range s.Coverage {
		parts = append(parts, fmt.Sprintf("%s %d of %d", c.Backend, c.Finished, c.Planned))
	}
	text := fmt.Sprintf("%d of %d planned cells are finished: %s.", s.Part.Finished, s.Part.Planned, strings.Join(parts, ", "))
	if s.Part.Planned == 0 {
		text = "The run ended before it planned any cell."
	}
	return judged(s.Part.Complete(), oneLine(text))
}

// sourceFinding tells hits in device memory that restored a part from outside from what came from a wrong source: vLLM's connectors restore the page that
// the device never shares, so such a hit is still one.
func sourceFinding(s *report.Summary) finding {
	unexpected, tails, meant := 0, 0, false
	for _, g := range s.Groups {
		unexpected += g.Unexpected
		meant = meant || len(g.Expected) > 0
		for _, source := range g.Sources {
			if g.Phase == record.HBMHit && source.Source == record.FromBoth && len(g.Expected) > 0 {
				tails += source.N
			}
		}
	}
	unexpected -= tails
	text := fmt.Sprintf("%s measured", counted(s.Counts.Measured, "request"))
	if s.Counts.Failed > 0 {
		text += fmt.Sprintf(", %d of them without a whole answer", s.Counts.Failed)
	}
	if unexpected == 0 && meant {
		text += "; each state shows the cache source that it is meant to show"
	}
	if tails > 0 {
		text += fmt.Sprintf("; %d HBM hits restored a part from outside, too (mixed)", tails)
	}
	if unexpected == 0 {
		return judged(s.Counts.Failed == 0 && s.Counts.Unverified == 0, fmt.Sprintf("%s; %d unverified.", text, s.Counts.Unverified))
	}
	return finding{look, fmt.Sprintf("%s; %d came from another cache source than their state is meant to show (%d of all are unverified). They stand in rows of their own.",
		text, unexpected, s.Counts.Unverified)}
}

func outputFinding(s *report.Summary) finding {
	compared := 0
	for _, g := range s.Groups {
		compared += g.Outputs.Compared
	}
	verdicts := map[record.Verdict]int{}
	for _, d := range s.Differing {
		verdicts[d.Verdict]++
	}
	switch {
	case compared == 0:
		return finding{look, "No output was compared with a cold one."}
	case len(s.Differing) == 0:
		return finding{good, fmt.Sprintf("All %s equal their cold ones.", counted(compared, "compared output"))}
	}
	var parts []string
	for _, v := range []struct {
		verdict record.Verdict
		words   string
	}{
		{record.Unexplained, "unexplained by the engine alone"},
		{record.OtherBoundary, "at a boundary that the engine alone cannot show"},
		{record.EngineReproduces, "given by the engine alone, too"},
		{record.EngineUnstable, "of prompts whose cold text the engine alone does not give"},
		{record.NotRun, "without a control, which failed"},
		{"", "without a control yet"},
	} {
		if n := verdicts[v.verdict]; n > 0 || v.verdict == record.Unexplained {
			parts = append(parts, fmt.Sprintf("%d %s", n, v.words))
		}
	}
	return finding{look, fmt.Sprintf("%d of %s differ from the cold ones: %s.", len(s.Differing), counted(compared, "compared output"), strings.Join(parts, ", "))}
}

func drainFinding(s *report.Summary) finding {
	var left []string
	checked := 0
	for i := range s.Drains {
		d := &s.Drains[i]
		if !d.Checked {
			continue
		}
		checked++
		if !d.Drained && !slices.Contains(left, d.Backend) {
			left = append(left, d.Backend)
		}
	}
	switch {
	case len(left) > 0:
		return finding{look, oneLine("Not everything was given back at the end: " + strings.Join(left, ", ") + ".")}
	case checked == 0:
		const untold = "No backend told what it still holds, so the drain check had nothing to look at."
		tells := slices.ContainsFunc(s.Coverage, func(c report.Coverage) bool { return c.Backend == record.OrbitKV })
		if tells {
			return finding{look, untold}
		}
		return finding{plain, untold}
	}
	return finding{good, "Everything that requests borrow was given back at the end of each backend that tells of it."}
}

// notes is the last section: what the files themselves say to whoever reads the figures.
func notes(s *report.Summary) section {
	out := section{ID: "notes", Title: "Notes"}
	var all []string
	for _, note := range s.Notes {
		all = append(all, oneLine(note))
	}
	c := s.Counts
	all = append(all, fmt.Sprintf("Of %s of requests, %d are measured and final; %d of cells that are unfinished or were measured again, and %d of warm-up, preparation, pressure and controls (%d of these without a whole answer) are in no figure.",
		counted(c.Samples, "row"), c.Measured, c.Superseded, c.Unmeasured, c.UnmeasuredFailed))
	out.Intro = all
	return out
}
