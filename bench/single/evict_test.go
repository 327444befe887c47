package single

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// tiered is the small measurement with an SSD tier.
func tiered(r *rig) Ask {
	ask := r.small()
	ask.SSDGiB = 1
	return ask
}

// evicted are the final samples of orbitkv after its memory was emptied.
func evicted(run *record.Run) []record.Sample {
	return pick(run, func(s *record.Sample) bool {
		return s.Measured && s.Backend == record.OrbitKV && s.Phase == record.AfterHostEviction
	})
}

func TestWithAnSSDEveryPromptComesBackFromItOnce(t *testing.T) {
	for _, engine := range []string{record.VLLM, record.SGLang} {
		t.Run(engine, func(t *testing.T) {
			r := newRig(t)
			ask := tiered(r)
			ask.Engine = engine
			run, err := r.measure(ask)
			if err != nil {
				t.Fatal(err)
			}
			rows := evicted(run)
			for _, row := range rows {
				if n := row.Deltas["orbitkv_cache_block_evictions_total"]; n != 0 {
					t.Errorf("%g evictions of the verb count as those of %s", n, row.Request)
				}
				pages := float64(row.ExternalTokens / 64)
				want := record.Tiers{AskedPages: pages, SSDPages: pages, SSDReadBytes: pages * 64 * tinyBytesPerToken, RestoredBytes: pages * 64 * tinyBytesPerToken, SSDReads: []record.Bucket{{UpToMs: 4, N: pages}}}
				got := *row.Tiers
				if got.SSDReads == nil || got.SSDReads[0] != want.SSDReads[0] || len(got.SSDReads) != 1 {
					t.Errorf("the reads of %s took %v, want %v", row.Request, got.SSDReads, want.SSDReads)
				}
				got.SSDReads, want.SSDReads = nil, nil
				if row.Source != record.FromExternal || row.ExternalTokens != 192 || row.LoadBytes != 192*tinyBytesPerToken || !tiersEqual(got, want) || row.MatchesCold == nil {
					t.Errorf("%s is %s (%s) with %d tokens and the tiers %+v", row.Request, row.Source, row.Why, row.ExternalTokens, got)
				}
			}
			if len(rows) != 2 {
				t.Errorf("%d samples after the memory was emptied, want 2", len(rows))
			}
			if got := sources(run, record.Native, record.AfterHostEviction); !maps.Equal(got, map[record.Source]int{record.Miss: 2}) {
				t.Errorf("the engine alone has %v, want 2 misses to compare with", got)
			}
			for _, row := range pick(run, func(s *record.Sample) bool {
				return s.Backend == record.OrbitKV && s.Phase == record.AfterPressure && s.Measured
			}) {
				if row.Tiers.RAMPages != 3 || row.Tiers.SSDReadBytes != 0 {
					t.Errorf("after pressure alone the tiers are %+v, want 3 pages of memory", row.Tiers)
				}
			}
		})
	}
}

func tiersEqual(a, b record.Tiers) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

func TestTheSSDTierIsProvedKeptAndRemoved(t *testing.T) {
	r := newRig(t)
	ask := tiered(r)
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Volumes) != 1 || run.Volumes[0].File != filepath.Join("ssd", "orbitkv-p0-a1", "payload") || !run.Volumes[0].Direct || run.Volumes[0].Attempt != 1 {
		t.Errorf("storage.json says %+v", run.Volumes)
	}
	if _, err := os.Stat(filepath.Join(ask.Output, "ssd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tier's folder is still there: %v", err)
	}
	for _, spec := range r.specs {
		if (spec.SSDFolder != "") != (spec.Backend == record.OrbitKV) {
			t.Errorf("%s was given the folder %q", spec.Backend, spec.SSDFolder)
		}
	}
	found := false
	for _, s := range run.Manifest.Storage {
		found = found || s.Use == "ssd" && strings.HasPrefix(s.Direct, "held")
	}
	if !found {
		t.Errorf("the manifest's storage is %+v", run.Manifest.Storage)
	}
}

func TestAnSSDTierThroughThePageCacheIsNotMeasured(t *testing.T) {
	r := newRig(t)
	r.buffered = true
	run, err := r.measure(tiered(r))
	says(t, err, "orbitkv, pass 0: manager (start)", "whose backend did not start")
	r.tells("goes through the page cache", "without O_DIRECT", "ext4 or xfs")
	if len(run.Failures) != 1 || run.Failures[0].Part != record.PartManager || len(run.Finished) != 2 || len(run.Volumes) != 1 || run.Volumes[0].Direct {
		t.Errorf("failures %+v, %d cells, volumes %+v", run.Failures, len(run.Finished), run.Volumes)
	}
	if _, err := os.Stat(filepath.Join(run.Path, "ssd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tier's folder is still there: %v", err)
	}
}

func TestAMemoryThatIsNotEmptiedEndsTheBackend(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*rig)
		words string
	}{
		"pages stay leased":   {func(r *rig) { r.leased = 2 }, "2 pages were still leased"},
		"the verb is refused": {func(r *rig) { r.deaf = true }, "its memory could not be emptied: 401 Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c.spoil(r)
			ask := tiered(r)
			ask.Backends = []string{record.OrbitKV}
			run, err := r.measure(ask)
			says(t, err, "orbitkv, pass 0: manager (serve)")
			r.tells(c.words)
			if len(run.Finished) != 0 || len(run.Failures) != 1 {
				t.Errorf("%d cells, failures %+v", len(run.Finished), run.Failures)
			}
		})
	}
}

// TestAHitWithoutAReadOfTheSSDIsUnverified has Managers that lie about where pages came from.
func TestAHitWithoutAReadOfTheSSDIsUnverified(t *testing.T) {
	for lie, why := range map[string]string{
		stayInMemory: "after the Manager emptied its memory, which are 12288 bytes, and it read 0 from the SSD",
		losePages:    "asked the Manager for 6 pages, and its tiers and its misses are 3",
	} {
		r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_host_eviction", lie})
		run, err := r.measure(tiered(r))
		if err != nil {
			t.Fatal(err)
		}
		rows := evicted(run)
		if rows[0].Source != record.Unverified || !strings.Contains(rows[0].Why, why) || rows[1].Source != record.FromExternal {
			t.Errorf("%s: %s (%s), and the honest one %s", lie, rows[0].Source, rows[0].Why, rows[1].Source)
		}
	}
}

func TestAReadWithoutARestoreIsAMissThatIsCounted(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_host_eviction", readInVain})
	run, err := r.measure(tiered(r))
	if err != nil {
		t.Fatal(err)
	}
	rows := evicted(run)
	if rows[0].Source != record.Miss || rows[0].Tiers.SSDReadBytes == 0 {
		t.Errorf("%s (%s), tiers %+v", rows[0].Source, rows[0].Why, rows[0].Tiers)
	}
	s, err := report.Summarise(run)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.Groups {
		want := 0
		if g.Backend == record.OrbitKV && g.Phase == record.AfterHostEviction {
			want = 1
		}
		if got := readsWithoutRestore(g.Tiers); got != want {
			t.Errorf("%s %s: %d reads without a restore, want %d", g.Backend, g.Phase, got, want)
		}
	}
}

func readsWithoutRestore(t *report.Tiers) int {
	if t == nil {
		return 0
	}
	return t.SSDReadsWithoutRestore
}

func TestBurstsComeBackFromTheSSD(t *testing.T) {
	r := newRig(t)
	ask := tiered(r)
	ask.Workload, ask.Repeats, ask.Lengths, ask.Concurrencies = record.WorkloadConcurrent, 1, []int{128, 256}, []int{3}
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	rows := evicted(run)
	for _, row := range rows {
		if row.Variant == record.Mixed && row.Source != record.FromExternal || row.Tiers == nil || row.Tiers.SSDReadBytes == 0 || !row.Shared || row.MatchesCold == nil {
			t.Errorf("%s is %s (%s) with the tiers %+v", row.Request, row.Source, row.Why, row.Tiers)
		}
	}
	if len(rows) != 2*3+3 { // a shared burst of each length, and a mixed one
		t.Errorf("%d samples after the memory was emptied", len(rows))
	}
	windows := 0
	for _, w := range run.Windows {
		if !run.Final(w.Place) || w.Phase != record.AfterHostEviction {
			continue
		}
		windows++
		if (w.Tiers != nil) != (w.Backend == record.OrbitKV) || w.Tiers != nil && w.Tiers.SSDReadBytes == 0 {
			t.Errorf("%s has the tiers %+v", w.Cell, w.Tiers)
		}
	}
	if windows != 2*3 {
		t.Errorf("%d windows after the memory was emptied", windows)
	}
}

func TestASustainedWindowHasNoSuchPhaseAndTellsItsTiers(t *testing.T) {
	r := newRig(t)
	ask := tiered(r)
	ask.Workload, ask.Concurrencies, ask.WorkingSet, ask.MaxRequests = record.WorkloadSustained, []int{2}, 4, 20
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	if rows := evicted(run); len(rows) != 0 {
		t.Errorf("%d samples of another workload's phase", len(rows))
	}
	for _, w := range run.Windows {
		if w.Phase == record.Sustained && w.Backend == record.OrbitKV && (w.Tiers == nil || w.Tiers.AskedPages == 0) {
			t.Errorf("the window's tiers are %+v", w.Tiers)
		}
	}
}

func TestARunWithAnSSDIsResumedWithoutWhatTheFirstAttemptLeft(t *testing.T) {
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_host_eviction-a1", cancelRun})
	ask := tiered(r)
	_, err := r.measure(ask)
	says(t, err, "was interrupted", "2 cells of orbitkv are missing")
	left := filepath.Join(ask.Output, "ssd", "orbitkv-p0-a1") // as a measurement that was killed leaves it
	if err := errors.Join(os.MkdirAll(left, 0o700), os.WriteFile(filepath.Join(left, "payload"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	ask.Resume = true
	r.diskFree = func(string) (uint64, error) { // nothing is free as long as the first attempt's tier is there
		if _, err := os.Stat(left); err == nil {
			return 0, nil
		}
		return 64 << 30, nil
	}
	run, err := r.measure(ask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was left is still there: %v", err)
	}
	if len(run.Volumes) != 2 || run.Volumes[1].Attempt != 2 || len(finals(run)) != 16 {
		t.Errorf("%d volumes, %d final samples; want 2 and 16", len(run.Volumes), len(finals(run)))
	}
	ask.SSDGiB = 2
	_, err = r.measure(ask)
	says(t, err, "cannot be resumed", "ssd_gib was 1 and is 2")
}

func TestAnSSDTierThatDoesNotFitIsRefusedBeforeAnythingStarts(t *testing.T) {
	r := newRig(t)
	ask := tiered(r)
	ask.SSDGiB = 65
	says(t, Measure(t.Context(), ask, r.host(), nil, io.Discard, io.Discard), "--ssd-gib: an SSD tier of 65 GiB", "64.0 GiB that are free in", "take less")
	if len(r.specs) != 0 {
		t.Errorf("%d stacks were started", len(r.specs))
	}
}

func TestNotesTellOfAnSSDTierThatShowsLittle(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Ask)
		want   string
	}{
		"enough":                 {func(a *Ask) {}, ""},
		"too small":              {func(a *Ask) { a.SSDGiB = 7 }, "need 7.88 GiB and the SSD tier has 7"},
		"another cache":          {func(a *Ask) { a.Backends = []string{record.CPU, record.OrbitKV} }, "cpu cannot be emptied from outside"},
		"a set that fits memory": {func(a *Ask) { a.Workload = record.WorkloadSustained }, "nothing of it needs to come from the SSD"},
		"a set that does not":    {func(a *Ask) { a.Workload, a.WorkingSet = record.WorkloadSustained, 60 }, ""},
		"a set larger than both": {func(a *Ask) { a.Workload, a.WorkingSet, a.SSDGiB = record.WorkloadSustained, 60, 20 }, "it does not hold all of it"},
	} {
		ask := sound()
		ask.complete()
		ask.SSDGiB = 64
		c.change(&ask)
		notes := strings.Join(ask.ssdNotes(record.Model{BytesPerToken: 147456}), "\n")
		if !strings.Contains(notes, c.want) || c.want == "" && notes != "" {
			t.Errorf("%s: the notes say %q, want %q", name, notes, c.want)
		}
	}
}
