package report_test

import (
	"slices"
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// slowed multiplies the TTFT of a backend's samples of a phase.
func slowed(run *record.Run, backend string, phase record.Phase, by float64) *record.Run {
	for i := range run.Samples {
		if s := &run.Samples[i]; s.Backend == backend && s.Phase == phase {
			s.TTFTms *= by
			s.E2Ems, s.ChunkMs = s.TTFTms+30, []float64{s.TTFTms, s.TTFTms + 30}
		}
	}
	return run
}

// shortened keeps the first cells of each backend.
func shortened(run *record.Run, cells int) *record.Run {
	run.Finished = slices.DeleteFunc(run.Finished, func(f record.Finished) bool { return f.Prefix >= cells })
	return run
}

func cautionOf(s *report.Summary, words string) string {
	for _, caution := range s.Cautions {
		if strings.Contains(caution, words) {
			return caution
		}
	}
	return ""
}

func TestColdRowsThatAreApartAreSaid(t *testing.T) {
	for name, c := range map[string]struct {
		by    float64
		cells int
		want  string
	}{
		"alike":                    {1.05, 5, ""},
		"apart":                    {2.6, 5, "102.00 and 267.80 ms at 256 tokens (2.63 times; median difference orbitkv - native +165.80 ms [162.60, 169.00], 5 pairs)"},
		"a little, of few":         {1.2, 2, ""},
		"much, of few":             {2.6, 2, "(2.63 times; 2 pairs, too few for an interval)"},
		"a little, of enough":      {1.2, 5, "1.21 times"},
		"faster, which is no less": {0.5, 5, "1.98 times"},
	} {
		t.Run(name, func(t *testing.T) {
			s := summarise(t, shortened(slowed(latencyRun("native", "orbitkv"), "orbitkv", record.Cold, c.by), c.cells))
			got := cautionOf(s, "cold TTFT of native and orbitkv")
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("%q, want %q", got, c.want)
			}
			if said := strings.Contains(s.Outcomes[0], "not the cache's doing alone"); said != (c.want != "") {
				t.Errorf("the outcome is %q", s.Outcomes[0])
			}
		})
	}
}

// TestAColdDifferenceThatMayBeChanceIsNone has cold medians that are apart by a sixth, and pairs whose interval holds 0.
func TestAColdDifferenceThatMayBeChanceIsNone(t *testing.T) {
	run := latencyRun("native", "orbitkv")
	for prefix, ttft := range []float64{60, 70, 118, 130, 140} {
		s := sampleOf(t, run, []string{"orbitkv-0-cold", "orbitkv-1-cold", "orbitkv-2-cold", "orbitkv-3-cold", "orbitkv-4-cold"}[prefix])
		s.TTFTms, s.E2Ems, s.ChunkMs = ttft, ttft+30, nil
	}
	if got := cautionOf(summarise(t, run), "cold TTFT"); got != "" {
		t.Error(got)
	}
}

func TestFewSamplesAreSaid(t *testing.T) {
	if got := cautionOf(summarise(t, latencyRun("native")), "fewer than 5"); got != "" {
		t.Error(got)
	}
	says(t, cautionOf(summarise(t, shortened(latencyRun("native", "orbitkv"), 2)), "fewer than 5"), "6 of 6 medians", "the fewest of 2", "no interval")
	says(t, cautionOf(summarise(t, latencyRun("native", "orbitkv")), "fewer than 5"), "1 of 6 medians", "the fewest of 4")
}

// TestAnOutcomeIsOfRestoresAlone says what the longest length came to, and what is not in it.
func TestAnOutcomeIsOfRestoresAlone(t *testing.T) {
	s := summarise(t, latencyRun("native", "orbitkv"))
	if len(s.Outcomes) != 1 {
		t.Fatalf("%q", s.Outcomes)
	}
	says(t, s.Outcomes[0], "orbitkv: TTFT after pressure is 31.50 ms at 256 tokens, 0.30 times the 106.50 ms of native", "4 pairs, too few for an interval", "1 of its requests were no such restore")
	if reversed := summarise(t, latencyRun("orbitkv", "native")).Outcomes; len(reversed) != 1 || !strings.Contains(reversed[0], "orbitkv: TTFT after pressure is 31.50 ms at 256 tokens, 0.30 times the 106.50 ms of native") {
		t.Errorf("%q", reversed)
	}
	if alone := summarise(t, latencyRun("orbitkv")).Outcomes; len(alone) != 0 {
		t.Errorf("without native: %q", alone)
	}
	run := slowed(latencyRun("native", "orbitkv"), "native", record.AfterPressure, 0.3)
	sampleOf(t, run, "orbitkv-4-after_pressure").Source = record.FromExternal
	sampleOf(t, run, "orbitkv-4-after_pressure").ExternalTokens = length
	says(t, summarise(t, run).Outcomes[0], "5 pairs", "no difference is shown")
}
