package single

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"orbitkv/bench/record"
)

// process is a measurement of its own, whose progress is read line by line.
type process struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stdout bytes.Buffer
	told   []string
}

// measureInProcess starts a measurement in a process of its own.
func measureInProcess(t *testing.T, ask Ask, rules ...rule) *process {
	t.Helper()
	text, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	script, err := json.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), runVariable+"="+string(text), scriptVariable+"="+string(script))
	p.cmd.Stdout = &p.stdout
	progress, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	p.lines = bufio.NewScanner(progress)
	return p
}

// until reads progress until a line has a word; an empty word reads to the end.
func (p *process) until(t *testing.T, word string) {
	t.Helper()
	for p.lines.Scan() {
		p.told = append(p.told, p.lines.Text())
		if word != "" && strings.Contains(p.lines.Text(), word) {
			return
		}
	}
	if word != "" {
		t.Fatalf("the measurement ended without a word of %q:\n%s", word, strings.Join(p.told, "\n"))
	}
}

// end waits for the end of the process and reads the directory.
func (p *process) end(t *testing.T, ask Ask) (*record.Run, error) {
	t.Helper()
	p.until(t, "")
	failure := p.cmd.Wait()
	run, err := record.Load(ask.Output)
	if err != nil {
		t.Fatalf("%v; the measurement said:\n%s", err, strings.Join(p.told, "\n"))
	}
	return run, failure
}

// inProcesses is what a test with processes measures.
func inProcesses(t *testing.T, engine string) Ask {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ask := newRig(t).small()
	ask.Engine, ask.EnginePython, ask.Repeats, ask.TraceTransfers, ask.HostGiB = engine, program, 1, true, 1
	return ask
}

func TestTheWholeToolWithItsProcesses(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{record.VLLM, record.SGLang} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			ask := inProcesses(t, engine)
			p := measureInProcess(t, ask)
			run, err := p.end(t, ask)
			if err != nil {
				t.Fatalf("%v:\n%s", err, strings.Join(p.told, "\n"))
			}
			if got := sources(run, record.OrbitKV, record.AfterPressure)[record.FromExternal]; got != 1 {
				t.Errorf("%d external samples after pressure:\n%s", got, strings.Join(p.told, "\n"))
			}
			if len(run.Manifest.Launches) != 3 || len(run.Manifest.Storage) != 2 || run.Manifest.Probe.Python == "" {
				t.Errorf("the manifest is %+v", run.Manifest)
			}
			for _, l := range run.Manifest.Launches {
				if l.Exit == "" || l.ReadySeconds == 0 || len(l.Command) == 0 {
					t.Errorf("the launch of %s is kept as %+v", l.Part, l)
				}
				if _, err := os.Stat(filepath.Join(ask.Output, l.Log)); err != nil {
					t.Errorf("the log of %s: %v", l.Part, err)
				}
			}
			if len(run.Timeline) < 2 || run.Timeline[0]["backend"] != record.OrbitKV {
				t.Fatalf("the timeline is %v", run.Timeline)
			}
			if last := run.Timeline[len(run.Timeline)-1]; last["engine"] != "orbitkv-fake" {
				t.Errorf("the Manager's records are not in the timeline: %v", run.Timeline)
			}
			raw, err := os.ReadFile(filepath.Join(ask.Output, "timeline.jsonl"))
			if err != nil || !bytes.Contains(raw, []byte("9007199254740993")) {
				t.Errorf("nanoseconds were rounded: %s, %v", raw, err)
			}
			for _, name := range []string{"summary.json", "report.html"} {
				if info, err := os.Stat(filepath.Join(ask.Output, name)); err != nil || info.Size() == 0 || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %v, %v", name, info, err)
				}
			}
			if !strings.Contains(p.stdout.String(), "after pressure") {
				t.Errorf("the table for people is %q", p.stdout.String())
			}
		})
	}
}

// TestTheWholeToolWithAnSSD has a Manager in a process of its own whose descriptors the kernel tells of, and whose memory is emptied by its verb. The first attempt
// is killed with the tier's folder in place.
func TestTheWholeToolWithAnSSD(t *testing.T) {
	t.Parallel()
	ask := inProcesses(t, record.VLLM)
	if err := openPayload(t.TempDir()); err != nil {
		t.Skipf("no file here can be opened around the page cache: %v", err)
	}
	ask.SSDGiB, ask.SSDWritePolicy, ask.Backends = 1, "reuse", []string{record.OrbitKV}
	p := measureInProcess(t, ask, rule{"orbitkv-p0-latency-256-0-after_host_eviction-a1", holdAnswer})
	p.until(t, "orbitkv/p0/latency/256/0 after_pressure")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.end(t, ask); err == nil {
		t.Fatal("a killed measurement ended well")
	}
	ask.Resume = true
	again := measureInProcess(t, ask)
	run, err := again.end(t, ask)
	if err != nil {
		t.Fatalf("%v:\n%s", err, strings.Join(again.told, "\n"))
	}
	rows := evicted(run)
	if len(rows) != 1 || rows[0].Source != record.FromExternal || rows[0].Tiers.SSDReadBytes != 192*tinyBytesPerToken {
		t.Errorf("after the memory was emptied: %+v", rows)
	}
	if len(run.Volumes) != 2 || !run.Volumes[1].Direct || run.Volumes[1].Findmnt.FSType == "" || run.Volumes[1].CapacityBytes != 1<<30 {
		t.Errorf("storage.json says %+v", run.Volumes)
	}
	if _, err := os.Stat(filepath.Join(ask.Output, "ssd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tier's folder is still there: %v", err)
	}
	if !strings.Contains(again.stdout.String(), "after host eviction") || !strings.Contains(again.stdout.String(), "asked OrbitKV for") {
		t.Errorf("the table for people is %q", again.stdout.String())
	}
}

func TestARunThatWasKilledIsResumedToTheSamePlan(t *testing.T) {
	t.Parallel()
	ask := inProcesses(t, record.VLLM)
	p := measureInProcess(t, ask, rule{"orbitkv-p0-latency-256-0-hbm_hit-a1", holdAnswer})
	p.until(t, "orbitkv/p0/latency/256/0 cold")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.end(t, ask); err == nil {
		t.Fatal("a killed measurement ended well")
	}
	ask.Resume = true
	run, err := measureInProcess(t, ask).end(t, ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Finished) != 2 || len(run.Manifest.Attempts) != 2 || run.Manifest.Attempts[0].Outcome != "" || run.Manifest.Attempts[1].Outcome != record.Complete {
		t.Errorf("%d cells finished in the attempts %+v", len(run.Finished), run.Manifest.Attempts)
	}
	for name, n := range finals(run) {
		if n != 1 {
			t.Errorf("%s is there %d times", name, n)
		}
	}
	if got := len(finals(run)); got != 6 {
		t.Errorf("%d final samples of 6", got)
	}
}

func TestAnEngineProcessThatDiesInMidStreamIsNamedWithItsStatus(t *testing.T) {
	t.Parallel()
	ask := inProcesses(t, record.SGLang)
	p := measureInProcess(t, ask, rule{"native-p0-latency-256-0-after_pressure", dieMidStream})
	run, err := p.end(t, ask)
	if err == nil {
		t.Error("a measurement whose engine died ended with status 0")
	}
	if len(run.Failures) != 1 || !strings.Contains(run.Failures[0].Reason, "exit status 3") || run.Failures[0].Log == "" {
		t.Errorf("failures %+v", run.Failures)
	}
	if d := run.Drains[0]; d.Checked || !strings.Contains(d.Why, "the engine is gone") || !strings.Contains(strings.Join(p.told, "\n"), "nobody could be asked whether everything was given back") {
		t.Errorf("the drain check of an engine that died says %+v", d)
	}
	if len(run.Finished) != 1 || run.Finished[0].Backend != record.OrbitKV {
		t.Errorf("the finished cells are %+v, want that of the next backend", run.Finished)
	}
}

func TestASignalEndsTheRunInOrder(t *testing.T) {
	t.Parallel()
	ask := inProcesses(t, record.VLLM)
	p := measureInProcess(t, ask, rule{"native-p0-latency-256-0-hbm_hit", holdAnswer})
	p.until(t, "native/p0/latency/256/0 cold")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	run, err := p.end(t, ask)
	if err == nil || !strings.Contains(strings.Join(p.told, "\n"), "was interrupted") {
		t.Errorf("%v:\n%s", err, strings.Join(p.told, "\n"))
	}
	if got := run.Manifest.Attempts[0].Outcome; got != record.Interrupted {
		t.Errorf("the outcome is %q", got)
	}
	for _, l := range run.Manifest.Launches {
		if l.Exit == "" {
			t.Errorf("the %s is not known to have ended", l.Part)
		}
	}
	last := run.Samples[len(run.Samples)-1]
	if last.Phase != record.HBMHit || last.Error == "" || run.Final(last.Place) {
		t.Errorf("the request that was broken off is kept as %+v", last)
	}
}
