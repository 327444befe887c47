package report_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

func compared(t *testing.T, runs ...*record.Run) *report.Comparison {
	t.Helper()
	c, err := report.Compare(runs)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// named returns a run with its own directory, seed and start.
func named(path string, seed int64, run *record.Run) *record.Run {
	run.Path, run.Manifest.Options.Seed, run.Manifest.Started = path, seed, time.Unix(int64(path[0]), 0).UTC()
	return run
}

func TestEqualSeedsArePaired(t *testing.T) {
	a, b := named("a", 1, latencyRun("native")), named("b", 1, latencyRun("orbitkv"))
	b.Manifest.Version, b.Manifest.Machine.CPU = "1.3.0", "another"
	c := compared(t, a, b)
	p := pairing(t, c.Rows, record.AfterPressure)
	near(t, "the difference", p.Difference, -75)
	near(t, "the ratio", p.Ratio, 31.5/106.5)
	if !p.Paired || p.N != 4 || p.A.Run != "A" || p.B.Run != "B" || p.A.Backend != "native" || p.B.Backend != "orbitkv" || len(p.B.LeftOut) != 1 {
		t.Errorf("%+v", p)
	}
	if len(c.Exposed) != 1 || c.Exposed[0].Run != "B" || c.Exposed[0].HitRun != "A" || c.Exposed[0].HitBackend != "native" || c.Exposed[0].Difference.Median != 9.5 {
		t.Errorf("%+v", c.Exposed)
	}
	var text bytes.Buffer
	if err := report.WriteComparison(&text, c); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", text.String())
	says(t, text.String(), "machine.cpu", "1.3.0")
}

func TestOtherSeedsAreUnpaired(t *testing.T) {
	c := compared(t, named("a", 1, latencyRun("native")), named("b", 2, latencyRun("native")))
	p := pairing(t, c.Rows, record.Cold)
	if p.Paired || p.N != 0 || p.A.TTFT.N != 5 || p.B.TTFT.N != 5 || p.Difference != 0 || p.Interval == nil || p.Interval.Low > -1 {
		t.Errorf("%+v", p)
	}
	var text bytes.Buffer
	if err := report.WriteComparison(&text, c); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "run B has seed 2 and run A has 1", "5, 5 unpaired", "options.seed")
}

// partialRun makes a run of the partial workload of one of latency.
func partialRun(page int, backend string) *record.Run {
	run := latencyRun(backend)
	run.Manifest.Options.Workload, run.Manifest.Options.PageSize = "partial", page
	run.Samples = slices.DeleteFunc(run.Samples, func(s record.Sample) bool { return s.Phase == record.HBMHit })
	for i := range run.Samples {
		s := &run.Samples[i]
		s.Workload, s.Variant = "partial", "50"
		if s.Phase == record.AfterPressure {
			s.Phase, s.MatchesCold = record.Partial, nil
		}
	}
	for i := range run.Finished {
		run.Finished[i].Workload, run.Finished[i].Variant = "partial", "50"
	}
	return run
}

// TestPartialPromptsOfOtherPagesAreUnpaired: such a prompt stops being the one seen before at the end of a page. The prompts of other workloads know no pages.
func TestPartialPromptsOfOtherPagesAreUnpaired(t *testing.T) {
	for name, c := range map[string]struct {
		b      *record.Run
		paired bool
		why    string
	}{
		"partial, equal pages": {named("b", 1, partialRun(16, "native")), true, ""},
		"partial, other pages": {named("b", 1, partialRun(64, "native")), false, "run B has pages of 64 tokens and run A of 16"},
	} {
		result := compared(t, named("a", 1, partialRun(16, "native")), c.b)
		p := pairing(t, result.Rows, record.Partial)
		if p.Paired != c.paired || result.Runs[1].Paired != c.paired || len(result.Agreements) > 0 != c.paired {
			t.Errorf("%s: paired %v, of the run %v, %d agreements", name, p.Paired, result.Runs[1].Paired, len(result.Agreements))
		}
		if notes := strings.Join(result.Notes, "\n"); !strings.Contains(notes, c.why) || c.paired != (notes == "") {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
	other := named("b", 1, latencyRun("native"))
	other.Manifest.Options.PageSize = 128
	if p := pairing(t, compared(t, named("a", 1, latencyRun("native")), other).Rows, record.Cold); !p.Paired {
		t.Error("prompts of the latency workload are not paired for another page size")
	}
}

// TestBackendsOfTwoRuns compares each backend with itself, and what only one side has with what only the other has.
func TestBackendsOfTwoRuns(t *testing.T) {
	c := compared(t, named("a", 1, latencyRun("native", "orbitkv")), named("b", 1, latencyRun("native")))
	for _, p := range c.Rows {
		if p.A.Backend != "native" || p.B.Backend != "native" || p.Ratio != 1 || p.N != 5 {
			t.Errorf("%+v", p)
		}
	}
	if len(c.Rows) != 3 {
		t.Errorf("%d rows", len(c.Rows))
	}
}

func TestAnUnfinishedRunSaysSo(t *testing.T) {
	b := named("b", 1, latencyRun("native"))
	b.Finished = b.Finished[:2]
	c := compared(t, named("a", 1, latencyRun("native")), b)
	p := pairing(t, c.Rows, record.Cold)
	if p.N != 2 || p.Without != 3 || p.Interval != nil {
		t.Errorf("%+v", p)
	}
	var text bytes.Buffer
	if err := report.WriteComparison(&text, c); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "part: 2 of 5 cells", "3 without a partner")
}

func TestWindowsOfTwoRuns(t *testing.T) {
	a, b := named("a", 1, windowRun("native")), named("b", 1, windowRun("orbitkv"))
	b.Windows[0].WallSeconds = 5
	c := compared(t, a, b)
	if len(c.Windows) != 1 || c.Windows[0].RateRatio != 2 || c.Windows[0].RunB != "B" {
		t.Fatalf("%+v", c.Windows)
	}
	var text bytes.Buffer
	if err := report.WriteComparison(&text, c); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "A:native", "B:orbitkv", "req/s B / A")
}

// TestADifferenceOfDecodingShows has two runs alike in TTFT, of which one takes five times as long for each token.
func TestADifferenceOfDecodingShows(t *testing.T) {
	a, b := named("a", 1, latencyRun("native")), named("b", 1, latencyRun("native"))
	for i := range b.Samples {
		b.Samples[i].E2Ems = b.Samples[i].TTFTms + 150
	}
	b.Manifest.Probe.LinkBytesPerS = 12.346e9
	c := compared(t, a, b)
	p := pairing(t, c.Rows, record.Cold)
	near(t, "the end of A", p.A.E2E.Median, 132)
	near(t, "the end of B", p.B.E2E.Median, 252)
	near(t, "the time per token of B", p.B.TPOT.Median, 10)
	var text bytes.Buffer
	if err := report.WriteComparison(&text, c); err != nil {
		t.Fatal(err)
	}
	says(t, text.String(), "Whole answers and time per output token", "5.00", `"10.00 GB/s"  "12.35 GB/s"`)
}

// TestColdRowsOfTwoRunsThatAreApartAreSaid names the runs.
func TestColdRowsOfTwoRunsThatAreApartAreSaid(t *testing.T) {
	for seed, want := range map[int64]string{1: "5 pairs", 2: "5 and 5 samples, unpaired"} {
		c := compared(t, named("a", 1, latencyRun("native")), named("b", seed, slowed(latencyRun("native"), "native", record.Cold, 2)))
		says(t, strings.Join(c.Notes, "\n"), "cold TTFT of A:native and B:native is apart", "2.00 times", want)
	}
}

func TestWhatCannotBeComparedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*record.Run)
		word   string
	}{
		"engines": {func(r *record.Run) { r.Manifest.Options.Engine = "sglang" }, "one is of vllm, the other of sglang"},
		"models":  {func(r *record.Run) { r.Manifest.Model.ConfigSHA256 = "def" }, `different models: config_sha256 "abc" and "def"`},
		"lengths": {func(r *record.Run) {
			*r = record.Run{Path: "b", Manifest: r.Manifest}
			r.Manifest.Options.Lengths = []int{512}
		}, "no length is in both"},
		"workloads":        {func(r *record.Run) { *r = *windowRun("native") }, "workload latency, the other of sustained"},
		"a copy":           {func(r *record.Run) { r.Manifest.Started = time.Unix('a', 0).UTC() }, "a holds the same run"},
		"one directory":    {func(r *record.Run) { r.Path = "./a" }, "named twice"},
		"a run that lies":  {func(r *record.Run) { r.Samples[0].OutputTokens = 0 }, "contradicts itself"},
		"the path differs": {func(r *record.Run) { r.Manifest.Model.Path = "/elsewhere" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := named("b", 1, latencyRun("native"))
			c.change(b)
			_, err := report.Compare([]*record.Run{named("a", 1, latencyRun("native")), b})
			if c.word == "" && err == nil {
				return
			}
			refused(t, err, c.word)
		})
	}
	_, err := report.Compare([]*record.Run{latencyRun("native")})
	refused(t, err, "between 2 and 8")
}
