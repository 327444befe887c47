package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"orbitkv/bench/record"
)

// treeSize is the processes of a stack with a Manager: either has a child and an orphan beside itself.
const treeSize = 6

// setMode names what the fake engine does, and returns the file of the ids.
func setMode(t *testing.T, mode string) (folder, pids string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	pids = filepath.Join(folder, "pids")
	t.Setenv(modeVariable, mode)
	t.Setenv(pidsVariable, pids)
	return folder, pids
}

func TestStackStartsAndLeavesNothing(t *testing.T) {
	folder, pids := setMode(t, modeServe)
	notes := map[string][]record.Launch{}
	stack, err := Start(t.Context(), testSpec(folder, record.OrbitKV), func(l record.Launch) { notes[l.Part] = append(notes[l.Part], l) })
	if err != nil {
		t.Fatal(err)
	}
	processes := tree(t, pids, treeSize)
	for _, address := range []string{stack.Engine(), stack.Manager()} {
		if _, ok := fetch(t.Context(), http.DefaultClient, address+"/health"); !ok {
			t.Errorf("%s does not answer", address)
		}
	}
	if stack.Service() != "" {
		t.Errorf("there is no other service, but it is said to be at %s", stack.Service())
	}
	private := stack.at.folder
	for range 2 {
		if err := stack.Stop(); err != nil {
			t.Error(err)
		}
	}
	for _, p := range processes {
		if alive(p.Pid) {
			t.Errorf("process %d outlives Stop", p.Pid)
		}
	}
	if _, err := os.Stat(private); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the private folder is left: %v", err)
	}
	for _, part := range []string{record.PartManager, record.PartEngine} {
		n := notes[part]
		if len(n) != 3 || n[0].ReadySeconds != 0 || n[1].ReadySeconds == 0 || n[2].Exit != "signal 15 (terminated)" {
			t.Errorf("the %s was told of as %+v; want a start, a readiness and an end by SIGTERM", part, n)
		}
		if n[0].Log != "logs/"+part+".log" || n[0].Backend != record.OrbitKV || n[0].Pass != 1 || n[0].Attempt != 2 || !n[2].Started.Equal(n[0].Started) {
			t.Errorf("the %s has the launch %+v", part, n[0])
		}
		// A load average of 0.1 takes minutes to fall to 0.
		if was, is := n[0].Busy, n[2].Busy; was.Processors < 1 || is.Processors != was.Processors || is.Before != was.Before || was.After != 0 || was.Before > 0.1 && is.After == 0 {
			t.Errorf("beside the %s the machine was %+v and then %+v", part, was, is)
		}
	}
	select {
	case reason := <-stack.Died():
		t.Errorf("an end that was asked for is told as a death: %s", reason)
	default:
	}
}

func TestAManagerIsReadyWithItsWholePool(t *testing.T) {
	for answer, want := range map[string]bool{
		`{"pool": {"configured_bytes": 8, "populated_bytes": 8}}`:                            true,
		`{"pool": {"configured_bytes": 8, "populated_bytes": 7}}`:                            false,
		`{"pool": {"configured_bytes": 0, "populated_bytes": 0}}`:                            false,
		`{"pool": {"configured_bytes": 8, "populated_bytes": 8}, "socket_error": "is gone"}`: false,
	} {
		if got, err := populated([]byte(answer)); err != nil || got != want {
			t.Errorf("%s is ready: %t, %v; want %t", answer, got, err, want)
		}
	}
	if _, err := populated([]byte("ok")); err == nil {
		t.Error("what is no status is taken for one")
	}
}

func TestAPoolThatStaysSmallerEndsTheStart(t *testing.T) {
	folder, pids := setMode(t, modeShort)
	_, err := Start(t.Context(), testSpec(folder, record.OrbitKV), nil)
	var failure *StartError
	if !errors.As(err, &failure) || failure.Part != record.PartManager || !strings.Contains(failure.Reason, "4 of the 8 bytes of its pool are populated, and no more will be: no memory") {
		t.Fatalf("the start ended with %v", err)
	}
	for _, p := range tree(t, pids, treeSize/2) {
		if alive(p.Pid) {
			t.Errorf("process %d outlives the failed start", p.Pid)
		}
	}
}

func TestStubbornEngineIsKilled(t *testing.T) {
	folder, pids := setMode(t, modeStubborn)
	var last record.Launch
	stack, err := Start(t.Context(), testSpec(folder, record.Native), func(l record.Launch) { last = l })
	if err != nil {
		t.Fatal(err)
	}
	processes := tree(t, pids, treeSize/2)
	if err := stack.Stop(); err != nil {
		t.Error(err)
	}
	for _, p := range processes {
		if alive(p.Pid) {
			t.Errorf("process %d outlives Stop", p.Pid)
		}
	}
	if last.Exit != "signal 9 (killed)" {
		t.Errorf("it ended with %q; want SIGKILL after the limit", last.Exit)
	}
}

// startMeasurement starts a stack with a Manager in a process of its own, and returns when it is ready, with its private folder.
func startMeasurement(t *testing.T, folder string) (measurement *exec.Cmd, private string) {
	t.Helper()
	measurement = exec.Command(os.Args[0], roleMeasurement, folder)
	out, err := measurement.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	measurement.Stderr = os.Stderr
	if err := measurement.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	private = strings.TrimSpace(line)
	if err != nil || private == "" {
		t.Fatalf("the measurement says %q, %v", line, err)
	}
	return measurement, private
}

// killMeasurement ends it as nothing that it could take notice of, and buries it.
func killMeasurement(t *testing.T, measurement *exec.Cmd) {
	t.Helper()
	if err := measurement.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := measurement.Wait(); err == nil {
		t.Error("the measurement ended well although it was killed")
	}
}

func TestKilledMeasurementLeavesNothing(t *testing.T) {
	folder, pids := setMode(t, modeServe)
	measurement, private := startMeasurement(t, folder)
	processes := tree(t, pids, treeSize)
	killMeasurement(t, measurement)
	awaitGone(t, processes)
	for end := time.Now().Add(treeLimit); ; { // the last guard removes it when everything is gone
		if _, err := os.Stat(private); errors.Is(err, os.ErrNotExist) {
			break
		}
		waitTick(t, end)
	}
}

func TestChargesDieWithTheirGuards(t *testing.T) {
	folder, pids := setMode(t, modeServe)
	measurement, private := startMeasurement(t, folder)
	processes := tree(t, pids, treeSize)
	var guards []int
	var charges []*os.Process
	for _, guard := range livingProcesses() {
		if guard.parent != measurement.Process.Pid {
			continue
		}
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", guard.pid)); err != nil || string(name) != GuardVerb+"\n" {
			t.Errorf("the guard is called %q, %v", name, err)
		}
		guards = append(guards, guard.pid)
	}
	for _, p := range processes {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(line), roleDescendant) {
			charges = append(charges, p)
		}
	}
	if len(guards) != 2 || len(charges) != 2 {
		t.Fatalf("there are the guards %v and the charges %v; want two of each", guards, charges)
	}
	if err := measurement.Process.Signal(syscall.SIGSTOP); err != nil { // it must not come to the guards' help
		t.Fatal(err)
	}
	signalAll(guards, syscall.SIGKILL)
	awaitGone(t, charges)
	killMeasurement(t, measurement)
	for _, p := range processes { // the charges' own are beyond everybody's reach then
		_ = p.Kill()
	}
	if err := os.RemoveAll(private); err != nil {
		t.Error(err)
	}
}

func TestKilledGuardLeavesNothing(t *testing.T) {
	folder, pids := setMode(t, modeServe)
	stack, err := Start(t.Context(), testSpec(folder, record.Native), nil)
	if err != nil {
		t.Fatal(err)
	}
	processes := tree(t, pids, treeSize/2)
	if err := stack.children[0].guard.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if reason := <-stack.Died(); !strings.Contains(reason, "guard ended") {
		t.Errorf("the death is told as %q", reason)
	}
	if err := stack.Stop(); err != nil {
		t.Error(err)
	}
	for _, p := range processes {
		if alive(p.Pid) {
			t.Errorf("process %d outlives its guard and Stop", p.Pid)
		}
	}
}

func TestAStubbornEngineIsKilledWithinABoundedStop(t *testing.T) {
	folder, pids := setMode(t, modeStubborn)
	stack, err := Start(t.Context(), testSpec(folder, record.Native), nil)
	if err != nil {
		t.Fatal(err)
	}
	processes := tree(t, pids, treeSize/2)
	if err := stack.StopWithin(time.Millisecond); err != nil {
		t.Error(err)
	}
	if exit := stack.children[0].howEnded(); !strings.Contains(exit, "signal 9") {
		t.Errorf("the engine ended with %s", exit)
	}
	for _, p := range processes {
		if alive(p.Pid) {
			t.Errorf("process %d outlives StopWithin", p.Pid)
		}
	}
}

func TestDeathIsTold(t *testing.T) {
	folder, pids := setMode(t, modeLate)
	stack, err := Start(t.Context(), testSpec(folder, record.Native), nil)
	if err != nil {
		t.Fatal(err)
	}
	processes := tree(t, pids, treeSize/2)
	if _, ok := fetch(t.Context(), http.DefaultClient, stack.Engine()+"/die"); ok {
		t.Error("the engine answered although it ended")
	}
	want := "the engine ended on its own with exit status 7: ERROR the device fell off the bus"
	if reason := <-stack.Died(); reason != want {
		t.Errorf("the death is told as %q; want %q", reason, want)
	}
	awaitGone(t, processes) // before Stop: what an engine left behind does not wait for it
	if err := stack.Stop(); err != nil {
		t.Error(err)
	}
}

func TestEngineThatDiesAtItsStart(t *testing.T) {
	folder, pids := setMode(t, modeDie)
	_, err := Start(t.Context(), testSpec(folder, record.OrbitKV), nil)
	var failure *StartError
	if !errors.As(err, &failure) {
		t.Fatalf("the start ended with %v", err)
	}
	want := "it ended with exit status 3 while starting: ModuleNotFoundError: No module named 'flexkv'"
	if failure.Part != record.PartEngine || failure.Reason != want || failure.Log != filepath.Join(folder, "engine.log") {
		t.Errorf("the start failed with %+v; want the reason %q", failure, want)
	}
	for _, p := range tree(t, pids, 4) { // the Manager's three and the engine
		if alive(p.Pid) {
			t.Errorf("process %d outlives the failed start", p.Pid)
		}
	}
}

func TestEngineThatNeverGetsReady(t *testing.T) {
	folder, pids := setMode(t, modeSilent)
	if err := os.WriteFile(filepath.Join(folder, "engine.log"), []byte(vllmDeath), 0o600); err != nil { // of an earlier start
		t.Fatal(err)
	}
	running := func(l record.Launch) {
		if l.Exit == "" {
			tree(t, pids, 1) // the limit begins after this, so that no machine is too slow for it
		}
	}
	_, err := start(t.Context(), testSpec(folder, record.Native), running, 50*time.Millisecond, ordinaryLog)
	var failure *StartError
	if !errors.As(err, &failure) || !strings.Contains(failure.Reason, "/health as one that is ready within 50ms") || !strings.Contains(failure.Reason, "INFO loading weights") {
		t.Fatalf("the start ended with %v", err)
	}
	awaitGone(t, tree(t, pids, 1))
}

func TestStartEndsWithItsContext(t *testing.T) {
	folder, pids := setMode(t, modeSilent)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("an interrupt")
	_, err := Start(ctx, testSpec(folder, record.Native), func(l record.Launch) {
		if l.Exit == "" {
			cancel(interrupted)
		}
	})
	var failure *StartError
	if !errors.Is(err, interrupted) || errors.As(err, &failure) {
		t.Errorf("the start ended with %v; want the interrupt alone", err)
	}
	if text, err := os.ReadFile(pids); err == nil && len(text) > 0 {
		awaitGone(t, tree(t, pids, 1))
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	folder, _ := setMode(t, modeServe)
	s := testSpec(folder, record.Native)
	s.Options.EnginePython = "/nonexistent/python"
	var failure *StartError
	if _, err := Start(t.Context(), s, nil); !errors.As(err, &failure) || !strings.Contains(failure.Reason, "/nonexistent/python cannot be started") {
		t.Errorf("the start ended with %v", err)
	}
	s = testSpec(folder, record.Native)
	s.Manager = "/bin/true"
	if _, err := Start(t.Context(), s, nil); !errors.As(err, &failure) || !strings.Contains(failure.Reason, "is this the orbitkv program?") {
		t.Errorf("with another program as the guard the start ended with %v", err)
	}
}

func TestATemporaryFolderWhosePathIsTooLongForSocketsIsNamed(t *testing.T) {
	folder := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", folder)
	if _, err := Start(t.Context(), testSpec(t.TempDir(), record.OrbitKV), nil); err == nil || !strings.Contains(err.Error(), "name a shorter folder by TMPDIR") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left in it: %v, %v", left, err)
	}
}
