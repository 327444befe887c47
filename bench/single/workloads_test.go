package single

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"orbitkv/bench/record"
)

func TestPartialHitsAreMeasuredBesideColdPrompts(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	ask.Workload, ask.Repeats, ask.Lengths = record.WorkloadPartial, 1, []int{512}
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	for _, percent := range []int{25, 50, 75} {
		cell := fmt.Sprintf("orbitkv/p0/partial/512/%d/0", percent)
		rows := pick(run, func(s *record.Sample) bool { return s.Cell == cell && s.Measured })
		if len(rows) != 2 || rows[0].Phase != record.Partial || rows[1].Phase != record.Cold {
			t.Fatalf("%s has the measured samples %+v", cell, rows)
		}
		if got, want := rows[0].ExternalTokens, 512*percent/100; got != want || rows[0].Source != record.FromExternal {
			t.Errorf("%s: %d external tokens, %s; want %d", cell, got, rows[0].Source, want)
		}
		if rows[1].Source != record.Miss || rows[1].MatchesCold != nil {
			t.Errorf("%s: the cold prompt is %s, compared %v", cell, rows[1].Source, rows[1].MatchesCold)
		}
		if rows[0].MatchesCold == nil || !*rows[0].MatchesCold || rows[0].Variant != fmt.Sprint(percent) {
			t.Errorf("%s: compared %v with the engine's own answer, variant %q", cell, rows[0].MatchesCold, rows[0].Variant)
		}
	}
}

func TestAPartialHitWithAnotherTextIsAttributed(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-partial-512-50-0-partial", otherText})
	ask := r.small()
	ask.Workload, ask.Repeats, ask.Lengths = record.WorkloadPartial, 1, []int{512}
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Attributions) != 1 || run.Attributions[0].Verdict != record.Unexplained || run.Attributions[0].ColdText == "" {
		t.Errorf("attributions %+v", run.Attributions)
	}
	var reused []int
	for i := range run.Samples {
		if s := &run.Samples[i]; s.Phase == record.Control {
			reused = append(reused, s.CachedTokens)
		}
	}
	if !slices.Equal(reused, []int{0, 256}) {
		t.Errorf("the control reused %v tokens, want none and then the half that the differing sample reused", reused)
	}
}

func TestAPartialPromptSharesWholePagesAndNoTokenMore(t *testing.T) {
	p := prompts{1, vocabularyMin} // few tokens, so that two prompts often go on alike by chance
	for _, percent := range partialPercents {
		for prefix := range 200 {
			key := partialKey{320, percent, prefix}
			seen, begins := p.partialPrompts(key, 64)
			same := 0
			for same < len(seen) && seen[same] == begins[same] {
				same++
			}
			if want := 320 * percent / 100 / 64 * 64; same != want || len(begins) != 320 {
				t.Fatalf("%v: %d tokens in common of %d, want %d", key, same, len(begins), want)
			}
		}
	}
}

func TestBurstsHaveOneWindowAndSharedEvidence(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	ask.Workload, ask.Repeats, ask.Lengths, ask.Concurrencies = record.WorkloadConcurrent, 1, []int{128, 256}, []int{1, 4}
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	final := 0
	for _, w := range run.Windows {
		if !run.Final(w.Place) {
			continue
		}
		final++
		if w.Stop != stopBurst || w.Requests != w.Concurrency || len(w.Before) == 0 || len(w.After) == 0 {
			t.Errorf("a window is %+v", w)
		}
	}
	if want := 2 * 2 * (2 + 1) * 2; final != want { // backends, concurrencies, two shared bursts and a mixed one, both states
		t.Errorf("%d final windows, want %d", final, want)
	}
	for _, row := range pick(run, func(s *record.Sample) bool {
		return s.Measured && s.Backend == record.OrbitKV && s.Variant == record.Mixed && s.Concurrency == 4
	}) {
		want := record.Miss
		if row.Phase == record.AfterPressure {
			want = record.FromExternal
		}
		if row.Source != want || !row.Shared {
			t.Errorf("%s of prompt %d: %s (%s), shared %v; want %s", row.Phase, row.PromptIndex, row.Source, row.Why, row.Shared, want)
		}
		if (row.Phase == record.AfterPressure) != (row.MatchesCold != nil && *row.MatchesCold) {
			t.Errorf("%s of prompt %d is compared as %v", row.Phase, row.PromptIndex, row.MatchesCold)
		}
	}
}

func TestABurstOfThePatternSharedHasOnePrompt(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	ask.Workload, ask.Repeats, ask.Concurrencies, ask.Backends = record.WorkloadConcurrent, 2, []int{3}, []string{record.Native}
	if _, err := r.measure(ask); err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]int{}
	for id, prompt := range r.engines[0].prompts {
		for _, pattern := range patterns {
			if strings.HasPrefix(id, "native-p0-concurrent-"+pattern+"-3-cold-") {
				if found[pattern] == nil {
					found[pattern] = map[string]int{}
				}
				found[pattern][prompt]++
			}
		}
	}
	if len(found[record.Shared]) != 2 || len(found[record.Mixed]) != 6 {
		t.Errorf("2 bursts of 3 requests have %d prompts if shared and %d if mixed, want 2 and 6", len(found[record.Shared]), len(found[record.Mixed]))
	}
}

func TestOneAnswerThatBreaksOffLeavesItsWholeBurstUnverified(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-concurrent-mixed-3-after_pressure", breakFirst})
	ask := r.small()
	ask.Workload, ask.Repeats, ask.Concurrencies, ask.Backends = record.WorkloadConcurrent, 1, []int{3}, []string{record.OrbitKV}
	run, err := r.measure(ask)
	says(t, err, "1 measured requests failed")
	rows := pick(run, func(s *record.Sample) bool {
		return s.Measured && s.Variant == record.Mixed && s.Phase == record.AfterPressure
	})
	failed := 0
	for _, row := range rows {
		if row.Error != "" {
			failed++
		}
		if row.Source != record.Unverified || !row.Shared || row.Why == "" {
			t.Errorf("%s is %s (%s), shared %v", row.Request, row.Source, row.Why, row.Shared)
		}
	}
	last := run.Windows[len(run.Windows)-1]
	if len(rows) != 3 || failed != 1 || last.Failed != 1 || last.Requests != 3 {
		t.Errorf("%d rows, %d failed; the window is %+v", len(rows), failed, last)
	}
}

func TestABurstBetweenRestlessCountersIsUnverifiedAndTheNextIsNot(t *testing.T) {
	r := newRig(t)
	r.unrest = 1 + warmUpPrompts + 1 // one before the first request, one after each of the warm-up, and that after the first burst
	ask := r.small()
	ask.Workload, ask.Repeats, ask.Concurrencies, ask.Backends = record.WorkloadConcurrent, 1, []int{1}, []string{record.Native}
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	rows := pick(run, func(s *record.Sample) bool { return s.Measured })
	for i, row := range rows {
		if restless := strings.Contains(row.Why, "did not come to rest"); restless != (i == 0) || (row.Source == record.Unverified) != (i == 0) || !row.Shared {
			t.Errorf("measured request %d is %s (%s), shared %v", i, row.Source, row.Why, row.Shared)
		}
	}
	if len(rows) != 4 {
		t.Errorf("%d measured requests, want 4", len(rows))
	}
}

func TestASustainedWindowIsBoundedByItsCapAndCompared(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-sustained-2-sustained-a1-20", otherText})
	ask := r.small()
	ask.Workload, ask.Lengths, ask.Concurrencies = record.WorkloadSustained, []int{128, 256}, []int{2}
	ask.WorkingSet, ask.MaxRequests, ask.ReuseRatio = 4, 30, 0.5
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range ask.Backends {
		rows := pick(run, func(s *record.Sample) bool { return s.Backend == backend && s.Phase == record.Sustained })
		reused := 0
		for _, row := range rows {
			if row.PromptIndex < ask.WorkingSet {
				reused++
			}
			if (row.MatchesCold != nil) != (row.PromptIndex < ask.WorkingSet) {
				t.Errorf("request %s of prompt %d is compared as %v", row.Request, row.PromptIndex, row.MatchesCold)
			}
		}
		if len(rows) != 30 || reused == 0 || reused == 30 {
			t.Errorf("%s: %d requests, %d of the working set", backend, len(rows), reused)
		}
	}
	for _, w := range run.Windows {
		if w.Phase == record.Sustained && (w.Stop != stopCount || w.Requests != 30 || w.WallSeconds < w.AdmitSeconds) {
			t.Errorf("a window is %+v", w)
		}
	}
}

func TestASustainedWindowClosesInTime(t *testing.T) {
	r := newRig(t)
	r.step = 100 * time.Millisecond
	ask := r.small()
	ask.Backends, ask.Workload, ask.Concurrencies, ask.WorkingSet, ask.DurationSeconds = []string{record.Native}, record.WorkloadSustained, []int{1}, 2, 3
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	last := run.Windows[len(run.Windows)-1]
	if last.Stop != stopWindow || last.AdmitSeconds > 3 || last.DrainSeconds <= 0 {
		t.Errorf("the window is %+v", last)
	}
}

func TestTheChoiceOfASustainedRequestDependsOnItsNumberAlone(t *testing.T) {
	s := &stage{run: &run{ask: Defaults(), prompts: prompts{7, 4096}}}
	set := make([]query, 12)
	for i := range set {
		set[i].prompt = i
	}
	s.ask.WorkingSet = len(set)
	reused := 0
	for i := range 1000 {
		first, again := s.choose(record.Place{Concurrency: 4}, set, i), s.choose(record.Place{Concurrency: 4}, set, i)
		if first.prompt != again.prompt {
			t.Fatalf("request %d is prompt %d, then %d", i, first.prompt, again.prompt)
		}
		if first.prompt < len(set) {
			reused++
		}
	}
	if reused < 700 || reused > 800 {
		t.Errorf("%d of 1000 requests reuse the working set, asked for are three quarters", reused)
	}
}
