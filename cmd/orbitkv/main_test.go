package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"orbitkv/internal/admin"
	"orbitkv/internal/cache"
)

const (
	// asBinary makes this test binary the program itself.
	asBinary = "TEST_AS_ORBITKV"
	// patience ends a test that would hang; no test passes or fails by how long something took.
	patience = 60 * time.Second
	poolSize = "16mib"
)

func TestMain(m *testing.M) {
	if os.Getenv(asBinary) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// orbitkv makes a command of the program with a clean environment.
func orbitkv(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{asBinary + "=1", "PATH=" + os.Getenv("PATH")}
	return cmd
}

// run runs a verb to its end.
func run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := orbitkv(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// manager is a running `orbitkv serve`.
type manager struct {
	*testing.T
	cmd    *exec.Cmd
	socket string
	http   string
	done   chan struct{}
	mu     sync.Mutex
	log    bytes.Buffer
}

// Write collects the log.
func (m *manager) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.Write(p)
}

func (m *manager) logged() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.String()
}

// serve starts a Manager and returns when memory can be lent.
func serve(t *testing.T, socket string, args ...string) *manager {
	t.Helper()
	m := &manager{T: t, socket: socket, done: make(chan struct{})}
	m.cmd = orbitkv(append([]string{"serve", "--socket", socket, "--pool-size", poolSize, "--http-addr", "127.0.0.1:0"}, args...)...)
	m.cmd.Stderr = m
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		m.cmd.Wait()
		close(m.done)
	}()
	t.Cleanup(func() {
		m.cmd.Process.Kill()
		<-m.done
		if t.Failed() {
			t.Logf("log of the Manager:\n%s", m.logged())
		}
	})
	address := regexp.MustCompile(`msg="Cache Manager started".* http=(\S+)`)
	m.until("its address", func() bool {
		if found := address.FindStringSubmatch(m.logged()); found != nil {
			m.http = found[1]
		}
		return m.http != ""
	})
	m.until("readiness", func() bool {
		answer, err := http.Get("http://" + m.http + "/readyz")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return m
}

func (m *manager) until(what string, done func() bool) {
	m.Helper()
	for end := time.Now().Add(patience); !done(); {
		select {
		case <-m.done:
			m.Fatalf("the Manager ended before %s", what)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(end) {
			m.Fatalf("%s did not come about", what)
		}
	}
}

// end sends a signal and returns the exit code.
func (m *manager) end(signal os.Signal) int {
	m.Helper()
	if err := m.cmd.Process.Signal(signal); err != nil {
		m.Fatal(err)
	}
	<-m.done
	return m.cmd.ProcessState.ExitCode()
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSignalsEndItCleanly(t *testing.T) {
	ends := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) { // a Manager inherits that
		ends = append(ends, syscall.SIGHUP)
	}
	for _, signal := range ends {
		dir := t.TempDir()
		m := serve(t, filepath.Join(dir, "s"))
		if got := names(t, dir); len(got) != 2 {
			t.Errorf("%v beside the socket, want it and the token", got)
		}
		if code := m.end(signal); code != 0 {
			t.Errorf("%v: exit code %d, want 0", signal, code)
		}
		if got := names(t, dir); len(got) != 0 {
			t.Errorf("%v left %v", signal, got)
		}
	}
}

func TestTheEndOfTheTerminalIsIgnoredWhenWhoeverStartedItSaidSo(t *testing.T) {
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Ignore(syscall.SIGHUP)
		defer signal.Reset(syscall.SIGHUP)
	}
	m := serve(t, filepath.Join(t.TempDir(), "s"))
	if err := m.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	ignored := regexp.MustCompile(`SigIgn:\s*[0-9a-f]*[13579bdf]\n`) // the lowest bit is SIGHUP
	if !ignored.Match(status) {
		t.Errorf("the Manager does not ignore SIGHUP:\n%s", status)
	}
	if code := m.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestAKilledManagerLeavesNothingThatStopsTheNext(t *testing.T) {
	shm := names(t, "/dev/shm")
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	for range 5 {
		m := serve(t, socket)
		out, _, code := run(t, "serve", "--socket", socket, "--pool-size", poolSize, "--http-addr", "off")
		_, refusal, _ := run(t, "serve", "--socket", socket, "--pool-size", poolSize, "--http-addr", "off")
		if code != 1 || !strings.Contains(refusal, "listens on "+socket) {
			t.Errorf("a second Manager: code %d, %s%s", code, out, refusal)
		}
		m.end(syscall.SIGKILL)
	}
	m := serve(t, socket)
	if code := m.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
	if got := names(t, "/dev/shm"); len(got) > len(shm) {
		t.Errorf("/dev/shm has %v, had %v", got, shm)
	}
}

// hold starts a Manager whose log goes into a pipe that the caller reads or not, and returns the address that its first line names.
func hold(t *testing.T) (cmd *exec.Cmd, log *os.File, address, socket string) {
	t.Helper()
	log, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "s")
	cmd = orbitkv("serve", "--socket", socket, "--pool-size", poolSize, "--http-addr", "127.0.0.1:0", "--log-level", "debug")
	cmd.Stderr = write
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); log.Close() })
	line, err := bufio.NewReader(log).ReadString('\n')
	found := regexp.MustCompile(`msg="Cache Manager started".* http=(\S+)`).FindStringSubmatch(line)
	if err != nil || found == nil {
		t.Fatalf("the first line is %q, %v", line, err)
	}
	return cmd, log, found[1], socket
}

// provoke makes the Manager log n lines.
func provoke(t *testing.T, socket string, n int) {
	t.Helper()
	for range n {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(patience))
		conn.Write(make([]byte, 16))
		if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the Manager does not answer: %v", err)
		}
		conn.Close()
	}
}

func TestALogThatNobodyReadsHoldsNothingUp(t *testing.T) {
	cmd, _, address, socket := hold(t)
	provoke(t, socket, 1500) // more than the pipe and the queue hold
	if out, stderr, code := run(t, "verify", "--http-addr", address); code != 0 {
		t.Errorf("verify: code %d, %s%s", code, out, stderr)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

func TestTheEndOfTheLogsReaderIsNotTheManagers(t *testing.T) {
	cmd, log, address, socket := hold(t)
	log.Close()
	provoke(t, socket, 3)
	if out, stderr, code := run(t, "verify", "--http-addr", address); code != 0 {
		t.Errorf("verify: code %d, %s%s", code, out, stderr)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

func TestStatusAndVerify(t *testing.T) {
	m := serve(t, filepath.Join(t.TempDir(), "s"))
	out, stderr, code := run(t, "status", "--http-addr", m.http)
	for _, part := range []string{"health", "ok", m.socket, "16 MiB, all populated", "INSTANCE", "SESSION"} {
		if code != 0 || !strings.Contains(out, part) {
			t.Errorf("status: code %d, no %q in\n%s%s", code, part, out, stderr)
		}
	}
	out, stderr, code = run(t, "status", "--json", "--http-addr", m.http)
	var status admin.Status
	if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 {
		t.Fatalf("status --json: code %d, %v, %s", code, err, stderr)
	}
	if status.Health != "ok" || status.PID != m.cmd.Process.Pid || status.Pool.PopulatedBytes != 16<<20 || status.Socket != m.socket || status.HTTPAddress != m.http {
		t.Errorf("status %+v", status)
	}
	if out, stderr, code = run(t, "verify", "--http-addr", m.http); code != 0 || !strings.Contains(out, "every invariant holds") {
		t.Errorf("verify: code %d, %s%s", code, out, stderr)
	}
}

func TestVerbsWithoutAManagerSayWhatToDo(t *testing.T) {
	for _, verb := range []string{"status", "verify"} {
		if _, stderr, code := run(t, verb, "--http-addr", "127.0.0.1:1"); code != 1 || !strings.Contains(stderr, "orbitkv serve") {
			t.Errorf("%s: code %d, %s", verb, code, stderr)
		}
		if _, stderr, code := run(t, verb, "--http-addr", "off"); code != 1 || !strings.Contains(stderr, "HTTP is off") {
			t.Errorf("%s: code %d, %s", verb, code, stderr)
		}
	}
}

func TestAnAnswerOfAnotherProgramIsNoGoodNews(t *testing.T) {
	for _, body := range []string{`{}`, `null`, `{"ok": true}`, `{"ok": true, "violations": [{"invariant": 1}]}`, `<html>`} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }))
		for _, verb := range []string{"status", "verify"} {
			if out, stderr, code := run(t, verb, "--http-addr", other.Listener.Addr().String()); code != 1 || out != "" || !strings.Contains(stderr, "another program") {
				t.Errorf("%s of %s: code %d, %s%s", verb, body, code, out, stderr)
			}
		}
		other.Close()
	}
}

func TestAnAnswerThatBreaksOffIsNamed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "{")
	}))
	defer other.Close()
	if _, stderr, code := run(t, "status", "--http-addr", other.Listener.Addr().String()); code != 1 || !strings.Contains(stderr, "/status at "+other.Listener.Addr().String()) {
		t.Errorf("code %d, %s", code, stderr)
	}
}

func TestWhatAClientCallsItselfCannotBreakTheTable(t *testing.T) {
	evil := "a\n\x1b[2Jb\u009b31m\u202ec"
	var out bytes.Buffer
	status := admin.Status{Cache: cache.Status{
		Instances: []cache.InstanceStatus{{Instance: evil, Ranks: []cache.RankStatus{{PID: 1, Backend: evil, Command: evil}}}},
		Sessions:  []cache.SessionStatus{{Name: evil, Command: evil}},
	}}
	if err := printStatus(&out, status); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\u009b\u202e") || strings.Contains(text, "a\n") {
		t.Errorf("the table holds control characters: %q", text)
	}
}

func TestWrongFlagsAreRefusedByName(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for part, args := range map[string][]string{
		"--pool-size":          {"--pool-size", "12x"},
		"orbitkv serve --help": {"--pool-sise", "1gib"},
		"raise the limit":      {"--pool-size", "900tib"},
		"--http-allow-remote":  {"--pool-size", poolSize, "--http-addr", "0.0.0.0:0"},
		"left alone":           {"--pool-size", poolSize, "--socket", file},
		"admin-token-file":     {"--pool-size", poolSize, "--socket", filepath.Join(dir, "s"), "--http-addr", "127.0.0.1:0", "--admin-token-file", "/proc/no/such"},
	} {
		if _, stderr, code := run(t, append([]string{"serve"}, args...)...); code != 1 || !strings.Contains(stderr, part) {
			t.Errorf("%v: code %d, no %q in %s", args, code, part, stderr)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("failed starts left %v", got)
	}
}

func TestHugePagesAreNeverASilentFallBack(t *testing.T) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^HugePages_Free:\s+0$`).Match(meminfo) {
		t.Skip("needs a machine without free huge pages: this one would start")
	}
	_, stderr, code := run(t, "serve", "--socket", filepath.Join(t.TempDir(), "s"), "--pool-size", poolSize, "--use-hugepages", "--http-addr", "off")
	if code != 1 || !strings.Contains(stderr, "sysctl -w vm.nr_hugepages=") {
		t.Errorf("code %d, %s", code, stderr)
	}
}

func TestDoctorAndVersion(t *testing.T) {
	out, stderr, _ := run(t, "doctor", "--socket", filepath.Join(t.TempDir(), "s"), "--pool-size", poolSize)
	if !strings.Contains(out, "good") || stderr != "" {
		t.Errorf("doctor: %s%s", out, stderr)
	}
	out, _, _ = run(t, "doctor", "--json", "--pool-size", poolSize)
	var lines []struct{ Verdict, Name string }
	if err := json.Unmarshal([]byte(out), &lines); err != nil || len(lines) == 0 || lines[0].Verdict == "" {
		t.Errorf("doctor --json: %v, %s", err, out)
	}
	if out, _, code := run(t, "version"); code != 0 || !strings.Contains(out, "abi 5") {
		t.Errorf("version: code %d, %s", code, out)
	}
}
