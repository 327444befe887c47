package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchFigure is what the tests read of a line for programs.
type benchFigure struct {
	Bench, Name, Unit, Ceiling string
	Parallel, N                int
	P50, Rate                  float64
	Storage                    *struct{ Mount, Filesystem, Direct string }
}

// benchRun measures with as little as there can be, in a folder for temporary files of its own, and returns the table and the figures.
func benchRun(t *testing.T, arguments ...string) (table string, figures map[string]benchFigure) {
	t.Helper()
	scratch, lines := t.TempDir(), filepath.Join(t.TempDir(), "figures.jsonl")
	cmd := orbitkv(append([]string{"bench"}, append(arguments, "--rounds", "1", "--time", "1ms", "--json", lines)...)...)
	cmd.Env = append(cmd.Env, "TMPDIR="+scratch)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if strings.Contains(errs.String(), "O_DIRECT") {
			t.Skip(errs.String())
		}
		t.Fatalf("%v: %s", err, errs.String())
	}
	nothingIn(t, scratch)
	text, err := os.ReadFile(lines)
	if err != nil {
		t.Fatal(err)
	}
	figures = map[string]benchFigure{}
	for line := range strings.Lines(string(text)) {
		var f benchFigure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatal(err)
		}
		figures[f.Name] = f
	}
	for name, f := range figures {
		shrinks := strings.HasSuffix(name, "growth of the machine's page cache") // what others do to it is in it
		if f.Bench != arguments[0] || f.N < 1 || f.P50 <= 0 && !shrinks || f.Unit == "" || !strings.Contains(out.String(), "| "+name+" ") {
			t.Errorf("%+v is no figure of the table", f)
		}
		if _, measured := figures[f.Ceiling]; f.Ceiling != "" && !measured {
			t.Errorf("%s has the ceiling %q, which was not measured", name, f.Ceiling)
		}
	}
	return out.String(), figures
}

// nothingIn checks that a folder was left empty.
func nothingIn(t *testing.T, folder string) {
	t.Helper()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v, %v", folder, left, err)
	}
}

func TestBenchChannelMeasuresAManagerBesideABareSocket(t *testing.T) {
	_, figures := benchRun(t, "channel", "--pool", "128mib", "--keys", "16")
	for _, name := range []string{"ping", "query 16 keys", "query 16 keys, scattered pages", "reserve + commit 128 pages, room", "reserve + commit 128 pages, full pool"} {
		if figures[name].Ceiling == "" {
			t.Errorf("%s stands beside nothing: %+v", name, figures[name])
		}
	}
}

func TestBenchPoolMeasuresMemoryBesidePlainMemory(t *testing.T) {
	_, figures := benchRun(t, "pool", "--pool", "40mib", "--index-pages", "131072")
	for _, name := range []string{"populate the arenas", "copy into the arenas", "copy out of the arenas", "reserve 1 GiB as 512 pages, in process, evicting as many"} {
		if f := figures[name]; f.Ceiling == "" || f.Rate <= 0 {
			t.Errorf("%s has no rate or stands beside nothing: %+v", name, f)
		}
	}
	if f := figures["memory of the cache for each page, heap"]; f.Unit != "bytes" || f.Ceiling == "" {
		t.Errorf("%+v", f)
	}
}

func TestBenchSSDMeasuresADiskAndTheStoreBesideIt(t *testing.T) {
	folder := t.TempDir()
	table, figures := benchRun(t, "ssd", folder, "--size", "32mib", "--blocks", "4kib,1mib", "--depths", "1,2",
		"--pages", "64kib", "--engines", "pool", "--throttle", "64mib", "--recovery-pages", "2000")
	nothingIn(t, folder)
	f := figures["write 1 MiB"]
	if f.Rate <= 0 || f.Storage == nil || f.Storage.Mount == "" || f.Storage.Filesystem == "" || !strings.HasPrefix(f.Storage.Direct, "held") {
		t.Errorf("%+v, %+v", f, f.Storage)
	}
	if !strings.Contains(table, "O_DIRECT held") {
		t.Error(table)
	}
	for name, ceiling := range map[string]string{"store read 64 KiB, pool": "raw read 64 KiB", "store write 64 KiB, pool": "raw write 64 KiB", "recovery of 2000 pages after a crash, from the log": ""} {
		if f := figures[name]; f.N == 0 || f.P50 <= 0 || f.Ceiling != ceiling {
			t.Errorf("%s is %+v", name, f)
		}
	}
}

func TestBenchRefusesADiskThatCannotBeMeasured(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, word := range map[string]string{file: "is no folder", filepath.Join(folder, "none"): "no such file", "/proc": "/proc", "/dev/shm": "O_DIRECT"} {
		if path == "/dev/shm" && !isTmpfs(t, path) {
			continue
		}
		lines := filepath.Join(t.TempDir(), "figures.jsonl")
		_, errs, code := run(t, "bench", "ssd", path, "--size", "1mib", "--blocks", "4kib", "--only", "read", "--json", lines)
		if code != 1 || !strings.Contains(errs, word) {
			t.Errorf("%s: %d, %s, want %q", path, code, errs, word)
		}
		if _, err := os.Stat(lines); err == nil {
			t.Errorf("%s: a file without figures was left", path)
		}
	}
	if left, err := filepath.Glob("/dev/shm/orbitkv-bench-*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestBenchChannelNamesATemporaryFolderThatHoldsNoSocket(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for folder, word := range map[string]string{long: "a shorter folder by TMPDIR", filepath.Join(long, "none"): "with room by TMPDIR"} {
		for _, section := range []string{"ping", "publish"} {
			cmd := orbitkv("bench", "channel", "--pool", "128mib", "--only", section, "--rounds", "1", "--time", "1ms")
			cmd.Env = append(cmd.Env, "TMPDIR="+folder)
			if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), word) {
				t.Errorf("%s: %v, %s, want %q", section, err, said, word)
			}
		}
	}
	nothingIn(t, long)
}

// isTmpfs says whether a folder lies in memory.
func isTmpfs(t *testing.T, folder string) bool {
	t.Helper()
	const tmpfs = 0x01021994
	var fs syscall.Statfs_t
	return syscall.Statfs(folder, &fs) == nil && fs.Type == tmpfs
}

// TestAnInterruptedBenchLeavesNothing interrupts a measurement in each of its parts and looks for its Manager and its files.
func TestAnInterruptedBenchLeavesNothing(t *testing.T) {
	disk := t.TempDir()
	for _, c := range []struct {
		signal    syscall.Signal
		during    string // a verb of the process to wait for; empty waits for the first section
		arguments []string
	}{
		{syscall.SIGINT, "echo-server", []string{"channel", "--pool", "128mib", "--only", "ping"}},
		{syscall.SIGINT, "serve", []string{"channel", "--pool", "128mib", "--only", "publish", "--time", "1ms"}},
		{syscall.SIGTERM, "serve", []string{"channel", "--pool", "128mib", "--only", "query", "--time", "1ms"}},
		{syscall.SIGKILL, "serve", []string{"channel", "--pool", "128mib", "--only", "ping", "--time", "1ms"}},
		{syscall.SIGINT, "", []string{"ssd", disk, "--size", "4mib", "--blocks", "4kib", "--only", "read"}},
		{syscall.SIGKILL, "", []string{"ssd", disk, "--size", "4mib", "--blocks", "4kib", "--only", "write"}},
		{syscall.SIGINT, "", []string{"pool", "--pool", "40mib", "--only", "copy"}},
	} {
		scratch, lines := t.TempDir(), filepath.Join(t.TempDir(), "figures.jsonl")
		cmd := orbitkv(append([]string{"bench", c.arguments[0], "--time", "10m", "--rounds", "1000", "--json", lines}, c.arguments[1:]...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+scratch)
		t.Cleanup(func() { endProcessesOf(t, scratch) })
		said := interrupt(t, cmd, c.signal, func() bool { return c.during == "" || len(processesOf(t, scratch, c.during)) > 0 })
		await(t, "the end of every process", func() bool { return len(processesOf(t, scratch, "")) == 0 })
		if c.signal == syscall.SIGKILL {
			continue
		}
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said, "interrupted in ") {
			t.Errorf("%v: %v, %s", c.arguments, cmd.ProcessState, said)
		}
		nothingIn(t, scratch)
		nothingIn(t, filepath.Dir(lines))
	}
	nothingIn(t, disk)
}

// TestASecondSignalEndsABenchThatWaits lets the figures go to a pipe that nobody opens.
func TestASecondSignalEndsABenchThatWaits(t *testing.T) {
	lines := filepath.Join(t.TempDir(), "figures")
	if err := syscall.Mkfifo(lines, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := orbitkv("bench", "pool", "--pool", "40mib", "--only", "copy", "--rounds", "1", "--time", "1ms", "--json", lines)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	again, late := time.NewTicker(100*time.Millisecond), time.NewTimer(patience)
	defer again.Stop()
	for {
		select {
		case <-ended:
			return
		case <-again.C:
			_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended by now
		case <-late.C:
			_ = cmd.Process.Kill()
			t.Fatal("it waits on")
		}
	}
}

// interrupt runs a command, sends the signal once it measures and ready is true, and returns what it said when it has ended.
func interrupt(t *testing.T, cmd *exec.Cmd, signal syscall.Signal, ready func() bool) string {
	t.Helper()
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines, sent := bufio.NewScanner(pipe), false
	late := time.AfterFunc(patience, func() { _ = pipe.Close() }) // a process that it left behind keeps the other end
	defer late.Stop()
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if !sent && strings.Contains(lines.Text(), "round 1 of") {
			sent = true
			await(t, "the process to interrupt beside", ready)
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait() // its exit status is the caller's to judge
	return said.String()
}

// await looks again and again until done.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// processesOf returns the running processes whose command line has a verb and names a path.
func processesOf(t *testing.T, path, verb string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), path) && (verb == "" || slices.Contains(strings.Split(string(text), "\x00"), verb)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// endProcessesOf ends what a test that failed has left.
func endProcessesOf(t *testing.T, path string) {
	t.Helper()
	for _, pid := range processesOf(t, path, "") {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by now
	}
}
