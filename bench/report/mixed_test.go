package report_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// burstRun is a run of bursts of one pattern at these concurrencies, whose lengths are taken in turn.
func burstRun(pattern string, concurrencies ...int) *record.Run {
	m := latencyManifest("native")
	m.Options.Workload, m.Options.Lengths, m.Options.Concurrencies, m.Plan["native"] = "concurrent", []int{256, 512}, concurrencies, len(concurrencies)
	run := &record.Run{Path: "runs/bursts", Manifest: m}
	for _, c := range concurrencies {
		place := record.Place{Cell: fmt.Sprintf("native/p0/concurrent/%s/%d", pattern, c), Attempt: 1, Backend: "native", Workload: "concurrent", Variant: pattern, Concurrency: c, Prefix: -1}
		for i := range c {
			at := place
			at.Length = m.Options.Lengths[i%2]
			run.Samples = append(run.Samples, record.Sample{
				Place: at, Phase: record.Cold, Measured: true, Request: fmt.Sprintf("%s-%d", place.Cell, i), PromptIndex: i, PromptTokens: at.Length,
				TTFTms: float64(at.Length), E2Ems: float64(at.Length) + 20, OutputTokens: 11, FirstTextTokens: 1, Evidence: record.Evidence{Source: record.Miss, Shared: true},
			})
		}
		run.Windows = append(run.Windows, record.Window{Place: place, Phase: record.Cold, Requests: c, Stop: "burst", DrainSeconds: 1.5, WallSeconds: 1.5})
		run.Finished = append(run.Finished, record.Finished{Place: place})
	}
	return run
}

// TestWindowsSayWhichLengthsTheyHold has one request at once, of the first length alone, and three.
func TestWindowsSayWhichLengthsTheyHold(t *testing.T) {
	s := summarise(t, burstRun(record.Mixed, 1, 3))
	if got := s.Windows[0].Lengths; !slices.Equal(got, []report.LengthCount{{Length: 256, N: 1}}) {
		t.Errorf("%+v", got)
	}
	if got := s.Windows[1].Lengths; !slices.Equal(got, []report.LengthCount{{Length: 256, N: 2}, {Length: 512, N: 1}}) {
		t.Errorf("%+v", got)
	}
	var text bytes.Buffer
	if err := report.WriteTables(&text, s); err != nil {
		t.Fatal(err)
	}
	golden(t, "bursts.txt", text.String())
	says(t, text.String(), "2 of 256, 1 of 512", "not from one concurrency to the next")
	for name, run := range map[string]*record.Run{"one concurrency": burstRun(record.Mixed, 3), "one length a burst": burstRun(record.Shared, 1, 3), "no burst": windowRun("native")} {
		if note := report.LengthsNote(summarise(t, run).Windows); note != "" {
			t.Errorf("%s: %s", name, note)
		}
	}
}
