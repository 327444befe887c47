package launch

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"orbitkv/bench/record"
)

// smallLog is far below what a loud engine prints.
var smallLog = logBounds{head: 64 << 10, tail: 64 << 10, slack: 64 << 10, every: time.Millisecond, punch: punchHole}

// needsHoles skips a test on a file system that cannot free a part of a file.
func needsHoles(t *testing.T, folder string) {
	t.Helper()
	file, err := os.Create(filepath.Join(folder, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := punchHole(file, 0, 4096); errors.Is(err, syscall.EOPNOTSUPP) {
		t.Skipf("the file system of %s: %v", folder, err)
	}
}

func TestALogStaysWithinItsBoundsWhileItIsWritten(t *testing.T) {
	folder := t.TempDir()
	needsHoles(t, folder)
	path := filepath.Join(folder, "engine.log")
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	log, err := openBounded(path, smallLog)
	if err != nil {
		t.Fatal(err)
	}
	var whole strings.Builder
	const most = 64<<10*3 + 8<<10 + 4*4096 // with what comes between two looks, and blocks that are used in part
	for i := range 200 {
		var lines strings.Builder
		for j := range 100 {
			fmt.Fprintf(&lines, "line %03d.%02d %s\n", i, j, strings.Repeat("x", 60))
		}
		whole.WriteString(lines.String())
		if _, err := writer.WriteString(lines.String()); err != nil {
			t.Fatal(err)
		}
		if err := log.look(); err != nil {
			t.Fatal(err)
		}
		var info syscall.Stat_t
		if err := syscall.Stat(path, &info); err != nil {
			t.Fatal(err)
		}
		if used := info.Blocks * 512; used > most {
			t.Fatalf("after %d bytes the log uses %d, more than %d", whole.Len(), used, most)
		}
	}
	cutTo := log.cutTo
	if err := log.finish(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := whole.String()[:smallLog.head] + fmt.Sprintf("\n[orbitkv bench cut %15d bytes out of this log here, which had passed its bound]\n", cutTo-smallLog.head) + whole.String()[cutTo:]
	if string(text) != want {
		t.Errorf("the log has %d bytes, want %d: its head, the notice and its tail", len(text), len(want))
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 2 {
		t.Errorf("left beside it: %v, %v", left, err)
	}
}

// loud starts an engine, has it print far more than its log may hold, and returns its stack and its log.
func loud(t *testing.T, logs logBounds) (stack *Stack, path string) {
	t.Helper()
	folder, _ := setMode(t, modeServe)
	needsHoles(t, t.TempDir())
	stack, err := start(t.Context(), testSpec(folder, record.Native), nil, readyLimit, logs)
	if err != nil {
		t.Fatal(err)
	}
	fetch(t.Context(), http.DefaultClient, stack.Engine()+"/loud")
	return stack, filepath.Join(folder, "engine.log")
}

func TestALoudEngineGoesOn(t *testing.T) {
	stack, path := loud(t, smallLog)
	for end := time.Now().Add(treeLimit); ; waitTick(t, end) {
		if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "orbitkv bench cut") {
			break
		}
	}
	if _, ok := fetch(t.Context(), http.DefaultClient, stack.Engine()+"/health"); !ok {
		t.Error("the engine does not answer any more")
	}
	if err := stack.Stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{loudLine(0), "bytes out of this log here", loudLine(loudLines - 1)} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the log", want)
		}
	}
	if most := smallLog.head + smallLog.tail + smallLog.slack + 200; int64(len(text)) > most {
		t.Errorf("the log has %d bytes, more than %d", len(text), most)
	}
}

func TestAnEngineWhoseLogCannotBeCutIsEnded(t *testing.T) {
	logs := smallLog
	logs.punch = func(*os.File, int64, int64) error { return syscall.EOPNOTSUPP }
	stack, _ := loud(t, logs)
	if reason := <-stack.Died(); !strings.Contains(reason, "SIGKILL by the measurement: its log passed") || !strings.Contains(reason, "cannot cut it") {
		t.Errorf("the death is told as %q", reason)
	}
	if err := stack.Stop(); err != nil {
		t.Error(err)
	}
}
