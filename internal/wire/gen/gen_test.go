package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheGeneratedFilesAreUpToDate(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := outputs(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the table gives: run go generate ./internal/wire", name)
		}
	}
	present, err := os.ReadDir(filepath.Join(root, goldenDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range present {
		if _, ok := files[goldenDir+"/"+entry.Name()]; !ok {
			t.Errorf("%s/%s belongs to no message: remove it", goldenDir, entry.Name())
		}
	}
}

func TestPythonLinesAreShort(t *testing.T) {
	for i, line := range strings.Split(string(pythonCodec()), "\n") {
		if len(line) > pythonColumns {
			t.Errorf("line %d of %s has %d columns", i+1, pythonFile, len(line))
		}
	}
}
