package arena

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mapped returns the kernel's flags of each mapping of an arena in this process.
func mapped(t *testing.T) (flags []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	header := regexp.MustCompile(`(?m)^[0-9a-f]+-[0-9a-f]+ .*$`)
	starts := header.FindAllIndex(text, -1)
	for i, start := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		if block := string(text[start[0]:end]); strings.Contains(block, NamePrefix) {
			_, line, _ := strings.Cut(block, "VmFlags:")
			line, _, _ = strings.Cut(line, "\n")
			flags = append(flags, line)
		}
	}
	return flags
}

func TestTheManagersViewIsTheFilesMemory(t *testing.T) {
	p := newPool(t, 8*mib)
	views, err := p.Map()
	if err != nil {
		t.Fatal(err)
	}
	if n := fileBytes(t, p.Arenas()[0]); n != 0 {
		t.Errorf("mapping populated %d bytes", n)
	}
	if err := p.Populate(context.Background(), slog.New(slog.DiscardHandler), nil, func(*Arena) {}); err != nil {
		t.Fatal(err)
	}
	part := views.Slice(0, 3*mib, 4096)
	if len(part) != 4096 || cap(part) != 4096 {
		t.Errorf("a part of %d bytes with room for %d", len(part), cap(part))
	}
	copy(part, "written through the view")
	got := make([]byte, 24)
	if _, err := unix.Pread(p.Arenas()[0].Descriptor(), got, 3*mib); err != nil || string(got) != "written through the view" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if _, err := unix.Pwrite(p.Arenas()[0].Descriptor(), []byte("back"), 3*mib); err != nil || string(part[:4]) != "back" {
		t.Errorf("the view holds %q, %v", part[:4], err)
	}
	if n := len(views.Arena(0)); n != 8*mib {
		t.Errorf("the arena has %d bytes", n)
	}
	if n := len(mapped(t)); n == 0 {
		t.Error("nothing is mapped")
	}
	for _, flags := range mapped(t) {
		if !strings.Contains(flags, " dc ") || !strings.Contains(flags, " dd ") {
			t.Errorf("a mapping with the flags %s: want dc, not inherited, and dd, not in core files", flags)
		}
	}
	if err := views.Close(); err != nil {
		t.Error(err)
	}
	if left := mapped(t); len(left) != 0 {
		t.Errorf("still mapped after Close: %v", left)
	}
}

func TestAPartBeyondItsArenaPanics(t *testing.T) {
	views, err := newPool(t, 1*mib).Map()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("memory behind the arena was given out")
		}
		if err := views.Close(); err != nil {
			t.Error(err)
		}
	}()
	views.Slice(0, mib-4096, 8192)
}
