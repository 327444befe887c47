package report_test

import (
	"math"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// TestContradictionsAreRefused breaks one row of a good run at a time; the error names the row.
func TestContradictionsAreRefused(t *testing.T) {
	edit := func(request string, change func(*record.Sample)) func(*testing.T, *record.Run) {
		return func(t *testing.T, run *record.Run) { change(sampleOf(t, run, request)) }
	}
	remove := func(request string) func(*testing.T, *record.Run) {
		return func(t *testing.T, run *record.Run) {
			s := sampleOf(t, run, request)
			*s = run.Samples[len(run.Samples)-1]
			run.Samples = run.Samples[:len(run.Samples)-1]
		}
	}
	const hit, after = "orbitkv-1-hbm_hit", "orbitkv-1-after_pressure"
	for name, c := range map[string]struct {
		change func(*testing.T, *record.Run)
		words  []string
	}{
		"a final sample is missing":      {remove(hit), []string{"orbitkv/p0/latency/256/1", "no measured sample of phase hbm_hit"}},
		"a final sample is not measured": {edit(hit, func(s *record.Sample) { s.Measured = false }), []string{"no measured sample of phase hbm_hit"}},
		"a sample is there twice": {func(t *testing.T, run *record.Run) {
			again := *sampleOf(t, run, hit)
			again.Request = "again"
			run.Samples = append(run.Samples, again)
		}, []string{`request "again"`, "same prompt in the same phase", hit}},
		"a request is there twice": {func(t *testing.T, run *record.Run) {
			run.Samples = append(run.Samples, *sampleOf(t, run, hit))
		}, []string{hit, "is there twice"}},
		"a time is no number":          {edit(hit, func(s *record.Sample) { s.TTFTms = math.NaN() }), []string{hit, "NaN is no time"}},
		"a time is endless":            {edit(hit, func(s *record.Sample) { s.E2Ems = math.Inf(1) }), []string{hit, "+Inf is no time"}},
		"a time is negative":           {edit(hit, func(s *record.Sample) { s.TTFTms = -1 }), []string{hit, "-1 is no time"}},
		"bytes are no number":          {edit(after, func(s *record.Sample) { s.LoadBytes = math.NaN() }), []string{after, "NaN is no time or count"}},
		"text comes after the end":     {edit(hit, func(s *record.Sample) { s.TTFTms = s.E2Ems + 1 }), []string{hit, "after the answer's end"}},
		"chunks go back":               {edit(hit, func(s *record.Sample) { s.ChunkMs[1] = 1 }), []string{hit, "came after one"}},
		"no first text":                {edit(hit, func(s *record.Sample) { s.TTFTms, s.ChunkMs = 0, nil }), []string{hit, "no first text"}},
		"no token":                     {edit(hit, func(s *record.Sample) { s.OutputTokens = 0 }), []string{hit, "no token"}},
		"no match flag on a hit":       {edit(hit, func(s *record.Sample) { s.MatchesCold = nil }), []string{hit, "does not say whether its output matches"}},
		"no match flag after pressure": {edit(after, func(s *record.Sample) { s.MatchesCold = nil }), []string{after, "does not say whether its output matches"}},
		"a match flag that lies":       {edit(after, func(s *record.Sample) { s.Text = "changed" }), []string{after, "the texts say otherwise"}},
		"a prefix out of range":        {func(t *testing.T, run *record.Run) { run.Manifest.Options.Repeats = 4 }, []string{"orbitkv-4-cold", "prefix index 4 is outside of 0 to 3"}},
		"a negative prefix":            {edit(hit, func(s *record.Sample) { s.Prefix = -1 }), []string{hit, "prefix index -1"}},
		"another prompt length":        {edit(hit, func(s *record.Sample) { s.PromptTokens = 255 }), []string{hit, "a prompt of 255 tokens"}},
		"an unknown length":            {func(_ *testing.T, run *record.Run) { run.Manifest.Options.Lengths = []int{512} }, []string{"length 256 was not asked for"}},
		"an unknown backend":           {edit(hit, func(s *record.Sample) { s.Backend = "flexkv" }), []string{hit, `backend "flexkv"`}},
		"an unknown attempt":           {edit(hit, func(s *record.Sample) { s.Attempt = 2 }), []string{hit, "attempt 2"}},
		"an unknown source":            {edit(hit, func(s *record.Sample) { s.Source = "guess" }), []string{hit, `no source "guess"`}},
		"a restore without bytes":      {edit(after, func(s *record.Sample) { s.ExternalTokens, s.LoadBytes = 0, 0 }), []string{after, "its source is external"}},
		"a restore with a device hit":  {edit(after, func(s *record.Sample) { s.DeviceTokens = 64 }), []string{after, "its source is external, and its evidence says 64 tokens of the device"}},
		"a hit without tokens":         {edit(hit, func(s *record.Sample) { s.DeviceTokens = 0 }), []string{hit, "its source is hbm"}},
		"a miss with tokens":           {edit("orbitkv-1-cold", func(s *record.Sample) { s.ExternalTokens = 64 }), []string{"orbitkv-1-cold", "its source is miss"}},
		"a miss with bytes":            {edit("orbitkv-1-cold", func(s *record.Sample) { s.LoadBytes = token }), []string{"orbitkv-1-cold", "its source is miss", "100000 bytes"}},
		"a first text of too much":     {edit(hit, func(s *record.Sample) { s.FirstTextTokens = 17 }), []string{hit, "17 of its 16 tokens"}},
		"more cells than planned":      {func(_ *testing.T, run *record.Run) { run.Manifest.Plan["orbitkv"] = 4 }, []string{"backend orbitkv: 5 cells are finished, 4 were planned"}},
	} {
		t.Run(name, func(t *testing.T) {
			run := latencyRun("native", "orbitkv")
			c.change(t, run)
			_, err := report.Summarise(run)
			refused(t, err, append(c.words, "runs/one contradicts itself", "measure again in a new folder")...)
		})
	}
}

func TestWindowsThatContradictTheirSamplesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*record.Run)
		word   string
	}{
		"a request is missing":  {func(r *record.Run) { r.Samples = r.Samples[1:] }, "21 requests with 1 failed, and the samples are 20 with 1 failed"},
		"a failure is hidden":   {func(r *record.Run) { r.Windows[0].Failed = 0 }, "21 requests with 0 failed"},
		"the window is missing": {func(r *record.Run) { r.Windows = nil }, "is finished and has no window"},
		"a phase has no window": {func(r *record.Run) { r.Samples[0].Phase = record.Cold }, "has samples of phase cold and no window of it"},
		"no wall time":          {func(r *record.Run) { r.Windows[0].WallSeconds = 0 }, "21 requests in no time"},
		"an endless drain":      {func(r *record.Run) { r.Windows[0].DrainSeconds = math.Inf(1) }, "+Inf is no time"},
		"a negative prompt":     {func(r *record.Run) { r.Samples[0].PromptIndex = -1 }, "prompt index -1"},
	} {
		t.Run(name, func(t *testing.T) {
			run := windowRun("orbitkv")
			c.change(run)
			_, err := report.Summarise(run)
			refused(t, err, c.word, "orbitkv/p0/sustained/4")
		})
	}
}

// TestManyFaultsAreNamedToABound keeps the message readable when everything is wrong.
func TestManyFaultsAreNamedToABound(t *testing.T) {
	run := latencyRun("native", "orbitkv")
	for i := range run.Samples {
		run.Samples[i].OutputTokens = 0
	}
	_, err := report.Summarise(run)
	refused(t, err, "and 10 faults more")
}

// TestAFailedColdHasNothingToCompareWith lets a reuse row stand without a flag where its cold request has no text.
func TestAFailedColdHasNothingToCompareWith(t *testing.T) {
	run := latencyRun("native")
	cold := sampleOf(t, run, "native-0-cold")
	cold.Error = "broke off"
	sampleOf(t, run, "native-0-hbm_hit").MatchesCold = nil
	sampleOf(t, run, "native-0-after_pressure").MatchesCold = nil
	if s := summarise(t, run); s.Counts.Failed != 1 {
		t.Errorf("%+v", s.Counts)
	}
}
