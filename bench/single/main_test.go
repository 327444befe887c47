package single

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

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

// serveManager is a Cache Manager that counts what the engine on its socket restored.
func serveManager(arguments []string) error {
	loaded := loadedPath(flagOf(arguments, "--socket"))
	return http.ListenAndServe(flagOf(arguments, "--http-addr"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/status" {
			fmt.Fprint(w, `{"pool": {"configured_bytes": 1, "populated_bytes": 1}}`)
			return
		}
		text, _ := os.ReadFile(loaded) // absent before the first restore
		bytes, _ := strconv.ParseFloat(string(text), 64)
		managerMetrics(w, bytes, 0)
	}))
}

func loadedPath(socket string) string { return socket + ".loaded" }

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
	var mu sync.Mutex
	restored := 0
	f.restored = func(tokens int) {
		mu.Lock()
		defer mu.Unlock()
		restored += tokens * tinyBytesPerToken
		if backend == record.Native || tokens == 0 {
			return
		}
		if err := os.WriteFile(loadedPath(socket), []byte(strconv.Itoa(restored)), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if os.Getenv("ORBITKV_TRACE_TRANSFERS") == "1" {
			fmt.Fprintf(os.Stderr, `cache_timeline {"stage":"gpu_ready","request_id":"r","engine":%q,"pid":%d,"monotonic_ns":9007199254740993}`+"\n", engine, os.Getpid())
		}
	}
	return http.ListenAndServe("127.0.0.1:"+flagOf(arguments, "--port"), f)
}
