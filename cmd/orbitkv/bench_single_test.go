package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"orbitkv/bench/report"
)

func TestSingleNodeRefusesWithEveryReasonBeforeItWritesAnything(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "out")
	_, errs, code := run(t, "bench", "single-node", "--engine", "vllm", "--model", t.TempDir(), "--device", "cuda", "--backend", "native,orbitkv,native",
		"--ssd-gib", "-1", "--stop-policy", "never", "--queue-warmup", "on", "--orbitkv-transfer-backend", "host", "--working-set", "3", "--lengths", "16384", "--output", folder)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, word := range []string{"--backend", "--ssd-gib", "--stop-policy", "--queue-warmup", "--orbitkv-transfer-backend", "--working-set", "--lengths", "leave the flag out"} {
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

// modelFolder makes a folder whose config.json tells the shape of a model.
func modelFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	config := `{"num_hidden_layers":1,"num_attention_heads":1,"head_dim":16,"hidden_size":16,"vocab_size":4096}`
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestSingleNodeWritesNoEscapesToTheTerminal(t *testing.T) {
	_, errs, code := run(t, "bench", "single-node", "--engine", "vllm", "--device", "cpu", "--model", modelFolder(t), "--engine-python", "/none/\x1b[2J", "--output", filepath.Join(t.TempDir(), "out"))
	if code != 1 || strings.ContainsRune(errs, '\x1b') || !strings.Contains(errs, "/none/?[2J did not run the probe") {
		t.Errorf("exit code %d: %q", code, errs)
	}
}

func TestSingleNodeEndsInOrderWithItsTerminal(t *testing.T) {
	folder := t.TempDir()
	python := filepath.Join(folder, "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\nsleep 1000 &\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := orbitkv("bench", "single-node", "--engine", "vllm", "--device", "cpu", "--model", modelFolder(t), "--engine-python", python, "--output", filepath.Join(folder, "out"))
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := syscall.SIGHUP
	if signal.Ignored(end) { // whoever runs the tests wants that, and the program inherits it
		end = syscall.SIGTERM
	}
	var last string
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		if last = lines.Text(); strings.HasPrefix(last, "asking ") {
			if err := cmd.Process.Signal(end); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait() // its state tells
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(last, "was broken off") {
		t.Errorf("%v: %s", cmd.ProcessState, last)
	}
	if left := processesOf(t, folder, ""); len(left) > 0 {
		t.Errorf("processes %v are left", left)
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
	folder, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.WriteFile(filepath.Join(folder, "manifest.json"), []byte(`{"format":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	_, errs, code = run(t, "bench", "compare", folder, link)
	if code != 1 || !strings.Contains(errs, "are one folder") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	_, errs, code = run(t, "bench", "compare", t.TempDir(), t.TempDir())
	if code != 1 || !strings.Contains(errs, "is not an output directory of a measurement") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestPublishedRunsAreReadable(t *testing.T) {
	kept, err := filepath.Glob("../../docs/performance/*/manifest.json")
	if err != nil || len(kept) < 2 {
		t.Fatalf("%d runs are published: %v", len(kept), err)
	}
	for _, manifest := range kept {
		folder := filepath.Join(t.TempDir(), "run")
		if err := os.CopyFS(folder, os.DirFS(filepath.Dir(manifest))); err != nil {
			t.Fatal(err)
		}
		for _, made := range []string{"report.html", "summary.json"} {
			if err := os.RemoveAll(filepath.Join(folder, made)); err != nil {
				t.Fatal(err)
			}
		}
		out, errs, code := run(t, "bench", "report", folder)
		if code != 0 || !strings.Contains(out, "after pressure") {
			t.Errorf("%s: exit code %d: %s%s", manifest, code, out, errs)
		}
		for _, missing := range halfMeasured(t, filepath.Join(folder, "summary.json")) {
			t.Errorf("%s: %s has only some of its cells", manifest, missing)
		}
		for _, made := range []string{"report.html", "summary.json"} {
			if info, err := os.Stat(filepath.Join(folder, made)); err != nil || info.Size() == 0 {
				t.Errorf("%s: %s was not made: %v", manifest, made, err)
			}
		}
	}
	_, errs, code := run(t, "bench", "report", t.TempDir())
	if code != 1 || !strings.Contains(errs, "is not an output directory of a measurement") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// halfMeasured names the backends that a run has begun and not finished. One that it never came to has no figures, and does no harm to the others.
func halfMeasured(t *testing.T, path string) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var summary report.Summary
	if err := json.Unmarshal(content, &summary); err != nil {
		t.Fatal(err)
	}
	var half []string
	for _, of := range summary.Coverage {
		if of.Finished != 0 && !of.Complete() {
			half = append(half, of.Backend)
		}
	}
	return half
}
