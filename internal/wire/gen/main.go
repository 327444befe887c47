// Command gen writes everything that follows from the message table in internal/wire/schema: the Go codec, the Python codec,
// the tables of docs/format/wire.md and the golden frames. It owns none of the facts; it must not be imported, and it keeps no state
// between runs: outputs is a pure function of the table and of the hand-written text of the page.
//
// Run it with go generate ./internal/wire; a test compares its output with the files in the tree.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// Paths of the outputs, relative to the root of the module.
const (
	goDir      = "internal/wire"
	goldenDir  = "internal/wire/testdata/golden"
	pythonFile = "python/src/orbitkv/_wire.py"
	pageFile   = "docs/format/wire.md"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	files, err := outputs(root)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// outputs returns every generated file by its path under root.
func outputs(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	if err := goFiles(files); err != nil {
		return nil, err
	}
	files[pythonFile] = pythonCodec()
	page, err := os.ReadFile(filepath.Join(root, pageFile))
	if err != nil {
		return nil, err
	}
	if files[pageFile], err = fillPage(page); err != nil {
		return nil, err
	}
	return files, goldenFiles(files)
}

// moduleRoot finds the directory of go.mod from the working directory upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod above the working directory: run it inside the module")
		}
		dir = parent
	}
}
