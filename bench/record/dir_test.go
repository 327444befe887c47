package record_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

func manifest() record.Manifest {
	return record.Manifest{
		Version: "1.2.3",
		Options: record.Options{Engine: "vllm", Backends: []string{"native", "orbitkv"}, Lengths: []int{256, 512}, Seed: 7},
		Machine: record.Machine{CPU: "one", CPUs: 2},
		Model:   record.Model{Type: "qwen3", Layers: 4},
		Probe:   record.Probe{Packages: map[string]string{"vllm": "0.29.0"}},
	}
}

func create(t *testing.T, path string) *record.Dir {
	t.Helper()
	d, err := record.Create(path, manifest(), []string{"orbitkv", "bench"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close("part") })
	return d
}

func sample(cell string, attempt, prompt int) record.Sample {
	return record.Sample{Place: record.Place{Cell: cell, Attempt: attempt}, Request: fmt.Sprintf("%s-%d-%d", cell, attempt, prompt), PromptIndex: prompt}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; expected one with %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

func load(t *testing.T, path string) *record.Run {
	t.Helper()
	run, err := record.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func TestEveryRowComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "deep")
	d := create(t, path)
	place := record.Place{Cell: "native/p0/latency/256/0", Attempt: 1, Backend: "native", Length: 256}
	matches := false
	s := record.Sample{Place: place, Phase: record.HBMHit, TTFTms: 1.5, ChunkMs: []float64{1.5, 2}, MatchesCold: &matches, Evidence: record.Evidence{Source: record.FromHBM, Deltas: map[string]float64{"x": 1}}}
	must(t, d.Sample(s), d.Window(record.Window{Place: place, Requests: 3}), d.Failure(record.Failure{Place: place, Reason: "died"}),
		d.Attribution(record.Attribution{Place: place, Verdict: record.NotRun}), d.Drain(record.Drain{Place: place, Checked: true}),
		d.Timeline(map[string]any{"layer": 3.0}), d.Finish(record.Finished{Place: place}),
		d.Update(func(m *record.Manifest) { m.Notes = append(m.Notes, "seen") }), d.Close("complete"))
	run := load(t, path)
	if len(run.Windows) != 1 || len(run.Failures) != 1 || len(run.Attributions) != 1 || len(run.Drains) != 1 || len(run.Timeline) != 1 || len(run.Finished) != 1 {
		t.Fatalf("rows are missing: %+v", run)
	}
	if got := record.Differences(run.Samples, []record.Sample{s}); got != nil {
		t.Error(got)
	}
	if !run.Final(place) || len(run.Notes) != 0 {
		t.Errorf("final %v, notes %v", run.Final(place), run.Notes)
	}
	attempt := run.Manifest.Attempts[0]
	if attempt.Outcome != "complete" || attempt.Ended.IsZero() || run.Manifest.Notes[0] != "seen" {
		t.Errorf("manifest %+v", run.Manifest)
	}
	for name, mode := range map[string]os.FileMode{".": 0o700, "samples.jsonl": 0o600, "manifest.json": 0o600, "logs": 0o700} {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, error %v, expected %v", name, info.Mode().Perm(), err, mode)
		}
	}
	refused(t, d.Sample(s), "closed")
	must(t, d.Close("failed"))
}

func TestAFolderWithContentsIsRefused(t *testing.T) {
	path := t.TempDir()
	for i := range 7 {
		must(t, os.WriteFile(filepath.Join(path, fmt.Sprintf("file%d", i)), nil, 0o600))
	}
	_, err := record.Create(path, manifest(), nil)
	refused(t, err, "not empty", "file0", "2 more", "--resume")
	_, err = record.Reopen(path, manifest(), nil)
	refused(t, err, "no manifest.json")
}

func TestASecondWriterIsRefusedAndTheLockEndsWithTheFirst(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	_, err := record.Create(path, manifest(), nil)
	refused(t, err, path, "another run")
	_, err = record.Reopen(path, manifest(), nil)
	refused(t, err, "another run")
	load(t, path)
	must(t, d.Close("interrupted"))
	again, err := record.Reopen(path, manifest(), nil)
	must(t, err)
	must(t, again.Close("complete"))
}

func TestAResumedRunKnowsWhatIsFinished(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	must(t, d.Sample(sample("a", 1, 0)), d.Finish(record.Finished{Place: record.Place{Cell: "a", Attempt: 1}}), d.Sample(sample("b", 1, 0)), d.Close("interrupted"))

	d, err := record.Reopen(path, manifest(), []string{"again"})
	must(t, err)
	if done := d.Done(); d.Attempt() != 2 || !done["a"] || done["b"] {
		t.Fatalf("attempt %d, done %v", d.Attempt(), done)
	}
	refused(t, d.Finish(record.Finished{Place: record.Place{Cell: "a", Attempt: 2}}), "a is finished already")
	refused(t, d.Sample(sample("b", 1, 1)), "attempt 1", "attempt 2")
	must(t, d.Sample(sample("b", 2, 0)), d.Finish(record.Finished{Place: record.Place{Cell: "b", Attempt: 2}}), d.Close("complete"))

	run := load(t, path)
	var final []string
	for _, s := range run.Samples {
		if run.Final(s.Place) {
			final = append(final, s.Request)
		}
	}
	if strings.Join(final, " ") != "a-1-0 b-2-0" || len(run.Samples) != 3 {
		t.Errorf("final %v of %d", final, len(run.Samples))
	}
	byHand := record.Run{Finished: run.Finished}
	if !byHand.Final(record.Place{Cell: "b", Attempt: 2}) || byHand.Final(record.Place{Cell: "b", Attempt: 1}) || byHand.Final(record.Place{Cell: "c", Attempt: 1}) {
		t.Error("a run that was put together by hand judges otherwise")
	}
}

func TestAResumeThatWouldBeAnotherRunIsRefused(t *testing.T) {
	path := t.TempDir()
	must(t, create(t, path).Close("part"))
	other := manifest()
	other.Version, other.Options.Lengths, other.Model.Layers = "2.0.0", []int{256}, 5
	other.Probe.Packages = map[string]string{"vllm": "0.30.0", "torch": "2.13"}
	_, err := record.Reopen(path, other, nil)
	refused(t, err, `version was 1.2.3 and is 2.0.0`, "options.lengths was [256,512] and is [256]", "model.layers was 4 and is 5",
		`packages.vllm was "0.29.0" and is "0.30.0"`, `packages.torch was absent`)

	elsewhere := manifest()
	elsewhere.Machine.CPU, elsewhere.Probe.LinkBytesPerS = "two", 2e9
	d, err := record.Reopen(path, elsewhere, nil)
	must(t, err)
	must(t, d.Close("part"))
	if notes := load(t, path).Manifest.Notes; len(notes) != 2 || !strings.Contains(notes[0], "attempt 2 found the machine otherwise than the first: cpu") ||
		!strings.Contains(notes[1], "attempt 2 measured a link of 2 GB/s and the first 0") {
		t.Errorf("notes %q", notes)
	}
}

// TestATornLastLine cuts the file at many bytes of its last row: the rows before it stay, what is left is noted and never read as a row, and the run goes on.
func TestATornLastLine(t *testing.T) {
	whole := t.TempDir()
	d := create(t, whole)
	must(t, d.Sample(sample("a", 1, 0)), d.Sample(sample("a", 1, 1)), d.Close("interrupted"))
	text, err := os.ReadFile(filepath.Join(whole, "samples.jsonl"))
	must(t, err)
	first := strings.IndexByte(string(text), '\n') + 1
	for cut := first; cut <= len(text); cut++ {
		if cut > first+3 && cut < len(text)-3 && cut%17 != 0 {
			continue
		}
		path := t.TempDir()
		must(t, os.CopyFS(path, os.DirFS(whole)))
		file := filepath.Join(path, "samples.jsonl")
		must(t, os.Truncate(file, int64(cut)))
		wantRows, wantNote := 1, "samples.jsonl:2: the last line was cut off"
		switch cut {
		case first:
			wantNote = ""
		case len(text) - 1:
			wantRows, wantNote = 2, "lacked its newline"
		case len(text):
			wantRows, wantNote = 2, ""
		}
		run := load(t, path)
		if notes := strings.Join(run.Notes, ""); len(run.Samples) != wantRows || !strings.Contains(notes, wantNote) || (wantNote == "") != (notes == "") {
			t.Fatalf("cut at %d: %d rows, notes %q", cut, len(run.Samples), run.Notes)
		}
		again, err := record.Reopen(path, manifest(), nil)
		must(t, err)
		must(t, again.Sample(sample("a", 2, 7)), again.Close("part"))
		run = load(t, path)
		if len(run.Samples) != wantRows+1 || len(run.Notes) != 0 || !strings.Contains(strings.Join(run.Manifest.Notes, ""), wantNote) {
			t.Fatalf("cut at %d and resumed: %d rows, notes %q and %q", cut, len(run.Samples), run.Notes, run.Manifest.Notes)
		}
	}
}

func TestABadLineIsNamed(t *testing.T) {
	good := `{"cell":"a","attempt":1}` + "\n"
	for name, c := range map[string]struct{ file, text, want string }{
		"no JSON":      {"samples.jsonl", good + "{\n" + good, "samples.jsonl:2:"},
		"strange":      {"samples.jsonl", good + `{"cell":"a","strange":1}` + "\n", `samples.jsonl:2: json: unknown field "strange"`},
		"two values":   {"windows.jsonl", `{} {}` + "\n", "windows.jsonl:1: more than one value"},
		"empty line":   {"drains.jsonl", good + "\n", "drains.jsonl:2:"},
		"twice":        {"cells.jsonl", good + good, `cells.jsonl:2: cell "a"`},
		"nameless":     {"cells.jsonl", "{}\n", `cells.jsonl:1: cell ""`},
		"long":         {"failures.jsonl", good + strings.Repeat("x", record.LineBytesMax+1), "failures.jsonl:2: the line is longer"},
		"other format": {"manifest.json", `{"format":9,"version":"9.9"}`, "format 9"},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			must(t, create(t, path).Close("part"))
			must(t, os.WriteFile(filepath.Join(path, c.file), []byte(c.text), 0o600))
			_, err := record.Load(path)
			refused(t, err, c.want)
			_, err = record.Reopen(path, manifest(), nil)
			refused(t, err, c.want)
		})
	}
}

func TestAFileThatHasNoEndIsNotWaitedFor(t *testing.T) {
	for _, name := range []string{"manifest.json", "samples.jsonl"} {
		path := t.TempDir()
		must(t, create(t, path).Close("part"))
		must(t, os.RemoveAll(filepath.Join(path, name)), unix.Mkfifo(filepath.Join(path, name), 0o600))
		_, err := record.Load(path)
		refused(t, err, name, "is no ordinary file")
	}
}

func TestADamagedManifestIsCalledOne(t *testing.T) {
	path := t.TempDir()
	must(t, create(t, path).Close("part"), os.WriteFile(filepath.Join(path, "manifest.json"), []byte(`{"format":1`), 0o600))
	_, err := record.Load(path)
	refused(t, err, "manifest.json is damaged", "begin a new run")
}

func TestAFullDiskIsSaidWithWhatHelps(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	must(t, os.Symlink("/dev/full", filepath.Join(path, "samples.jsonl")))
	refused(t, d.Sample(sample("a", 1, 0)), "no space left", "make room and go on by --resume")
	_ = d.Close("failed") // a device is not synced
}

func TestTheManifestIsNotWrittenThroughALink(t *testing.T) {
	path, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	d := create(t, path)
	must(t, os.WriteFile(other, []byte("mine"), 0o600), os.Symlink(other, filepath.Join(path, "manifest.json.new")), d.Close("part"))
	text, err := os.ReadFile(other)
	must(t, err)
	if string(text) != "mine" {
		t.Errorf("the file behind the link is now %q", text)
	}
	load(t, path)
}

func TestARowThatCannotBeReadIsNotWritten(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	bad := sample("a", 1, 0)
	bad.TTFTms = math.NaN()
	refused(t, d.Sample(bad), "samples.jsonl")
	long := sample("a", 1, 0)
	long.Text = strings.Repeat("x", record.LineBytesMax)
	refused(t, d.Sample(long), "at most")
	refused(t, d.Finish(record.Finished{Place: record.Place{Attempt: 1}}), "without a name")
	refused(t, d.Close("well"), "complete, part, failed, interrupted")
	must(t, d.Sample(sample("a", 1, 1)), d.Close("complete"))
	if run := load(t, path); len(run.Samples) != 1 {
		t.Errorf("%d rows", len(run.Samples))
	}
}

// TestWritersTogether has readers load while many goroutines write: a cell that reads as finished has all its rows, each whole.
func TestWritersTogether(t *testing.T) {
	const cells, rows = 16, 20
	path := t.TempDir()
	d := create(t, path)
	var writers sync.WaitGroup
	for cell := range cells {
		writers.Go(func() {
			name := fmt.Sprintf("cell%d", cell)
			for row := range rows {
				if err := d.Sample(sample(name, 1, row)); err != nil {
					t.Error(err)
				}
			}
			if err := d.Finish(record.Finished{Place: record.Place{Cell: name, Attempt: 1}}); err != nil {
				t.Error(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { writers.Wait(); close(ended) }()
	for last := false; !last; {
		select {
		case <-ended:
			last = true
		default:
		}
		run := load(t, path)
		count := map[string]int{}
		for _, s := range run.Samples {
			count[s.Cell]++
		}
		for _, finished := range run.Finished {
			if count[finished.Cell] != rows {
				t.Fatalf("%s is finished with %d of %d rows", finished.Cell, count[finished.Cell], rows)
			}
		}
		if last && len(run.Finished) != cells {
			t.Fatalf("%d of %d cells", len(run.Finished), cells)
		}
	}
}

func TestAFileOfRowsAndTheStartsOfARunAreBounded(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	must(t, os.WriteFile(filepath.Join(path, "samples.jsonl"), nil, 0o600), os.Truncate(filepath.Join(path, "samples.jsonl"), record.FileBytesMax))
	refused(t, d.Sample(sample("a", 1, 0)), "samples.jsonl", "split the run")
	must(t, os.Remove(filepath.Join(path, "samples.jsonl")))
	must(t, d.Update(func(m *record.Manifest) {
		m.Attempts = append(m.Attempts, make([]record.Attempt, record.AttemptsMax-1)...)
	}), d.Close("part"))
	_, err := record.Reopen(path, manifest(), []string{"orbitkv", "bench"})
	refused(t, err, "was started 1000 times", "begin a new run")
}
