package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheGeneratedFilesAreUpToDate(t *testing.T) {
	for name, want := range outputs() {
		got, err := os.ReadFile(filepath.Join("..", "..", "..", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if string(got) != want {
			t.Errorf("%s is not what the table gives: run go generate ./internal/config", name)
		}
	}
}
