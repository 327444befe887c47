package report_test

import (
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

func TestABusyMachineIsSaid(t *testing.T) {
	note := func(s *report.Summary) string {
		for _, note := range s.Notes {
			if strings.Contains(note, "load average") {
				return note
			}
		}
		return ""
	}
	run := latencyRun("native", "orbitkv")
	run.Manifest.Launches = []record.Launch{
		{Backend: "native", Part: record.PartEngine, Attempt: 1, Exit: "signal 15", Busy: record.Busy{Processors: 2, Before: 2, After: 1.5}},
		{Backend: "orbitkv", Part: record.PartManager, Attempt: 1, Exit: "signal 15", Busy: record.Busy{Processors: 2, Before: 9, After: 9}},
		{Backend: "lmcache", Part: record.PartEngine, Attempt: 1, Exit: "signal 15"}, // of a kernel that tells nothing
	}
	if got := note(summarise(t, run)); got != "" {
		t.Errorf("of a quiet machine: %q", got)
	}
	run.Manifest.Launches[0].Busy.After = 13.27
	run.Manifest.Launches = append(run.Manifest.Launches, record.Launch{Backend: "orbitkv", Part: record.PartEngine, Pass: 1, Attempt: 2, Busy: record.Busy{Processors: 2, Before: 4}})
	says(t, note(summarise(t, run)), "above the 2 processors", "2.0 before and 13.3 after native, pass 0, attempt 1; 4.0 before orbitkv, pass 1, attempt 2.")
	for range 6 {
		run.Manifest.Launches = append(run.Manifest.Launches, run.Manifest.Launches[0])
	}
	says(t, note(summarise(t, run)), "; and 4 more.")
}
