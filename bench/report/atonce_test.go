package report_test

import (
	"strings"
	"testing"

	"orbitkv/bench/report"
)

func TestAnswersThatCameInOneReadAreCounted(t *testing.T) {
	note := func(s *report.Summary) string {
		for _, note := range s.Notes {
			if strings.Contains(note, "came with its first text") {
				return note
			}
		}
		return ""
	}
	run := latencyRun("native")
	if got := note(summarise(t, run)); got != "" {
		t.Errorf("of answers that came piece by piece: %q", got)
	}
	for _, one := range []string{"native-0-cold", "native-1-cold"} {
		s := sampleOf(t, run, one)
		s.FirstTextTokens, s.E2Ems, s.ChunkMs = s.OutputTokens, s.TTFTms, []float64{s.TTFTms, s.TTFTms}
	}
	sampleOf(t, run, "native-2-cold").OutputTokens = 1 // a single token is no answer of several
	says(t, note(summarise(t, run)), "of 2 of 15 samples", "no TPOT")
}
