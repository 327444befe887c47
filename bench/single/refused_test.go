package single

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"orbitkv/bench/record"
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
