package single

import (
	"slices"
	"strings"
	"testing"
	"time"

	"orbitkv/bench/record"
)

// finals returns how often each measured final sample of a plan is there: by cell, phase and prompt.
func finals(run *record.Run) map[string]int {
	found := map[string]int{}
	for _, row := range pick(run, func(s *record.Sample) bool { return s.Measured }) {
		found[row.Cell+" "+string(row.Phase)]++
	}
	return found
}

func TestARunThatWasInterruptedGoesOnWithTheMissingCells(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-hbm_hit-a1", cancelRun})
	ask := r.small()
	run, err := r.measure(ask)
	says(t, err, "was interrupted", "2 cells of orbitkv are missing", "--resume")
	if got := run.Manifest.Attempts[0].Outcome; got != record.Interrupted || len(run.Finished) != 2 || len(run.Drains) != 2 {
		t.Errorf("outcome %q, %d cells, %d drain checks: an interrupted run is checked, too", got, len(run.Finished), len(run.Drains))
	}
	starts := len(r.specs)
	ask.Resume = true
	run, err = r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.specs[starts:]; len(got) != 1 || got[0].Backend != record.OrbitKV || got[0].Attempt != 2 {
		t.Errorf("the second attempt started %d stacks, want orbitkv alone", len(got))
	}
	if len(run.Finished) != 4 || run.Manifest.Attempts[1].Outcome != record.Complete {
		t.Errorf("%d cells finished, outcome %q", len(run.Finished), run.Manifest.Attempts[1].Outcome)
	}
	got := finals(run)
	if len(got) != 12 {
		t.Errorf("%d final samples of 12", len(got))
	}
	for name, n := range got {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
	for _, row := range run.Samples {
		if row.Cell == "orbitkv/p0/latency/256/0" && row.Attempt == 1 && run.Final(row.Place) {
			t.Error("a row of the attempt that was cut off is final")
		}
	}
}

func TestAResumedRunMustBeTheSameRun(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	if _, err := r.measure(ask); err != nil {
		t.Fatal(err)
	}
	_, err := r.measure(ask)
	says(t, err, "is not empty", "--resume")
	ask.Resume, ask.Repeats = true, 3
	_, err = r.measure(ask)
	says(t, err, "cannot be resumed", "repeats")
	ask.Repeats = 2
	starts := len(r.specs)
	if _, err := r.measure(ask); err != nil || len(r.specs) != starts {
		t.Errorf("resuming a complete run: %v, %d starts", err, len(r.specs)-starts)
	}
}

func TestAPartEndsBetweenTwoCellsAndNamesWhatIsMissing(t *testing.T) {
	r := newRig(t)
	r.step = time.Second // each look at the clock
	ask := r.small()
	ask.Repeats, ask.PartSeconds = 6, 80
	run, err := r.measure(ask)
	says(t, err, "this part of the run", "ended in time", "orbitkv are missing", "--resume")
	if got := run.Manifest.Attempts[0].Outcome; got != record.Part {
		t.Errorf("the outcome is %q", got)
	}
	if n := len(run.Finished); n == 0 || n == 12 {
		t.Fatalf("%d of 12 cells finished, want some", n)
	}
	whole := map[string]bool{}
	for _, finished := range run.Finished {
		whole[finished.Cell] = true
	}
	for _, row := range run.Samples {
		if row.Measured && !whole[row.Cell] {
			t.Errorf("cell %s was begun and not finished", row.Cell)
		}
	}
	attempt := run.Manifest.Attempts[0]
	if took := attempt.Ended.Sub(attempt.Started); took > time.Duration(ask.PartSeconds)*time.Second {
		t.Errorf("the part took %v", took)
	}
	ask.Resume = true
	for parts := 1; err != nil; parts++ {
		if parts == 20 {
			t.Fatalf("not complete after %d parts: %v", parts, err)
		}
		run, err = r.measure(ask)
	}
	if len(run.Finished) != 12 || len(finals(run)) != 36 {
		t.Errorf("%d cells and %d final samples after the last part, want 12 and 36", len(run.Finished), len(finals(run)))
	}
}

func TestAPartEndsInTimeThoughItsBackendIsSick(t *testing.T) {
	r := newRig(t)
	r.step, r.sick = time.Second, true
	ask := r.small()
	ask.Backends, ask.Repeats, ask.PartSeconds = []string{record.OrbitKV}, 6, 60
	begun := r.at
	run, err := r.measure(ask)
	says(t, err, "this part of the run", "of orbitkv are missing")
	r.tells("the end of this part left the check", "orbitkv_leases is 2")
	if took := r.at.Sub(begun); took > time.Duration(ask.PartSeconds)*time.Second {
		t.Errorf("the part took %v", took)
	}
	if n := len(run.Finished); n == 0 || n == 6 {
		t.Errorf("%d of 6 cells finished, want some", n)
	}
	if d := run.Drains[0]; d.Drained || d.Checked {
		t.Errorf("a check that was broken off says %+v", d)
	}
}

func TestAPartThatHasNoTimeStartsNothingMore(t *testing.T) {
	r := newRig(t)
	r.step = time.Second
	ask := r.small()
	ask.PartSeconds = int(stopReserve / time.Second)
	_, err := r.measure(ask)
	says(t, err, "2 cells of native and 2 cells of orbitkv are missing", "none of them fitted into 20 s")
	if len(r.specs) != 0 {
		t.Errorf("%d stacks were started", len(r.specs))
	}
}

func TestABackendThatTakesAWholePartToStartComesLastInTheNext(t *testing.T) {
	r := newRig(t)
	r.step = 10 * time.Millisecond
	r.hang = map[string]bool{record.FlexKV: true}
	ask := r.small()
	ask.Backends, ask.PartSeconds = []string{record.FlexKV, record.Native}, int(stopReserve/time.Second)+1
	run, err := r.measure(ask)
	says(t, err, "flexkv, pass 0", "ended in time", "2 cells of flexkv and 2 cells of native are missing: the same command with --resume")
	r.tells("not ready when this part of 21 s was used up")
	if len(run.Failures) != 1 || run.Failures[0].Stage != "start" || run.Manifest.Attempts[0].Outcome != record.Part {
		t.Errorf("failures %+v, attempts %+v", run.Failures, run.Manifest.Attempts)
	}
	r.hang = nil
	ask.Resume, ask.PartSeconds = true, 0
	if _, err := r.measure(ask); err != nil {
		t.Fatal(err)
	}
	if len(r.specs) != 2 || r.specs[0].Backend != record.Native || r.specs[1].Backend != record.FlexKV {
		t.Errorf("%d starts, want native before the backend that hung", len(r.specs))
	}
}

func TestTwoPassesTurnBackendsAndLengthsRound(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	ask.Order, ask.Lengths, ask.Repeats = Pairs, []int{128, 256}, 1
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, finished := range run.Finished {
		order = append(order, finished.Cell)
	}
	want := []string{
		"native/p0/latency/128/0", "native/p0/latency/256/0", "orbitkv/p0/latency/128/0", "orbitkv/p0/latency/256/0",
		"orbitkv/p1/latency/256/0", "orbitkv/p1/latency/128/0", "native/p1/latency/256/0", "native/p1/latency/128/0",
	}
	if !slices.Equal(order, want) {
		t.Errorf("the cells were measured as %v", order)
	}
	if run.Manifest.Plan[record.Native] != 4 || run.Manifest.Plan[record.OrbitKV] != 4 {
		t.Errorf("the plan is %v", run.Manifest.Plan)
	}
}

func TestPromptsDependOnTheirPlaceAlone(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	ask.Order = Pairs
	if _, err := r.measure(ask); err != nil {
		t.Fatal(err)
	}
	byName := map[string]string{}
	names := map[string]string{}
	for _, fake := range r.engines {
		for id, prompt := range fake.prompts {
			name := id[strings.Index(id, "-p")+3 : strings.LastIndex(id, "-a1")] // without backend, pass, attempt and number
			if strings.Contains(name, "pressure-") || strings.HasSuffix(name, "-pressure") || strings.Contains(name, "warm") {
				continue
			}
			if kept, known := byName[name]; known && kept != prompt {
				t.Errorf("%s has another prompt in another start", name)
			}
			byName[name] = prompt
			prefix := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "-cold"), "-hbm_hit"), "-after_pressure")
			if other, known := names[prompt]; known && other != prefix {
				t.Errorf("%s and %s have one prompt", prefix, other)
			}
			names[prompt] = prefix
		}
	}
	if len(byName) != 6 || len(names) != 2 {
		t.Errorf("%d names of %d prompts, want 6 of 2", len(byName), len(names))
	}
	ask.Output, ask.Seed = ask.Output+"2", ask.Seed+1
	engines := len(r.engines)
	if _, err := r.measure(ask); err != nil {
		t.Fatal(err)
	}
	for _, fake := range r.engines[engines:] {
		for id, prompt := range fake.prompts {
			if _, known := names[prompt]; known {
				t.Errorf("%s has the same prompt with another seed", id)
			}
		}
	}
}
