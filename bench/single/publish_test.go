package single

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAReportThatDoesNotFitLeavesTheOneThatWasThere(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "report.html")
	if err := writeFile(path, func(w io.Writer) error { _, err := io.WriteString(w, "whole"); return err }); err != nil {
		t.Fatal(err)
	}
	err := writeFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "to")
		return errors.Join(err, &os.PathError{Op: "write", Path: path, Err: unix.ENOSPC})
	})
	says(t, err, path, "no space left on device", "make room, then `orbitkv bench report "+folder+"`")
	if kept, err := os.ReadFile(path); err != nil || string(kept) != "whole" {
		t.Errorf("the report is %q: %v", kept, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	says(t, writeFile(filepath.Join(folder, "none", "report.html"), func(io.Writer) error { return nil }), "was not written", "no such file")
}
