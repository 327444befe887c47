package launch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

var update = flag.Bool("update", false, "write the golden files anew")

// What the test's own program is when it is started again: the guard, the measurement, or the fake of a process.
const (
	roleMeasurement = "measurement"
	roleProber      = "prober" // a measurement that is still asking the engine's Python
	roleDescendant  = "descendant"
	modeVariable    = "LAUNCH_TEST_MODE" // what the fake engine does
	pidsVariable    = "LAUNCH_TEST_PIDS" // the file to which every process of the tree appends its id
)

// The modes of the fake engine.
const (
	modeServe    = "serve"    // it becomes ready, with descendants that do not end by themselves
	modeStubborn = "stubborn" // the same, and it ignores SIGTERM
	modeDie      = "die"      // it writes a traceback and ends
	modeSilent   = "silent"   // it never listens
	modeShort    = "short"    // the same, beside a Manager that lacks memory
	modeLate     = "late"     // it becomes ready, and ends on its own when it is asked for /die
	modeBuffered = "buffered" // it serves, beside a Manager whose SSD tier goes through the page cache
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case GuardVerb:
			exit(guardCharge(os.Args[3:], patience{stop: 500 * time.Millisecond, stray: 100 * time.Millisecond, tracker: time.Second}))
		case "serve":
			exit(fakeServer(modeServe))
		case "-m":
			exit(fakeServer(os.Getenv(modeVariable)))
		case roleDescendant:
			exit(fakeDescendant())
		case roleMeasurement:
			exit(fakeMeasurement(os.Args[2]))
		case roleProber:
			_, err := RunProbe(context.Background(), os.Args[0], os.Args[2], OnCPU)
			exit(err)
		}
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// fakeServer is the engine or the Manager: its port is the last of what follows --port, or of --http-addr's host:port.
func fakeServer(mode string) error {
	if mode == modeSilent {
		fmt.Println("INFO loading weights") // before its id, so that whoever has the id has the line
	}
	if err := notePID(); err != nil {
		return err
	}
	switch mode {
	case modeDie:
		fmt.Print(vllmDeath)
		os.Exit(3)
	case modeSilent:
		forever()
	case modeStubborn:
		signal.Ignore(syscall.SIGTERM)
	}
	if err := startDescendants(); err != nil {
		return err
	}
	port := ""
	for i, word := range os.Args {
		if word == "--port" || word == "--http-addr" {
			port = os.Args[i+1][strings.LastIndex(os.Args[i+1], ":")+1:]
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/status", fakeStatus)
	if err := fakeTier(mux); err != nil {
		return err
	}
	mux.HandleFunc("/die", func(http.ResponseWriter, *http.Request) {
		fmt.Println("ERROR the device fell off the bus")
		os.Exit(7)
	})
	mux.HandleFunc("/loud", func(http.ResponseWriter, *http.Request) {
		for i := range loudLines {
			fmt.Println(loudLine(i))
		}
	})
	return http.ListenAndServe("127.0.0.1:"+port, mux)
}

// fakeTier gives a Manager with an SSD tier the file of its payload, open around the page cache, and the verb that empties its memory.
func fakeTier(mux *http.ServeMux) error {
	folder := flagOf("--ssd-cache-path")
	if folder == "" {
		return nil
	}
	direct := unix.O_DIRECT
	if os.Getenv(modeVariable) == modeBuffered {
		direct = 0
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if _, err := unix.Open(filepath.Join(folder, payloadFile), unix.O_RDWR|unix.O_CREAT|direct, 0o600); err != nil { // open until the process ends
		return err
	}
	mux.HandleFunc("POST /cache/memory/cleanup", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "this needs the token", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"evicted_blocks": 7, "still_referenced_blocks": 2}`)
	})
	return os.WriteFile(flagOf("--socket")+".token", []byte("secret\n"), 0o600)
}

// flagOf returns the word after a flag of this process.
func flagOf(name string) string {
	if i := slices.Index(os.Args, name); i >= 0 && i+1 < len(os.Args) {
		return os.Args[i+1]
	}
	return ""
}

// fakeStatus is a Manager that populates half of its pool between two questions, and whose pool stays so in the mode modeShort.
func fakeStatus(w http.ResponseWriter, _ *http.Request) {
	populated, trouble := min(asked.Add(1)*4, 8), ""
	if os.Getenv(modeVariable) == modeShort {
		populated, trouble = 4, "no memory"
	}
	fmt.Fprintf(w, `{"pool": {"configured_bytes": 8, "populated_bytes": %d, "error": %q}}`, populated, trouble)
}

var asked atomic.Int64 // how often

// loudLines is how many lines an engine prints that is asked for /loud.
const loudLines = 10_000

func loudLine(i int) string {
	return fmt.Sprintf("INFO line %06d of an engine that complains without an end", i)
}

// startDescendants starts a child in the same session, and one in a session of its own that starts another one and ends, as a daemon does. It
// returns when both that stay have noted their ids, so that what is ready is complete.
func startDescendants() error {
	noted, noting, err := os.Pipe()
	if err != nil {
		return err
	}
	defer noted.Close()
	for _, kind := range []string{"plain", "daemon"} {
		c := exec.Command(os.Args[0], roleDescendant, kind)
		c.SysProcAttr, c.Stdout = &syscall.SysProcAttr{Setsid: kind == "daemon"}, noting
		if err := c.Start(); err != nil {
			return err
		}
		if kind == "daemon" {
			if err := c.Wait(); err != nil {
				return err
			}
		}
	}
	if err := noting.Close(); err != nil {
		return err
	}
	_, err = io.ReadFull(noted, make([]byte, 2)) // a byte of each
	return err
}

func fakeDescendant() error {
	if os.Args[2] == "daemon" {
		c := exec.Command(os.Args[0], roleDescendant, "orphan")
		c.SysProcAttr, c.Stdout = &syscall.SysProcAttr{Setsid: true}, os.Stdout
		return c.Start()
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	if err := notePID(); err != nil {
		return err
	}
	if _, err := os.Stdout.Write([]byte{'n'}); err != nil {
		return err
	}
	forever()
	return nil
}

// forever waits to be ended. A program without cgo in which nothing but select waits is ended by its own runtime as deadlocked.
func forever() {
	for range time.Tick(time.Hour) { // what ends it comes first
	}
}

func notePID() error {
	file, err := os.OpenFile(os.Getenv(pidsVariable), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%d\n", os.Getpid())
	return errors.Join(err, file.Close())
}

// fakeMeasurement starts a stack, says where its private folder is, and waits to be killed.
func fakeMeasurement(folder string) error {
	stack, err := Start(context.Background(), testSpec(folder, record.OrbitKV), nil)
	if err != nil {
		return err
	}
	fmt.Println(stack.at.folder)
	forever()
	return nil
}

// testSpec is a stack whose every program is this test's own.
func testSpec(folder, backend string) Spec {
	o := record.Options{
		Engine: record.VLLM, Device: OnCPU, Model: "/models/tiny", PageSize: 64, GPUTokens: 1024, PrefillTokens: 512, HostGiB: 1,
		CPUConnector: OffloadingConnector, EnginePython: os.Args[0],
	}
	return Spec{
		Options: o, Backend: backend, Pass: 1, Attempt: 2, Manager: os.Args[0], MaxModelLen: 832, MaxSeqs: 4,
		LogPath: func(part string) string { return filepath.Join(folder, part+".log") }, Model: record.Model{BytesPerToken: 1 << 20},
	}
}

// tree reads the ids of the processes that a stack consists of, and opens each: an id alone may be another process's by the time it is looked at.
func tree(t *testing.T, file string, want int) []*os.Process {
	t.Helper()
	var found []*os.Process
	for end := time.Now().Add(treeLimit); len(found) < want; {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		words := strings.Fields(string(text))
		if len(words) < want {
			waitTick(t, end)
			continue
		}
		for _, word := range words {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			process, err := os.FindProcess(pid)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, process)
		}
	}
	return found
}

// treeLimit bounds the waits for processes: a machine may be busy, but not for so long.
const treeLimit = time.Minute

// waitTick lets other processes run before one looks again; past the end of a wait the test fails.
func waitTick(t *testing.T, end time.Time) {
	t.Helper()
	if time.Now().After(end) {
		t.Fatalf("what was waited for did not come within %v", treeLimit)
	}
	<-time.After(5 * time.Millisecond)
}

// awaitGone returns once no process of a tree is alive; a zombie of another parent counts as gone.
func awaitGone(t *testing.T, processes []*os.Process) {
	t.Helper()
	end := time.Now().Add(treeLimit)
	for _, p := range processes {
		for alive(p.Pid) {
			waitTick(t, end)
		}
	}
}

func alive(pid int) bool {
	return slices.ContainsFunc(livingProcesses(), func(p procFacts) bool { return p.pid == pid })
}
