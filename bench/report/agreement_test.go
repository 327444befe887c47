package report_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// disagreeing is a run of three backends: after pressure cpu and lmcache give two prompts another text than native does, the first the same, the second
// each its own.
func disagreeing(backends ...string) *record.Run {
	known["cpu"], known["lmcache"] = known["orbitkv"], known["orbitkv"]
	run := latencyRun(backends...)
	for i := range run.Samples {
		s := &run.Samples[i]
		s.Text = fmt.Sprintf("prompt %d", s.Prefix)
		if s.Backend == "native" || s.Phase != record.AfterPressure || s.Prefix > 1 {
			continue
		}
		differs, reused := false, 192
		s.MatchesCold, s.Text = &differs, "both"
		if s.Prefix == 1 {
			s.Text = s.Backend
		}
		verdict := record.OtherBoundary
		if s.Backend == "lmcache" {
			verdict = record.Unexplained
		}
		run.Attributions = append(run.Attributions, record.Attribution{
			Place: s.Place, Request: s.Request, Verdict: verdict, Why: "it reused 256 tokens and the engine's own hit 192", ControlCold: "cold", ControlHit: "hit", ControlReused: &reused,
		})
	}
	return run
}

// agreement returns the agreement of two backends in a state.
func agreement(t *testing.T, all []report.Agreement, a, b string, phase record.Phase) report.Agreement {
	t.Helper()
	i := slices.IndexFunc(all, func(g report.Agreement) bool { return g.A.Backend == a && g.B.Backend == b && g.Phase == phase })
	if i < 0 {
		t.Fatalf("no agreement of %s and %s in %s", a, b, phase)
	}
	return all[i]
}

func TestBackendsThatAgreeAreCountedWhateverTheirSources(t *testing.T) {
	run := disagreeing("native", "cpu", "lmcache")
	sampleOf(t, run, "cpu-3-after_pressure").Error = "broke off"
	s := summarise(t, run)
	if len(s.Agreements) != 9 {
		t.Fatalf("%d agreements, want three pairs in three states", len(s.Agreements))
	}
	for _, want := range []struct {
		a, b    string
		same, n int
	}{{"native", "cpu", 2, 4}, {"native", "lmcache", 3, 5}, {"cpu", "lmcache", 3, 4}} {
		if got := agreement(t, s.Agreements, want.a, want.b, record.AfterPressure); got.Same != want.same || got.N != want.n {
			t.Errorf("%s and %s: %d of %d, want %d of %d", want.a, want.b, got.Same, got.N, want.same, want.n)
		}
		if got := agreement(t, s.Agreements, want.a, want.b, record.Cold); got.Same != 5 || got.N != 5 {
			t.Errorf("%s and %s, cold: %d of %d", want.a, want.b, got.Same, got.N)
		}
	}
	got := agreement(t, s.Agreements, "native", "lmcache", record.AfterPressure)
	if !slices.Equal(got.A.Sources, []report.SourceCount{{Source: record.Miss, N: 5}}) ||
		!slices.Equal(got.B.Sources, []report.SourceCount{{Source: record.FromExternal, N: 4}, {Source: record.Miss, N: 1}}) || got.B.Least != 0 || got.B.Most != length {
		t.Errorf("the sides are %+v and %+v", got.A, got.B)
	}
}

func TestADifferenceNamesWhoGaveTheSameText(t *testing.T) {
	s := summarise(t, disagreeing("native", "cpu", "lmcache"))
	want := map[string]string{
		"cpu-0-after_pressure": "lmcache", "cpu-1-after_pressure": "none of 2", "lmcache-0-after_pressure": "cpu", "lmcache-1-after_pressure": "none of 2",
	}
	if len(s.Differing) != len(want) {
		t.Fatalf("differing %+v", s.Differing)
	}
	for i := range s.Differing {
		d := &s.Differing[i]
		if d.Alike() != want[d.Request] || d.Reused != length || d.ControlReused == nil || *d.ControlReused != 192 || d.ControlDiffers == nil || !*d.ControlDiffers {
			t.Errorf("%s: %s, %+v", d.Request, d.Alike(), d)
		}
	}
	var text bytes.Buffer
	if err := report.WriteTables(&text, s); err != nil {
		t.Fatal(err)
	}
	golden(t, "agreement.txt", text.String())
	says(t, text.String(), "cpu and lmcache: the same text in 14 of 15 corresponding requests", "no proof either way")
	alone := summarise(t, disagreeing("cpu"))
	if got := alone.Differing[0].Alike(); got != "no other was asked" || len(alone.Agreements) != 0 {
		t.Errorf("one backend agrees with nobody: %s, %+v", got, alone.Agreements)
	}
}

func TestColdTextsThatDifferAreSaid(t *testing.T) {
	run := disagreeing("native", "cpu")
	if s := summarise(t, run); slices.ContainsFunc(s.Notes, func(n string) bool { return strings.Contains(n, "cold prompts") }) {
		t.Errorf("notes %q", s.Notes)
	}
	sampleOf(t, run, "cpu-2-cold").Text = "another"
	sampleOf(t, run, "cpu-2-hbm_hit").Text = "another"
	sampleOf(t, run, "cpu-2-after_pressure").Text = "another"
	if s := summarise(t, run); !slices.ContainsFunc(s.Notes, func(n string) bool { return strings.Contains(n, "only 4 of 5 cold prompts") }) {
		t.Errorf("notes %q", s.Notes)
	}
}

func TestRunsAgreeOnTheSamePromptsAlone(t *testing.T) {
	c := compared(t, named("a", 1, disagreeing("native", "cpu")), named("b", 1, disagreeing("lmcache")))
	if len(c.Agreements) != 6 {
		t.Fatalf("agreements %+v", c.Agreements)
	}
	if got := agreement(t, c.Agreements, "cpu", "lmcache", record.AfterPressure); got.Same != 4 || got.N != 5 || got.A.Run != "A" || got.B.Run != "B" {
		t.Errorf("%+v", got)
	}
	longer := disagreeing("lmcache")
	longer.Manifest.Options.OutputTokens = 32
	for name, other := range map[string]*record.Run{"seed": named("b", 2, disagreeing("lmcache")), "output tokens": named("b", 1, longer)} {
		if c := compared(t, named("a", 1, disagreeing("native")), other); len(c.Agreements) != 0 {
			t.Errorf("another %s: %+v", name, c.Agreements)
		}
	}
}

// TestRequestsOfAWindowCorrespondInTheirOrder has three prompts that are asked for seven times each.
func TestRequestsOfAWindowCorrespondInTheirOrder(t *testing.T) {
	a, b := windowRun("native"), windowRun("orbitkv")
	for i := range a.Samples {
		a.Samples[i].Text, b.Samples[i].Text = fmt.Sprint(i), fmt.Sprint(i)
	}
	b.Samples[3].Text = "another"
	c := compared(t, named("a", 1, a), named("b", 1, b))
	if got := agreement(t, c.Agreements, "native", "orbitkv", record.Sustained); got.N != 20 || got.Same != 19 || got.Concurrency != 4 {
		t.Errorf("%+v", got)
	}
}
