package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCleaned takes off what changes how other text reads and keeps the rest.
func TestCleaned(t *testing.T) {
	for in, want := range map[string]string{
		"plain\n\ttext é 汉":            "plain\n\ttext é 汉",
		"\x1b[1;31mred\x1b[0m":         "red",
		"cut \x1b[31":                  "cut ",
		"a\rb\x00c":                    "a\uFFFDb\uFFFDc",
		"\u202egnp.exe\u2066":          "\uFFFDgnp.exe\uFFFD",
		string([]byte{'x', 0xff, 'y'}): "x\uFFFDy",
	} {
		if got := cleaned(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// TestNumbers reads as people write numbers.
func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		milliseconds(3.456): "3.46", milliseconds(219.04): "219.0", milliseconds(-12.3): "\u221212.3", milliseconds(12345): "12,345",
		size(512): "512 B", size(147456): "144 KiB", size(3 << 30): "3.00 GiB", number(1234.4): "1,234", grouped(-1234567): "\u22121,234,567",
		counted(1, "row"): "1 row", counted(1200, "row"): "1,200 rows", words("after_pressure"): "after pressure", plus(3): "+3.00",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestCommandLine is what a shell reads back.
func TestCommandLine(t *testing.T) {
	if got, want := commandLine([]string{"a", "--b=c/d", "", "it's", "$(x)"}), `a --b=c/d '' 'it'\''s' '$(x)'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestEndOf returns the last lines of a log inside the directory and nothing from elsewhere.
func TestEndOf(t *testing.T) {
	outer := t.TempDir()
	dir := filepath.Join(outer, "run")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "logs"), 0o700))
	must(os.WriteFile(filepath.Join(outer, "secret"), []byte("secret"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "logs", "long"), []byte(strings.Repeat("a line of the log\n", 10_000)+"the end"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "logs", "empty"), nil, 0o600))
	must(os.Symlink(filepath.Join(outer, "secret"), filepath.Join(dir, "logs", "link")))
	tail, err := endOf(dir, "logs/long")
	if err != nil || len(tail) > logTail+8 || !strings.HasSuffix(tail, "the end") || !strings.HasPrefix(tail, "…\na line") {
		t.Errorf("%d bytes from %.20q, %v", len(tail), tail, err)
	}
	if tail, err := endOf(dir, "logs/empty"); err != nil || tail != "" {
		t.Errorf("an empty log gave %q, %v", tail, err)
	}
	for _, name := range []string{"../secret", filepath.Join(outer, "secret"), "logs/link", "logs", "logs/none"} {
		if tail, err := endOf(dir, name); err == nil {
			t.Errorf("%s gave %q", name, tail)
		}
	}
}
