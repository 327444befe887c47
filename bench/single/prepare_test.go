package single

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// TestAFolderThatCannotBeTakenIsRefusedBeforeThePythonIsAsked: the engine's Python may take a minute, and what is refused in the end was known before.
func TestAFolderThatCannotBeTakenIsRefusedBeforeThePythonIsAsked(t *testing.T) {
	folder := t.TempDir()
	full, foreign, locked := filepath.Join(folder, "full"), filepath.Join(folder, "foreign"), filepath.Join(folder, "locked")
	for _, path := range []string{full, foreign} {
		if err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "notes.txt"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	other, err := record.Create(locked, record.Manifest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(record.Failed)
	for name, c := range map[string]struct {
		output string
		resume bool
		words  []string
	}{
		"a folder with something in it": {full, false, []string{"is not empty", "notes.txt", "--resume"}},
		"a folder in use":               {locked, false, []string{"is being written by another run"}},
		"a run in use":                  {locked, true, []string{"is being written by another run"}},
		"no run":                        {filepath.Join(folder, "absent"), true, []string{"there is no run", "--resume"}},
		"a folder without a run":        {foreign, true, []string{"is not an output directory of a measurement"}},
	} {
		r := newRig(t)
		ask := r.small()
		ask.Output, ask.Resume = c.output, c.resume
		host := r.host()
		host.Probe = func(context.Context, string, string) (record.Probe, error) {
			return record.Probe{}, errors.New("the Python was asked")
		}
		t.Run(name, func(t *testing.T) { says(t, Measure(t.Context(), ask, host, nil, io.Discard, io.Discard), c.words...) })
	}
	if _, err := os.Stat(filepath.Join(folder, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused run left something: %v", err)
	}
}

// TestOtherProcessesOnAGPUAreNotedOnce has two GPUs of one name, one of which is in use.
func TestOtherProcessesOnAGPUAreNotedOnce(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	host := r.host()
	host.Machine = func(context.Context) record.Machine {
		return record.Machine{GPUs: []record.GPU{{Name: "H200"}, {Name: "H200", OtherUses: 2}}}
	}
	if err := Measure(t.Context(), ask, host, nil, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	kept, err := record.Load(ask.Output)
	if err != nil {
		t.Fatal(err)
	}
	s, err := report.Summarise(kept)
	if err != nil {
		t.Fatal(err)
	}
	var about []string
	for _, note := range s.Notes {
		if strings.Contains(note, "H200") {
			about = append(about, note)
		}
	}
	if len(about) != 1 || !strings.Contains(about[0], "2 other processes computed on GPU 1 (H200) before the run") {
		t.Errorf("notes %q", about)
	}
}

func TestARunWhosePythonAnswersNothingLeavesNoFolder(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	host := r.host()
	host.Probe = func(context.Context, string, string) (record.Probe, error) {
		return record.Probe{}, errors.New("the Python was asked")
	}
	says(t, Measure(t.Context(), ask, host, nil, io.Discard, io.Discard), "the Python was asked")
	if _, err := os.Stat(ask.Output); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused run left something: %v", err)
	}
}

func TestWhatThisHostDoesNotHaveIsRefusedBeforeAnythingStarts(t *testing.T) {
	folder := t.TempDir()
	for name, c := range map[string]struct {
		spoil func(*Ask)
		words []string
	}{
		"a folder for a Python":    {func(a *Ask) { a.EnginePython = folder }, []string{"--engine-python: " + folder + " is a folder", filepath.Join(folder, "bin", "python")}},
		"more memory than is free": {func(a *Ask) { a.HostGiB = 65 }, []string{"--host-gib: an external cache of 65 GiB", "64.0 GiB that are free under the rig", "take less"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ask := r.small()
			c.spoil(&ask)
			says(t, Measure(t.Context(), ask, r.host(), nil, io.Discard, io.Discard), c.words...)
			if len(r.specs) != 0 {
				t.Errorf("%d stacks were started", len(r.specs))
			}
			if _, err := os.Stat(ask.Output); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a refused run left something: %v", err)
			}
		})
	}
	r := newRig(t)
	ask := r.small()
	ask.HostGiB, ask.Backends = 65, ask.Backends[:1]
	if _, err := r.measure(ask); err != nil {
		t.Errorf("native needs no external cache: %v", err)
	}
}
