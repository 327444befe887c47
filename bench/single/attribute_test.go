package single

import (
	"testing"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

func TestADifferenceOfTheExternalCacheAloneIsUnexplained(t *testing.T) {
	row, run, err := liedAbout(t, launch.VLLM, otherText)
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
		if a.Backend == launch.Native && a.Why == "" {
			t.Errorf("%s: a verdict without a control does not say why", a.Cell)
		}
	}
}

func TestAControlThatCannotStartLeavesTheDifferenceNotRun(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_pressure", otherText})
	r.refuse = map[string]*launch.StartError{launch.Native: {Part: launch.PartEngine, Reason: "out of memory"}}
	ask := r.small()
	ask.Backends = []string{launch.OrbitKV}
	run, err := r.measure(ask)
	says(t, err, "out of memory")
	if len(run.Attributions) != 1 || run.Attributions[0].Verdict != record.NotRun || run.Attributions[0].Why == "" {
		t.Errorf("attributions %+v", run.Attributions)
	}
}

func TestJudge(t *testing.T) {
	row := func(text, failure string) record.Sample { return record.Sample{Text: text, Error: failure} }
	for _, test := range []struct {
		cold, hit record.Sample
		want      record.Verdict
	}{
		{row("cold", ""), row("differs", ""), record.EngineReproduces},
		{row("cold", ""), row("cold", ""), record.Unexplained},
		{row("cold", ""), row("third", ""), record.EngineUnstable},
		{row("other", ""), row("other", ""), record.EngineUnstable},
		{row("differs", ""), row("cold", ""), record.EngineUnstable},
		{row("", "refused"), row("cold", ""), record.NotRun},
		{row("cold", ""), row("", "refused"), record.NotRun},
	} {
		got, why := judge(difference{row: row("differs", ""), cold: "cold"}, test.cold, test.hit)
		if got != test.want || (why == "") != (got == record.EngineReproduces) {
			t.Errorf("cold %q, hit %q: %s (%s), want %s", test.cold.Text, test.hit.Text, got, why, test.want)
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
