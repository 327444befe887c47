package page

import (
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

func TestTiersStandBesideTheirSource(t *testing.T) {
	run, s := latencyRun(t)
	if strings.Contains(parse(t, render(t, run, s)).text, "Tiers of OrbitKV") {
		t.Error("a run without an SSD tier has a table of tiers")
	}
	p50 := 4.5
	for i := range s.Groups {
		g := &s.Groups[i]
		if g.Backend == record.OrbitKV && g.Phase == record.AfterPressure && g.Length == 1024 {
			g.Tiers = &report.Tiers{AskedPages: 80, RAMPages: 16, SSDPages: 60, MissPages: 4, SumSSDReadBytes: 3 << 20, SumSSDWriteBytes: 5 << 30, SSDPrefetchP50: &p50, SSDReadsWithoutRestore: 2}
		}
	}
	joined := func(text string) string { return strings.Join(strings.Fields(text), "") } // cells have nothing between them
	text := joined(parse(t, render(t, run, s)).text)
	for _, words := range []string{"Tiers of OrbitKV", "after pressure 1,024 1 orbitkv 80 16 0 60 4 3.00 MiB 5.00 GiB 4.50 2"} {
		if !strings.Contains(text, joined(words)) {
			t.Errorf("the page does not say %q", words)
		}
	}
}
