package blockio

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const childVariable = "ORBITKV_BLOCKIO_CHILD"

// inChild runs the body of a test in a process of its own, whose parent's thread was prepared for it: what prepare takes from the thread, the child
// and all its threads lack. The test's process keeps it.
func inChild(t *testing.T, prepare func() error, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(childVariable) == t.Name() {
		body(t)
		return
	}
	parts := strings.Split(t.Name(), "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	child := exec.Command(os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), childVariable+"="+t.Name())
	var output []byte
	var prepared, ended error
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if prepared = prepare(); prepared == nil {
			output, ended = child.CombinedOutput()
		}
	}()
	<-finished
	switch text := string(output); {
	case prepared != nil:
		t.Fatalf("the child's limits cannot be set: %v", prepared)
	case ended != nil:
		t.Errorf("the child ended with %v:\n%s", ended, text)
	case strings.Contains(text, "--- SKIP: "+t.Name()):
		t.Skip(text)
	case !strings.Contains(text, "--- PASS: "+t.Name()):
		t.Errorf("the child did not run the test:\n%s", text)
	}
}

func nothing() error { return nil }

// loseLockCapability takes from the thread what exempts root from the limit of locked memory.
func loseLockCapability() error {
	if !mayLock() {
		return nil
	}
	return unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0)
}

// limit lowers a limit of this process, which must be a child.
func limit(t *testing.T, resource int, value uint64) {
	t.Helper()
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
		t.Fatal(err)
	}
}

// descriptors is how many descriptors this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
