package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestSingleNodeRefusesWithEveryReasonBeforeItWritesAnything(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "out")
	_, errs, code := run(t, "bench", "single-node", "--engine", "vllm", "--model", t.TempDir(), "--device", "cuda", "--backend", "native,orbitkv",
		"--ssd-gib", "10", "--queue-warmup", "on", "--orbitkv-transfer-backend", "kernel", "--working-set", "3", "--lengths", "16384", "--output", folder)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, word := range []string{"--backend", "--ssd-gib", "--queue-warmup", "--orbitkv-transfer-backend", "--working-set", "--lengths", "leave the flag out"} {
		if !strings.Contains(errs, word) {
			t.Errorf("nothing is said of %s: %s", word, errs)
		}
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the output folder was made for a run that was refused")
	}
}

func TestSingleNodeNamesItsFolderByItself(t *testing.T) {
	model := t.TempDir()
	_, errs, code := run(t, "bench", "single-node", "--engine", "sglang", "--model", model)
	if code != 1 || !strings.Contains(errs, model+" is no folder of a model") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestSingleNodeSaysTheDefaultsOfTheWorkload(t *testing.T) {
	out, _, code := run(t, "bench", "single-node", "--help")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, pattern := range []string{
		`--lengths tokens .*\[1024,4096,8192\]`, `--concurrencies requests .*\[1,4,8,16\]`, `--gpu-tokens tokens .*16384`, `--page-size tokens .*64`, `--repeats prefixes .*5`,
		`--working-set prefixes .*12`, `--reuse-ratio share .*0\.75`, `--settle-seconds seconds .*1\.2`, `--seed number .*20260920`, `--workload workload .*"latency"`,
	} {
		if !regexp.MustCompile(pattern).MatchString(out) {
			t.Errorf("the help does not say %s:\n%s", pattern, out)
		}
	}
}

func TestCompareWantsTwoRuns(t *testing.T) {
	_, errs, code := run(t, "bench", "compare", "one")
	if code != 1 || !strings.Contains(errs, "name two or more output folders") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	_, errs, code = run(t, "bench", "compare", t.TempDir(), t.TempDir())
	if code != 1 || !strings.Contains(errs, "is not an output directory of a measurement") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
