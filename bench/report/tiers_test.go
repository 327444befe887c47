package report_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// tieredRun is the latency run with an SSD tier: a sample of orbitkv more for each prompt, of which the last one is a read without a restore.
func tieredRun() *record.Run {
	run := latencyRun("native", "orbitkv")
	run.Manifest.Options.SSDGiB = 4
	for _, backend := range []string{"native", "orbitkv"} {
		for prefix := range 5 {
			addEvicted(run, backend, prefix)
		}
	}
	return run
}

func addEvicted(run *record.Run, backend string, prefix int) {
	for i := range run.Samples {
		s := run.Samples[i]
		if s.Backend != backend || s.Prefix != prefix || s.Phase != record.AfterPressure {
			continue
		}
		s.Phase, s.Request = record.AfterHostEviction, s.Request+"-evicted"
		s.TTFTms, s.Evidence = 60+float64(prefix), record.Evidence{Source: record.Miss}
		s.E2Ems, s.ChunkMs = s.TTFTms+30, nil
		if backend == "orbitkv" {
			s.Tiers = &record.Tiers{AskedPages: 4, SSDPages: 3, MissPages: 1, SSDReadBytes: 1 << 20, SSDWriteBytes: 2 << 20, SSDReads: []record.Bucket{{UpToMs: float64(prefix + 1), N: 3}}}
			if prefix < 4 {
				s.Source, s.ExternalTokens, s.CachedTokens, s.LoadBytes = record.FromExternal, length, length, length*token
				s.Tiers.RestoredBytes = length * token
			}
		}
		run.Samples = append(run.Samples, s)
		return
	}
}

// groupOf finds a group of the summary.
func groupOf(t *testing.T, s *report.Summary, backend string, phase record.Phase) *report.Group {
	t.Helper()
	for i := range s.Groups {
		if g := &s.Groups[i]; g.Backend == backend && g.Phase == phase {
			return g
		}
	}
	t.Fatalf("there is no group of %s, %s", backend, phase)
	return nil
}

func TestTiersOfAStateAreSummed(t *testing.T) {
	s := summarise(t, tieredRun())
	g := groupOf(t, s, "orbitkv", record.AfterHostEviction)
	u := g.Tiers
	if u == nil || u.AskedPages != 20 || u.SSDPages != 15 || u.MissPages != 5 || u.RAMPages != 0 || !u.Sums() || !u.UsesSSD() {
		t.Fatalf("the tiers are %+v", u)
	}
	if u.SumSSDReadBytes != 5<<20 || u.SumSSDWriteBytes != 10<<20 || u.SSDReadsWithoutRestore != 1 {
		t.Errorf("the tiers are %+v", u)
	}
	if u.SSDPrefetchP50 == nil || *u.SSDPrefetchP50 != 3 {
		t.Errorf("half of the reads took at most %v ms, expected 3", u.SSDPrefetchP50)
	}
	if g.Unexpected != 1 || g.Expected[0] != record.FromExternal {
		t.Errorf("%d samples are from another source than %v", g.Unexpected, g.Expected)
	}
	if native := groupOf(t, s, "native", record.AfterHostEviction); native.Tiers != nil || native.Unexpected != 0 {
		t.Errorf("the engine alone has the tiers %+v and %d unexpected sources", native.Tiers, native.Unexpected)
	}
	if groupOf(t, s, "orbitkv", record.AfterPressure).Tiers != nil {
		t.Error("a state whose samples tell no tiers has some")
	}
}

func TestTheSSDHasItsRowsItsPairsAndItsOutcome(t *testing.T) {
	s := summarise(t, tieredRun())
	var out bytes.Buffer
	if err := report.WriteTables(&out, s); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	says(t, text, "asked OrbitKV for", "asked ssd miss SSD read SSD written SSD prefetch p50 (ms, at most) reads without restore",
		"256 after host eviction orbitkv 20 15 5 5.0 MiB 10.0 MiB 3.00 1", "outcome: orbitkv: TTFT after host eviction is 61.50 ms at 256 tokens")
	paired := 0
	for _, p := range s.Paired {
		if p.Phase == record.AfterHostEviction {
			paired += p.N
		}
	}
	if paired != 4 {
		t.Errorf("%d pairs with the engine alone, expected the 4 that were restored", paired)
	}
	plain := summarise(t, latencyRun("native", "orbitkv"))
	out.Reset()
	if err := report.WriteTables(&out, plain); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "asked OrbitKV for") || len(plain.Tiered()) != 0 {
		t.Error("a run without an SSD tier has a table of tiers")
	}
}

func TestACellWithAnSSDNeedsItsPhase(t *testing.T) {
	run := tieredRun()
	run.Samples = run.Samples[:len(run.Samples)-1]
	_, err := report.Summarise(run)
	refused(t, err, "orbitkv/p0/latency/256/4", "after_host_eviction")
}

func TestAnOutputFromTheSSDIsComparedToo(t *testing.T) {
	run := tieredRun()
	run.Samples[len(run.Samples)-1].MatchesCold = nil
	_, err := report.Summarise(run)
	refused(t, err, "does not say whether its output matches the cold one")
}

func TestTiersThatDoNotSumAreSaid(t *testing.T) {
	run := tieredRun()
	run.Samples[len(run.Samples)-1].Tiers.AskedPages++
	s := summarise(t, run)
	says(t, strings.Join(s.Cautions, "\n"), "in 1 of 1 states the tiers of OrbitKV's Manager are not as many pages as were asked for")
	var out bytes.Buffer
	if err := report.WriteTables(&out, s); err != nil {
		t.Fatal(err)
	}
	says(t, out.String(), "21 !")
}

func TestAMedianBeyondTheLastBoundIsNotGiven(t *testing.T) {
	run := tieredRun()
	for i := range run.Samples {
		if u := run.Samples[i].Tiers; u != nil {
			u.SSDReads = []record.Bucket{{UpToMs: 8, N: 1}, {N: 2}}
		}
	}
	if p50 := groupOf(t, summarise(t, run), "orbitkv", record.AfterHostEviction).Tiers.SSDPrefetchP50; p50 != nil {
		t.Errorf("half of the reads took at most %v ms, and most took longer than any bound", *p50)
	}
}

func TestTiersOfAWindowAreThoseOfItsSpans(t *testing.T) {
	run := windowRun("orbitkv")
	run.Windows[0].Tiers = &record.Tiers{AskedPages: 9, RAMPages: 4, SSDPages: 5, SSDReadBytes: 4096}
	run.Windows[0].Before["orbitkv_ssd_prefetch_duration_seconds_count"] = 1
	run.Windows[0].Before[`orbitkv_ssd_prefetch_duration_seconds_bucket{le="0.001"}`] = 1
	for i := range run.Samples { // they stand in each sample, and count once
		run.Samples[i].Tiers = run.Windows[0].Tiers
	}
	s := summarise(t, run)
	w := s.Windows[0]
	if w.Tiers == nil || w.Tiers.AskedPages != 9 || w.Tiers.SSDReadsWithoutRestore != 1 || w.Tiers.SSDPrefetchP50 != nil {
		t.Errorf("the window's tiers are %+v", w.Tiers)
	}
	if s.Groups[0].Tiers != nil {
		t.Errorf("the group of a window's samples has the tiers %+v", s.Groups[0].Tiers)
	}
	for _, g := range w.Gauges {
		if strings.Contains(g.Name, "_bucket") || strings.Contains(g.Name, "_count") {
			t.Errorf("%s is told as a gauge", g.Name)
		}
	}
	if rows := s.Tiered(); len(rows) != 1 || rows[0].Pass != 0 || math.IsNaN(rows[0].Tiers.AskedPages) {
		t.Errorf("the states with tiers are %+v", rows)
	}
}
