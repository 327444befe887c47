package page

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// Bounds of what other programs wrote; the directory has all of it.
const (
	logTail     = 6 << 10 // bytes
	textHead    = 2 << 10 // bytes of one output
	comparedMax = 40      // differing outputs whose texts are shown
	differMax   = 200     // differing outputs in the table
	failuresMax = 50      // failures with their reasons and logs
)

// differences is the section of the outputs that differ from their cold ones.
func differences(s *report.Summary) section {
	out := section{ID: "outputs", Title: "Output differences"}
	out.Parts = agreementParts(s.Agreements)
	compared := 0
	for _, g := range s.Groups {
		compared += g.Outputs.Compared
	}
	switch {
	case compared == 0:
		out.Intro = []string{"No answer was compared with a cold one of the same prompt."}
	case len(s.Differing) == 0:
		out.Intro = []string{fmt.Sprintf("None: each of %s has the text of its cold one.", counted(compared, "compared answer"))}
	default:
		out.Intro = []string{fmt.Sprintf("%d of %s differ from the cold one of the same prompt. None is left out of the latencies. "+
			"A prompt that differs is asked again on the engine without an external cache, cold and as its own hit, and the verdict says what that shows. "+
			"Where reuse ends at another token the rest of the prompt is computed in another shape and may round otherwise, so such a hit is no proof for or against a cache.",
			len(s.Differing), counted(compared, "compared answer"))}
		p := part{Title: "Answers that differ from the cold one", Table: differingTable(s.Differing[:min(len(s.Differing), differMax)])}
		if len(s.Differing) > differMax {
			p.Text = []string{fmt.Sprintf("The first %d of %d; summary.json has all.", differMax, len(s.Differing))}
		}
		out.Parts = append(out.Parts, p)
	}
	if texts := attributionLogs(s.Attributions); len(texts) > 0 {
		p := part{Title: "The texts", Logs: texts}
		if len(s.Attributions) > comparedMax {
			p.Text = []string{fmt.Sprintf("The first %d of %d.", comparedMax, len(s.Attributions))}
		}
		out.Parts = append(out.Parts, p)
	}
	return out
}

func differingTable(all []report.Differing) *table {
	t := &table{Head: []column{
		{Text: "Backend"},
		{Text: "State"},
		{Text: "Length", Number: true},
		{Text: "C", Number: true},
		{Text: "Pass", Number: true},
		{Text: "Prompt", Number: true},
		{Text: "Request"},
		{Text: "Source"},
		{Text: "Reused", Unit: "tokens", Number: true},
		{Text: "Engine's hit", Unit: "tokens", Number: true},
		{Text: "Same text from"},
		{Text: "Verdict"},
	}}
	for _, d := range all {
		t.Rows = append(t.Rows, row{Cells: []cell{
			backendCell(d.Backend),
			textCell(stateOf(d.Workload, d.Phase, d.Variant)),
			numberCell(grouped(int64(d.Length))),
			countCell(d.Concurrency, false),
			countCell(d.Pass, false),
			countCell(d.Prefix, false),
			codeCell(d.Request),
			textCell(sourceShort(d.Source)),
			numberCell(reusedText(d.Reused, d.Reused)),
			ownHitCell(&d),
			textCell(d.Alike()),
			{Text: oneLine(report.VerdictWords(d.Verdict)), Small: reasonOf(&d), Look: d.Verdict == record.Unexplained},
		}})
	}
	return t
}

// ownHitCell is how far the engine's own hit reused the prompt, and whether its text is its cold one.
func ownHitCell(d *report.Differing) cell {
	if d.ControlReused == nil || d.ControlDiffers == nil {
		return numberCell(notKnown)
	}
	c := numberCell(reusedText(*d.ControlReused, *d.ControlReused))
	c.Small = "as its cold one"
	if *d.ControlDiffers {
		c.Small = "differs, too"
	}
	return c
}

// reasonOf is the reason of a verdict where the columns beside it do not say it.
func reasonOf(d *report.Differing) string {
	if d.Verdict == record.OtherBoundary && d.ControlReused != nil || d.Verdict == record.EngineReproduces {
		return ""
	}
	return oneLine(d.Why)
}

// agreementParts say how often two backends gave the same request the same text.
func agreementParts(all []report.Agreement) []part {
	if len(all) == 0 {
		return nil
	}
	p := part{Title: "Outputs of the same request", Table: agreementTable(all)}
	for _, both := range report.ByPair(all) {
		p.Text = append(p.Text, oneLine(report.Together(both))+".")
	}
	p.Text = append(p.Text, "Whatever the sources: two caches that share no code hardly make the same fault. Marked are texts that differ although both sides reused as many tokens.")
	return []part{p}
}

func agreementTable(all []report.Agreement) *table {
	t := &table{Head: []column{
		{Text: "State"},
		{Text: "Length", Number: true},
		{Text: "C", Number: true},
		{Text: "A"},
		{Text: "Sources"},
		{Text: "Reused", Unit: "tokens", Number: true},
		{Text: "B"},
		{Text: "Sources"},
		{Text: "Reused", Unit: "tokens", Number: true},
		{Text: "Same text", Number: true},
	}}
	for _, both := range report.ByPair(all) {
		for i, a := range both {
			alike := a.A.Least == a.B.Least && a.A.Most == a.B.Most
			t.Rows = append(t.Rows, row{Begins: i == 0 && len(t.Rows) > 0, Cells: []cell{
				textCell(stateOf(a.Workload, a.Phase, a.Variant)),
				numberCell(grouped(int64(a.Length))),
				countCell(a.Concurrency, false),
				backendCell(a.A.Backend),
				textCell(sourcesText(a.A.Sources)),
				numberCell(reusedText(a.A.Least, a.A.Most)),
				backendCell(a.B.Backend),
				textCell(sourcesText(a.B.Sources)),
				numberCell(reusedText(a.B.Least, a.B.Most)),
				{Text: fmt.Sprintf("%d of %d", a.Same, a.N), Number: true, Look: alike && a.Same < a.N},
			}})
		}
	}
	return t
}

// reusedText is a range of reused tokens; an answer may not say them.
func reusedText(least, most int) string {
	switch {
	case least < 0:
		return notKnown
	case least == most:
		return grouped(int64(least))
	}
	return grouped(int64(least)) + " to " + grouped(int64(most))
}

func attributionLogs(all []record.Attribution) []logText {
	var logs []logText
	for i := range all[:min(len(all), comparedMax)] {
		a := &all[i]
		logs = append(logs, logText{
			Name: oneLine(fmt.Sprintf("%s, %s: %s", a.Request, words(string(a.Phase)), report.VerdictWords(a.Verdict))),
			Text: strings.Join([]string{
				"cold:           " + shown(a.ColdText),
				"differs:        " + shown(a.Differing),
				"engine, cold:   " + shown(a.ControlCold),
				"engine, hit:    " + shown(a.ControlHit),
			}, "\n"),
		})
	}
	return logs
}

// shown writes an output on one line with its quotes, so that blanks at its ends are seen.
func shown(s string) string {
	if len(s) > textHead {
		return fmt.Sprintf("%q and %s more", strings.ToValidUTF8(s[:textHead], "\uFFFD"), counted(len(s)-textHead, "byte"))
	}
	return fmt.Sprintf("%q", s)
}

// failures is the section of what could not be measured.
func failures(run *record.Run, s *report.Summary) section {
	out := section{ID: "failures", Title: "Failures"}
	if len(s.Failures) == 0 {
		out.Intro = []string{"None."}
		return out
	}
	out.Intro = []string{"A failure is never a latency sample. Its cells are missing from the results unless it says that they were finished later."}
	if len(s.Failures) > failuresMax {
		out.Intro = append(out.Intro, fmt.Sprintf("The first %d of %d; failures.jsonl has all.", failuresMax, len(s.Failures)))
	}
	for i := range s.Failures[:min(len(s.Failures), failuresMax)] {
		out.Parts = append(out.Parts, failurePart(run.Path, &s.Failures[i]))
	}
	return out
}

func failurePart(path string, f *report.Failure) part {
	name := f.Backend
	if f.Cell != "" && f.Cell != f.Backend {
		name += ", cell " + f.Cell
	}
	later := "no"
	if f.Recovered {
		later = "yes"
	}
	out := part{
		Title: oneLine(name),
		Facts: []fact{
			{"When", oneLine(fmt.Sprintf("%s, pass %d, attempt %d, at its %s", moment(f.At), f.Pass, f.Attempt, f.Stage))},
			{"Part", oneLine(f.Part)},
			{"Finished later", later},
		},
		Logs: []logText{{"Reason", cleaned(f.Reason)}},
	}
	if f.Log == "" {
		return out
	}
	tail, err := endOf(path, f.Log)
	if err != nil {
		out.Text = append(out.Text, "The end of its log is missing here: "+oneLine(err.Error())+".")
		return out
	}
	out.Logs = append(out.Logs, logText{"The end of " + oneLine(f.Log), tail})
	return out
}

// endOf returns the last lines of a log of the output directory, of at most logTail bytes. A name that leads out of the directory is refused.
func endOf(path, name string) (string, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return "", fmt.Errorf("the output directory cannot be opened: %w", err)
	}
	defer root.Close()
	info, err := root.Stat(filepath.FromSlash(name))
	switch {
	case err != nil:
		return "", fmt.Errorf("the log cannot be opened: %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file", name)
	}
	file, err := root.Open(filepath.FromSlash(name))
	if err != nil {
		return "", fmt.Errorf("the log cannot be opened: %w", err)
	}
	defer file.Close()
	text := make([]byte, min(logTail, info.Size()))
	if _, err := file.ReadAt(text, info.Size()-int64(len(text))); err != nil && err != io.EOF {
		return "", fmt.Errorf("the log cannot be read: %w", err)
	}
	tail := string(text)
	if int64(len(text)) < info.Size() {
		_, after, cut := strings.Cut(tail, "\n")
		if cut {
			tail = after
		}
		tail = "…\n" + tail
	}
	return cleaned(tail), nil
}

// drains is the section of the check after the last request of each backend.
func drains(s *report.Summary) section {
	out := section{ID: "drain", Title: "Drain check", Intro: []string{
		"After the last request of a backend everything that a request borrows must be given back: reservations, leases, pending and quarantined bytes, storage operations.",
	}}
	if len(s.Drains) == 0 {
		out.Intro = append(out.Intro, "No backend came to its end, so nothing was checked.")
		return out
	}
	t := &table{Head: []column{
		{Text: "Backend"},
		{Text: "Pass", Number: true},
		{Text: "Attempt", Number: true},
		{Text: "Drained"},
		{Text: "Waited", Unit: "ms", Number: true},
		{Text: "Watched", Number: true},
		{Text: "Not 0 at the end"},
		{Text: "Why"},
	}}
	for i := range s.Drains {
		d := &s.Drains[i]
		var left []string
		for _, name := range slices.Sorted(maps.Keys(d.Values)) {
			if v := d.Values[name]; v != 0 {
				left = append(left, name+" "+valueText(name, v))
			}
		}
		t.Rows = append(t.Rows, row{Cells: []cell{
			backendCell(d.Backend),
			countCell(d.Pass, false),
			countCell(d.Attempt, false),
			{Text: drainedText(d), Look: d.Checked && !d.Drained},
			numberCell(milliseconds(d.WaitMs)),
			countCell(len(d.Values), false),
			codeCell(strings.Join(left, ", ")),
			textCell(d.Why),
		}})
	}
	out.Parts = []part{{Table: t}}
	return out
}

func drainedText(d *report.Drain) string {
	switch {
	case !d.Checked:
		return "not checked"
	case d.Drained:
		return "yes"
	}
	return "no"
}
