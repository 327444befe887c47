package single

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
)

// What the environment of a process that a test starts says.
const (
	runVariable    = "TEST_SINGLE_RUN"    // the process measures this Ask
	scriptVariable = "TEST_SINGLE_SCRIPT" // the rules of the fake engines
)

// TestMain makes this test binary everything that a measurement starts: the orbitkv program with its guard and its Cache Manager, the engine's Python
// with its probe and its engine, and the measurement itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case launch.GuardVerb:
			exitOn(launch.Guard(os.Args[3:]))
		case "serve":
			exitOn(serveManager(os.Args[2:]))
		case "-c":
			fmt.Println(`{"python": "cpython 3.11.2", "packages": {"vllm": "0.29.0"}, "link_bytes_per_s": 1e10, "link_how": "told"}`)
			os.Exit(0)
		case "-m":
			exitOn(serveEngine(os.Args[2:]))
		}
	}
	if text := os.Getenv(runVariable); text != "" {
		exitOn(measureAsked(text))
	}
	flag.Parse()
	// The tests with processes wait for most of their time, so that all of them may run at once, however few processors there are.
	if err := flag.Set("test.parallel", "5"); err != nil {
		exitOn(err)
	}
	os.Exit(m.Run())
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// measureAsked is the measurement as the program runs it.
func measureAsked(text string) error {
	var ask Ask
	if err := json.Unmarshal([]byte(text), &ask); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Measure(ctx, ask, ThisHost(program, "test"), os.Args, os.Stdout, os.Stderr)
}

// flagOf returns the word after a flag of a command line.
func flagOf(arguments []string, name string) string {
	if i := slices.Index(arguments, name); i >= 0 && i+1 < len(arguments) {
		return arguments[i+1]
	}
	return ""
}

func numberOf(arguments []string, name string) int {
	n, _ := strconv.Atoi(flagOf(arguments, name))
	return n
}

// serveManager is a Cache Manager that counts what the engine on its socket tells of, and empties its memory by telling that engine.
func serveManager(arguments []string) error {
	socket := flagOf(arguments, "--socket")
	if err := errors.Join(openPayload(flagOf(arguments, "--ssd-cache-path")), os.WriteFile(socket+".token", []byte("secret"), 0o600)); err != nil {
		return err
	}
	if os.Getenv("ORBITKV_TRACE_TRANSFERS") == "1" {
		fmt.Fprintf(os.Stderr, `cache_timeline {"stage":"process","engine":"orbitkv-fake","pid":%d,"monotonic_ns":5}`+"\n", os.Getpid())
	}
	return http.ListenAndServe(flagOf(arguments, "--http-addr"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/status":
			fmt.Fprint(w, `{"pool": {"configured_bytes": 1, "populated_bytes": 1}}`)
		case "/cache/memory/cleanup":
			if err := os.WriteFile(emptiedPath(socket), nil, 0o600); err != nil || r.Header.Get("Authorization") != "Bearer secret" {
				http.Error(w, "refused", http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, `{"evicted_blocks": 1, "still_referenced_blocks": 0}`)
		default:
			var done served
			text, _ := os.ReadFile(servedPath(socket)) // absent before the first request
			_ = json.Unmarshal(text, &done)
			managerMetrics(w, done, 0)
		}
	}))
}

// openPayload makes the file of an SSD tier and keeps it open around the page cache.
func openPayload(folder string) error {
	if folder == "" {
		return nil
	}
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, os.ErrExist) { // a Manager makes the last folder of a path alone
		return err
	}
	_, err := unix.Open(filepath.Join(folder, "payload"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600)
	return err
}

func servedPath(socket string) string { return socket + ".served" }

func emptiedPath(socket string) string { return socket + ".emptied" }

// serveEngine is a fake engine with the command line of a real one.
func serveEngine(arguments []string) error {
	engine, page, tokens := record.SGLang, numberOf(arguments, "--page-size"), numberOf(arguments, "--max-total-tokens")
	if strings.HasPrefix(arguments[0], "vllm.") {
		engine, page = record.VLLM, numberOf(arguments, "--block-size")
		tokens = page * numberOf(arguments, "--num-gpu-blocks-override")
	}
	backend, socket := record.Native, os.Getenv("ORBITKV_SOCKET")
	if socket != "" {
		backend = record.OrbitKV
	}
	var rules []rule
	if text := os.Getenv(scriptVariable); text != "" {
		if err := json.Unmarshal([]byte(text), &rules); err != nil {
			return err
		}
	}
	f := newFakeEngine(engine, backend, page, tokens, rules)
	f.die = func() { os.Exit(3) }
	if backend == record.OrbitKV {
		tellManager(f, socket)
	}
	return http.ListenAndServe("127.0.0.1:"+flagOf(arguments, "--port"), f)
}

// tellManager has a fake engine write what its Manager did for it to a file beside the socket, and learn from another one that the Manager's memory was emptied.
func tellManager(f *fakeEngine, socket string) {
	var done served // only one request is counted at a time
	f.served = func(more served) {
		done.add(more)
		text, err := json.Marshal(done)
		if err == nil {
			err = os.WriteFile(servedPath(socket)+".new", text, 0o600)
		}
		if err = errors.Join(err, os.Rename(servedPath(socket)+".new", servedPath(socket))); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if more.Restored > 0 && os.Getenv("ORBITKV_TRACE_TRANSFERS") == "1" {
			fmt.Fprintf(os.Stderr, `cache_timeline {"stage":"gpu_ready","request_id":"r","engine":%q,"pid":%d,"monotonic_ns":9007199254740993}`+"\n", f.engine, os.Getpid())
		}
	}
	f.emptied = func() bool { return os.Remove(emptiedPath(socket)) == nil }
}
