package daemon

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// fake writes one process of a made-up /proc.
func fake(t *testing.T, proc, pid, comm, maps string, open ...string) {
	t.Helper()
	dir := filepath.Join(proc, pid, "fd")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"comm": comm + "\n", "maps": maps} {
		if err := os.WriteFile(filepath.Join(proc, pid, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, target := range open {
		if err := os.Symlink(target, filepath.Join(dir, string(rune('0'+i)))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOnlyThePoolOfAManagerThatIsGoneIsLeftOver(t *testing.T) {
	proc := t.TempDir()
	line := func(incarnation string) string {
		return "7f0000000000-7f0000100000 rw-s 00000000 00:01 2 /memfd:orbitkv-arena-" + incarnation + "-0 (deleted)\n"
	}
	fake(t, proc, "10", "orbitkv", "", "/memfd:orbitkv-arena-living-0 (deleted)", "/dev/null")
	fake(t, proc, "11", "vllm", line("living")+line("own"))
	fake(t, proc, "12", "vllm", "garbage\n7f00-zz rw-s 0 0:0 1 /memfd:orbitkv-arena-x-0\n"+line("gone")+line("gone"))
	fake(t, proc, "13", "cat", "7f0000000000-7f0000100000 rw-s 00000000 00:01 2 /memfd:other (deleted)\n")
	want := []held{{12, "vllm", 2 << 20}}
	if got := findLeftovers(proc, "own"); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
