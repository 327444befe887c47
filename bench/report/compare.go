package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// RunsMax is how many runs one comparison takes.
const RunsMax = 8

// Comparison sets runs of one engine and one model beside each other; every run is compared with the first.
type Comparison struct {
	Engine      string          `json:"engine"`
	Model       record.Model    `json:"model"` // of the first run
	Workload    string          `json:"workload"`
	Runs        []Compared      `json:"runs"`
	Differences []RunDifference `json:"differences"` // what the runs do not share beside their backends
	Rows        []Pairing       `json:"rows"`
	Agreements  []Agreement     `json:"agreements"` // of every backend of the first run with every one of another that was asked for the same prompts
	Exposed     []Exposed       `json:"exposed"`    // against native of the same run, or of the first run that has it
	Windows     []WindowPair    `json:"windows"`
	Notes       []string        `json:"notes"`
}

// Compared is one run of a comparison.
type Compared struct {
	Label    string   `json:"label"` // A, B, ...
	Path     string   `json:"path"`
	Version  string   `json:"version"`
	Backends []string `json:"backends"`
	Part     Part     `json:"part"`
	Paired   bool     `json:"paired"` // same seed as the first run, so the same prompts
	Link     Link     `json:"link"`
}

// RunDifference is one fact in which a run differs from the first.
type RunDifference struct {
	Run string `json:"run"`
	record.Difference
}

// WindowPair is the same window of two runs.
type WindowPair struct {
	RunA      string  `json:"run_a"`
	RunB      string  `json:"run_b"`
	A         Window  `json:"a"`
	B         Window  `json:"b"`
	RateRatio float64 `json:"rate_ratio"` // requests/s of B over those of A; 0 when A had none
}

// Compare sets runs beside each other. It refuses runs of two engines, of different models or workloads, without a length in common, or whose own rows
// contradict each other; the error says which and why.
func Compare(runs []*record.Run) (*Comparison, error) {
	if len(runs) < 2 || len(runs) > RunsMax {
		return nil, fmt.Errorf("%d output directories cannot be compared: name between 2 and %d", len(runs), RunsMax)
	}
	var summaries []*Summary
	for _, run := range runs {
		s, err := Summarise(run)
		if err != nil {
			return nil, err
		}
		summaries = append(summaries, s)
	}
	first := runs[0]
	c := &Comparison{Engine: first.Manifest.Options.Engine, Model: first.Manifest.Model, Workload: first.Manifest.Options.Workload}
	for i, run := range runs {
		label := string(rune('A' + i))
		other := otherPrompts(&first.Manifest.Options, &run.Manifest.Options)
		paired := other == ""
		c.Runs = append(c.Runs, Compared{label, run.Path, run.Manifest.Version, run.Manifest.Options.Backends, summaries[i].Part, paired, summaries[i].Link})
		if !summaries[i].Part.Complete() {
			c.Notes = append(c.Notes, fmt.Sprintf("run %s is not complete: part: %d of %d cells", label, summaries[i].Part.Finished, summaries[i].Part.Planned))
		}
		if i == 0 {
			continue
		}
		if err := refusal(first, run, runs[:i]); err != nil {
			return nil, fmt.Errorf("%s and %s cannot be compared: %w", first.Path, run.Path, err)
		}
		if !paired {
			c.Notes = append(c.Notes, fmt.Sprintf("run %s has %s: other prompts, so its differences are unpaired", label, other))
		}
		for _, d := range differencesOf(&first.Manifest, &run.Manifest) {
			c.Differences = append(c.Differences, RunDifference{label, d})
		}
		c.add(first, run, label, paired)
		c.addWindows(summaries[0], summaries[i], label)
	}
	c.addExposed(runs)
	c.Differences, c.Rows, c.Agreements = listOf(c.Differences), listOf(c.Rows), listOf(c.Agreements)
	c.Exposed, c.Windows = listOf(c.Exposed), listOf(c.Windows)
	c.Notes = append(c.Notes, coldCautions(c.Rows)...)
	if len(c.Rows) == 0 && len(c.Windows) == 0 {
		c.Notes = append(c.Notes, "no state is finished in two runs: there is nothing to compare yet")
	}
	c.Notes = listOf(c.Notes)
	return c, nil
}

// refusal says why two runs cannot be set beside each other.
func refusal(a, b *record.Run, before []*record.Run) error {
	x, y := &a.Manifest.Options, &b.Manifest.Options
	if slices.ContainsFunc(before, func(r *record.Run) bool { return filepath.Clean(r.Path) == filepath.Clean(b.Path) }) {
		return errors.New("one directory is named twice")
	}
	if x.Engine != y.Engine {
		return fmt.Errorf("one is of %s, the other of %s; two engines differ in their kernels, schedulers and front ends, so this would not compare caches: compare backends within an engine", x.Engine, y.Engine)
	}
	if x.Workload != y.Workload {
		return fmt.Errorf("one is of the workload %s, the other of %s", x.Workload, y.Workload)
	}
	left, right := a.Manifest.Model, b.Manifest.Model
	left.Path, right.Path = "", ""
	if d := record.Differences(left, right); len(d) > 0 {
		return fmt.Errorf("they are of different models: %s", joined(d))
	}
	if !slices.ContainsFunc(x.Lengths, func(length int) bool { return slices.Contains(y.Lengths, length) }) {
		return fmt.Errorf("no length is in both: %v and %v", x.Lengths, y.Lengths)
	}
	for _, r := range before {
		if sameRun(r, b) {
			return fmt.Errorf("%s holds the same run as the second: both began at the same time and have the same requests; name each run once", r.Path)
		}
	}
	return nil
}

// sameRun says whether two directories hold the rows of one run, as a copy does.
func sameRun(a, b *record.Run) bool {
	requests := map[string]bool{}
	for i := range a.Samples {
		requests[a.Samples[i].Request] = true
	}
	return a.Manifest.Started.Equal(b.Manifest.Started) && slices.ContainsFunc(b.Samples, func(s record.Sample) bool { return requests[s.Request] })
}

func joined(differences []record.Difference) string {
	var all []string
	for _, d := range differences {
		all = append(all, fmt.Sprintf("%s %s and %s", d.Name, d.A, d.B))
	}
	return strings.Join(all, "; ")
}

// differencesOf lists what two runs do not share, but for the backends, which are what is compared.
func differencesOf(a, b *record.Manifest) []record.Difference {
	type facts struct {
		Version  string            `json:"version"`
		Machine  record.Machine    `json:"machine"`
		Packages map[string]string `json:"packages"`
		Link     string            `json:"link"`
		Options  record.Options    `json:"options"`
	}
	of := func(m *record.Manifest) facts {
		options := m.Options
		options.Backends = nil
		return facts{m.Version, m.Machine, m.Probe.Packages, rate(m.Probe.LinkBytesPerS), options}
	}
	return record.Differences(of(a), of(b))
}

// partners pairs the backends of two runs: each with itself, and those that only one run has with those that only the other has.
func partners(a, b []string) [][2]string {
	var pairs [][2]string
	for _, x := range a {
		for _, y := range b {
			if x == y || !slices.Contains(b, x) && !slices.Contains(a, y) {
				pairs = append(pairs, [2]string{x, y})
			}
		}
	}
	return pairs
}

func (c *Comparison) add(a, b *record.Run, label string, paired bool) {
	left, right := final(a), final(b)
	for _, pair := range partners(a.Manifest.Options.Backends, b.Manifest.Options.Backends) {
		x, y := side{"A", pair[0], of(left, pair[0])}, side{label, pair[1], of(right, pair[1])}
		c.Rows = append(c.Rows, pairings(x, y, paired, uint64(a.Manifest.Options.Seed))...)
	}
	if samePrompts(&a.Manifest.Options, &b.Manifest.Options) {
		for _, x := range a.Manifest.Options.Backends {
			for _, y := range b.Manifest.Options.Backends {
				c.Agreements = append(c.Agreements, agreements(side{"A", x, of(left, x)}, side{label, y, of(right, y)})...)
			}
		}
	}
	slices.SortStableFunc(c.Rows, func(x, y Pairing) int {
		return cmp.Or(compareKeys(x.key(), y.key(), nil), cmp.Compare(x.B.Run, y.B.Run))
	})
}

// addExposed relates the restores of every run to native's hits, which are often in a directory of their own.
func (c *Comparison) addExposed(runs []*record.Run) {
	var natives []side
	for i, run := range runs {
		natives = append(natives, side{c.Runs[i].Label, native, of(final(run), native)})
	}
	for i, run := range runs {
		nearest := slices.Concat(natives[i:i+1], natives)
		c.Exposed = append(c.Exposed, exposed(c.Runs[i].Label, final(run), nearest, &run.Manifest, uint64(runs[0].Manifest.Options.Seed))...)
	}
	slices.SortStableFunc(c.Exposed, func(a, b Exposed) int { return cmp.Compare(a.Length, b.Length) })
}

func (c *Comparison) addWindows(a, b *Summary, label string) {
	for _, pair := range partners(c.Runs[0].Backends, c.Runs[len(c.Runs)-1].Backends) {
		for _, x := range a.Windows {
			for _, y := range b.Windows {
				key := x.Key
				key.Backend = y.Backend
				if x.Backend != pair[0] || y.Backend != pair[1] || key != y.Key || x.Pass != y.Pass {
					continue
				}
				w := WindowPair{RunA: "A", RunB: label, A: x, B: y}
				if x.RequestsPerS > 0 {
					w.RateRatio = y.RequestsPerS / x.RequestsPerS
				}
				c.Windows = append(c.Windows, w)
			}
		}
	}
}

// WriteComparison writes a comparison for people, as text for a terminal. The error is the writer's.
func WriteComparison(w io.Writer, c *Comparison) error {
	var t text
	t.line("%s, %s, workload %s", c.Engine, filepath.Base(c.Model.Path), c.Workload)
	for _, run := range c.Runs {
		whole := fmt.Sprintf("complete: %d cells", run.Part.Planned)
		if !run.Part.Complete() {
			whole = fmt.Sprintf("*** part: %d of %d cells ***", run.Part.Finished, run.Part.Planned)
		}
		t.line("  %s  %s: %s, orbitkv %s, %s", run.Label, run.Path, strings.Join(run.Backends, ", "), run.Version, whole)
	}
	for _, note := range c.Notes {
		t.line("note: %s", note)
	}
	if len(c.Differences) > 0 {
		t.title("What else differs from run A, and may explain what follows")
		var rows [][]string
		for _, d := range c.Differences {
			rows = append(rows, []string{d.Run, d.Name, d.A, d.B})
		}
		t.table([]string{"run", "fact", "in A", "in the run"}, rows)
	}
	t.differences("Differences of TTFT (ms)", c.Rows)
	t.answers(c.Rows)
	t.exposedTimes(c.Exposed)
	for _, run := range c.Runs {
		if slices.ContainsFunc(c.Exposed, func(e Exposed) bool { return e.Run == run.Label }) {
			t.link("link of "+run.Label, run.Link)
		}
	}
	t.windowPairs(c.Windows)
	t.agreementTable(c.Agreements)
	t.line("")
	return t.to(w)
}

// answers is the table of what followed the first text of the samples in differences: a difference of decoding is none of TTFT.
func (t *text) answers(pairings []Pairing) {
	if len(pairings) == 0 {
		return
	}
	t.title("Whole answers and time per output token of the same samples (ms, medians)")
	var rows [][]string
	for i := range pairings {
		p := &pairings[i]
		known := none
		if p.A.TPOT.N+p.B.TPOT.N > 0 {
			known = fmt.Sprintf("%d, %d", p.A.TPOT.N, p.B.TPOT.N)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%6d", p.Length), p.state(), labelled(p.A.Run, p.A.Backend), labelled(p.B.Run, p.B.Backend),
			median(p.A.E2E), median(p.B.E2E), times(p.A.E2E, p.B.E2E), known, median(p.A.TPOT), median(p.B.TPOT), times(p.A.TPOT, p.B.TPOT),
		})
	}
	t.table([]string{"length", "state", "A", "B", "    A E2E", "    B E2E", "B / A", "n of TPOT", "   A TPOT", "   B TPOT", "B / A"}, rows)
}

// times is the ratio of two medians, where there is one.
func times(a, b stat.Estimate) string {
	if a.N == 0 || b.N == 0 || a.Median <= 0 {
		return none
	}
	return fmt.Sprintf("%.2f", b.Median/a.Median)
}

func (t *text) windowPairs(pairs []WindowPair) {
	if len(pairs) == 0 {
		return
	}
	t.title("Windows: rates over the wall time, drain included (latencies in ms, of all whole answers)")
	var rows [][]string
	for i := range pairs {
		p := &pairs[i]
		for _, one := range []struct {
			run string
			w   *Window
		}{{p.RunA, &p.A}, {p.RunB, &p.B}} {
			ratio := none
			if one.w == &p.B && p.RateRatio > 0 {
				ratio = fmt.Sprintf("%.2f", p.RateRatio)
			}
			rows = append(rows, []string{
				fmt.Sprint(one.w.Concurrency), one.w.state(), fmt.Sprint(one.w.Pass), one.run + ":" + one.w.Backend, fmt.Sprint(one.w.Requests), one.w.prompts(), fmt.Sprint(one.w.Failed),
				fmt.Sprintf("%7.2f", one.w.RequestsPerS), fmt.Sprintf("%7.1f", one.w.OutputTokensPerS), ratio,
				median(one.w.TTFT), interval(one.w.TTFT.Interval), median(one.w.TPOT), median(one.w.ITL), msOr(one.w.ITLp99), listed(one.w.Sources),
			})
		}
	}
	t.table([]string{
		"at once", "state", "pass", "run", "n", "prompts of tokens", "failed", "  req/s", "  tok/s", "req/s B / A", " TTFT p50", "95 % interval", " TPOT p50", " ITL p50", " ITL p99", "sources",
	}, rows)
}
