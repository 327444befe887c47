package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestThePageIsUpToDate(t *testing.T) {
	got, err := os.ReadFile(filepath.Join("..", "..", "..", pageFile))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != page() {
		t.Errorf("%s is not what the table gives: run go generate ./internal/metrics", pageFile)
	}
}
