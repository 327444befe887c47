package single

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

func TestADifferenceOfTheExternalCacheAloneIsUnexplained(t *testing.T) {
	row, run, err := liedAbout(t, record.VLLM, otherText)
	if err != nil {
		t.Fatal(err)
	}
	if row.MatchesCold == nil || *row.MatchesCold {
		t.Fatal("the changed output was not noticed")
	}
	if len(run.Attributions) != 1 {
		t.Fatalf("%d attributions, want 1", len(run.Attributions))
	}
	a := run.Attributions[0]
	if a.Verdict != record.Unexplained || a.Request != row.Request || a.Differing != row.Text || a.ColdText == row.Text || a.ControlCold != a.ColdText || a.ControlHit != a.ColdText {
		t.Errorf("the attribution is %+v", a)
	}
	control := 0
	for i := range run.Samples {
		if s := &run.Samples[i]; s.Phase == record.Control {
			control++
			if s.Measured || run.Final(s.Place) {
				t.Errorf("a control counts as a sample: %+v", s)
			}
		}
	}
	if control != 2 || len(run.Manifest.Launches) != 3 || !run.Manifest.Launches[2].Control {
		t.Errorf("%d control requests, launches %+v", control, run.Manifest.Launches)
	}
}

func TestADifferenceThatTheEngineMakesAloneIsItsOwn(t *testing.T) {
	r := newRig(t,
		rule{"orbitkv-p0-latency-256-0-hbm_hit", otherText}, rule{"native-p0-latency-256-0-hbm_hit", otherText},
		rule{"native-p0-latency-256-1-after_pressure", otherText}, rule{"control-p0-latency-256-0-control-a1-5", otherText})
	run, err := r.measure(r.small())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]record.Verdict{
		"native/p0/latency/256/0":  record.EngineReproduces, // its own hit
		"native/p0/latency/256/1":  record.EngineUnstable,   // computed again
		"orbitkv/p0/latency/256/0": record.EngineReproduces, // the control's hit says the same
	}
	if len(run.Attributions) != len(want) {
		t.Fatalf("attributions %+v", run.Attributions)
	}
	for _, a := range run.Attributions {
		if a.Verdict != want[a.Cell] {
			t.Errorf("%s: %s (%s), want %s", a.Cell, a.Verdict, a.Why, want[a.Cell])
		}
		if a.Backend == record.Native && a.Why == "" {
			t.Errorf("%s: a verdict without a control does not say why", a.Cell)
		}
	}
}

func TestAControlThatCannotStartLeavesTheDifferenceNotRun(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_pressure", otherText})
	r.refuse = map[string]*launch.StartError{record.Native: {Part: record.PartEngine, Reason: "out of memory"}}
	ask := r.small()
	ask.Backends = []string{record.OrbitKV}
	run, err := r.measure(ask)
	says(t, err, "native, pass 0: engine (start)")
	r.tells("native, pass 0: engine (start): out of memory")
	if len(run.Attributions) != 1 || run.Attributions[0].Verdict != record.NotRun || run.Attributions[0].Why == "" {
		t.Errorf("attributions %+v", run.Attributions)
	}
}

func TestAPartWithoutTimeForTheControlSaysThatAllCellsAreMeasured(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_pressure", otherText})
	r.step = time.Second // each look at the clock
	ask := r.small()
	ask.Backends = []string{record.OrbitKV}
	begun := r.at
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	cells := int(run.Finished[1].Ended.Sub(begun) / time.Second)
	for more := range 10 {
		ask.Output, ask.PartSeconds = filepath.Join(t.TempDir(), "out"), int(stopReserve/time.Second)+cells+more
		if run, err = r.measure(ask); len(run.Finished) == 2 {
			break
		}
	}
	says(t, err, "every cell", "is measured", "still to be asked for on the engine without an external cache", "--resume does that alone")
	if len(run.Attributions) != 0 || run.Manifest.Attempts[0].Outcome != record.Part {
		t.Errorf("outcome %s, attributions %+v", run.Manifest.Attempts[0].Outcome, run.Attributions)
	}
	says(t, errors.New(r.out.String()), "1 differing output has no control yet", "complete: 2 cells")
	ask.Resume, ask.PartSeconds = true, 0
	if run, err = r.measure(ask); err != nil || len(run.Attributions) != 1 {
		t.Errorf("after the control: %v, attributions %+v", err, run.Attributions)
	}
}

func TestJudge(t *testing.T) {
	row := func(text string, reused int) record.Sample {
		return record.Sample{Text: text, Evidence: record.Evidence{CachedTokens: reused}}
	}
	refused := record.Sample{Error: "refused"}
	differs := row("differs", 960)
	hides := record.Sample{Text: "cold", Evidence: record.Evidence{CachedTokens: -1, DeviceTokens: 128}}
	for _, test := range []struct {
		name           string
		row, cold, hit record.Sample
		want           record.Verdict
		why            []string
	}{
		{"its own hit says the same", differs, row("cold", 0), row("differs", 960), record.EngineReproduces, nil},
		{"its own hit says the same elsewhere", row("differs", 1023), row("cold", 0), row("differs", 960), record.EngineReproduces, nil},
		{"one text in both states", differs, row("cold", 0), row("cold", 960), record.Unexplained, []string{"the same 960 tokens", "equals its cold answer"}},
		{"a third text", differs, row("cold", 0), row("third", 960), record.Unexplained, []string{"the same 960 tokens", "differs from its cold answer, too"}},
		{"another boundary", row("differs", 1023), row("cold", 0), row("cold", 960), record.OtherBoundary, []string{"1023 tokens", "hit 960", "equals its cold answer", "no proof for or against"}},
		{"another boundary, a third text", row("differs", 1024), row("cold", 0), row("third", 960), record.OtherBoundary, []string{"1024 tokens", "hit 960", "differs from its cold answer, too"}},
		{"a shorter one", row("differs", 512), row("cold", 0), row("third", 960), record.OtherBoundary, []string{"512 tokens", "hit 960"}},
		{"nothing reused", row("differs", 0), row("cold", 0), row("third", 960), record.Unexplained, []string{"reused nothing", "cold answer"}},
		{"the answer does not say", row("differs", -1), row("cold", 0), row("third", 960), record.Unexplained, []string{"do not say how many"}},
		{"the control does not say", differs, row("cold", -1), row("third", -1), record.Unexplained, []string{"do not say how many"}},
		{"another cold text", differs, row("other", 0), row("other", 960), record.EngineUnstable, []string{"another text than this backend did"}},
		{"another cold text before all else", row("differs", 1023), row("other", 0), row("differs", 960), record.EngineUnstable, []string{"another text than this backend did"}},
		{"no cold answer", differs, refused, row("differs", 960), record.NotRun, []string{"refused"}},
		{"no hit", differs, row("cold", 0), refused, record.NotRun, []string{"refused"}},
		{"a cold answer with reuse", differs, row("cold", 64), row("third", 960), record.NotRun, []string{"reused 64 tokens", "not cold"}},
		{"a cold answer with reuse that it hides", differs, hides, row("third", 960), record.NotRun, []string{"reused 128 tokens", "not cold"}},
		{"another cold text with reuse", differs, row("other", 64), row("differs", 960), record.NotRun, []string{"reused 64 tokens"}},
	} {
		got, why := judge(difference{row: test.row, cold: "cold"}, pair{test.cold, test.hit})
		if got != test.want || (why == "") != (got == record.EngineReproduces) {
			t.Errorf("%s: %s (%s), want %s", test.name, got, why, test.want)
		}
		for _, word := range test.why {
			if !strings.Contains(why, word) {
				t.Errorf("%s: %q does not say %q", test.name, why, word)
			}
		}
	}
	differs.Concurrency = 8
	if _, why := judge(difference{row: differs, cold: "cold"}, pair{row("cold", 0), row("cold", 960)}); !strings.Contains(why, "beside up to 7 others") {
		t.Errorf("%q does not say that the sample ran in a burst", why)
	}
}

func TestAHitThatEndsWhereTheEnginesOwnCannotIsNoProof(t *testing.T) {
	const request = "orbitkv-p0-latency-256-0-after_pressure"
	r := newRig(t, rule{request, restoreTail}, rule{request, otherText})
	run, err := r.measure(r.small())
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Attributions) != 1 || run.Attributions[0].Verdict != record.OtherBoundary || run.Attributions[0].ControlReused == nil || *run.Attributions[0].ControlReused != 192 {
		t.Fatalf("attributions %+v", run.Attributions)
	}
	for _, word := range []string{"255 tokens", "hit 192", "equals its cold answer"} {
		if !strings.Contains(run.Attributions[0].Why, word) {
			t.Errorf("%q does not say %q", run.Attributions[0].Why, word)
		}
	}
}

func TestAControlThatCouldNotBeMadeIsTriedAgain(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_pressure", otherText})
	r.refuse = map[string]*launch.StartError{record.Native: {Part: record.PartEngine, Reason: "out of memory"}}
	ask := r.small()
	ask.Backends = []string{record.OrbitKV}
	if run, _ := r.measure(ask); len(run.Attributions) != 1 || run.Attributions[0].Verdict != record.NotRun {
		t.Fatalf("attributions %+v", run.Attributions)
	}
	r.refuse = nil
	ask.Resume = true
	for attempt := 2; attempt < 4; attempt++ {
		run, err := r.measure(ask)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(run.Attributions); n != 2 || run.Attributions[1].Verdict != record.Unexplained || run.Attributions[1].Attempt != 2 {
			t.Errorf("after attempt %d the attributions are %+v", attempt, run.Attributions)
		}
		s, err := report.Summarise(run)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Attributions) != 1 || s.Attributions[0].Verdict != record.Unexplained || s.Differing[0].Verdict != record.Unexplained {
			t.Errorf("the summary has %+v", s.Attributions)
		}
	}
}

func TestOnlyFinalSamplesAreAttributedAndOnlyOnce(t *testing.T) {
	r := newRig(t,
		rule{"orbitkv-p0-latency-256-0-hbm_hit-a1", otherText}, rule{"orbitkv-p0-latency-256-0-after_pressure-a1", cancelRun},
		rule{"native-p0-latency-256-1-after_pressure", otherText})
	ask := r.small()
	run, err := r.measure(ask)
	says(t, err, "interrupted")
	if len(run.Attributions) != 0 {
		t.Errorf("an interrupted run attributed %+v", run.Attributions)
	}
	ask.Resume = true
	for attempt := 2; attempt < 4; attempt++ {
		run, err = r.measure(ask)
		if err != nil {
			t.Fatal(err)
		}
		if len(run.Attributions) != 1 || run.Attributions[0].Cell != "native/p0/latency/256/1" || run.Attributions[0].Attempt != 2 {
			t.Errorf("after attempt %d the attributions are %+v", attempt, run.Attributions)
		}
	}
}
