package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// file is one text file of the checkout, by its slash-separated path from the root.
type file struct {
	path string
	text string
}

// lines returns how many lines the file has.
func (f file) lines() int {
	return strings.Count(f.text, "\n")
}

// generated says whether a program wrote the file: by its name, or by the customary header.
func (f file) generated() bool {
	head, _, _ := strings.Cut(strings.ToLower(f.text), "\n\n")
	return strings.HasSuffix(f.path, "_gen.go") || strings.HasSuffix(f.path, "_gen_test.go") ||
		strings.Contains(head, "generated") && strings.Contains(head, "do not edit")
}

// goFile is a parsed Go file of the module.
type goFile struct {
	file
	set  *token.FileSet
	tree *ast.File
}

// dir returns the package's folder from the root.
func (f goFile) dir() string {
	return path.Dir(f.path)
}

// test says whether the file is only built for tests.
func (f goFile) test() bool {
	return strings.HasSuffix(f.path, "_test.go")
}

// line returns the line of a position.
func (f goFile) line(at token.Pos) int {
	return f.set.Position(at).Line
}

// root is the checkout's folder; the tests of a package run in its own.
var root = sync.OnceValues(func() (string, error) {
	return filepath.Abs(filepath.Join("..", ".."))
})

// tree reads every text file that git does not ignore, once. The command-line setting lets root read a clone of another user.
var tree = sync.OnceValues(func() ([]file, error) {
	top, err := root()
	if err != nil {
		return nil, err
	}
	list := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard", "--deduplicate")
	list.Dir = top
	names, err := list.Output()
	if err != nil {
		return nil, err
	}
	var files []file
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(top, name))
		if os.IsNotExist(err) {
			continue // Removed from the folder, not yet from git's list.
		}
		if err != nil {
			return nil, err
		}
		if !strings.ContainsRune(string(text[:min(len(text), 8000)]), 0) {
			files = append(files, file{name, string(text)})
		}
	}
	return files, nil
})

// treeFiles returns the text files whose path has one of the suffixes, or all of them without a suffix.
func treeFiles(t *testing.T, suffixes ...string) []file {
	t.Helper()
	all, err := tree()
	if err != nil {
		t.Fatalf("listing the checkout with git: %v", err)
	}
	var files []file
	for _, f := range all {
		if len(suffixes) == 0 || hasSuffix(f.path, suffixes) {
			files = append(files, f)
		}
	}
	return files
}

func hasSuffix(name string, suffixes []string) bool {
	for _, suffix := range suffixes {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// goFiles returns the parsed Go files of the product's module.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	for _, f := range treeFiles(t, ".go") {
		if strings.HasPrefix(f.path, "tools/") || strings.Contains(f.path, "testdata/") {
			continue
		}
		files = append(files, parse(t, f.path, f.text))
	}
	return files
}

// parse returns the parsed file, or ends the test with the place of the fault.
func parse(t *testing.T, name, text string) goFile {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parsing: %v", err)
	}
	return goFile{file{name, text}, set, parsed}
}

// under returns the files whose path begins with one of the folders.
func under(files []file, folders ...string) []file {
	var kept []file
	for _, f := range files {
		for _, folder := range folders {
			if strings.HasPrefix(f.path, folder) {
				kept = append(kept, f)
				break
			}
		}
	}
	return kept
}

// report fails the test with each breach on a line of its own.
func report(t *testing.T, breaches []string) {
	t.Helper()
	for _, breach := range breaches {
		t.Error(breach)
	}
}

// document returns a Markdown page, or skips the test when nobody has written it yet.
func document(t *testing.T, name string) file {
	t.Helper()
	for _, f := range treeFiles(t, ".md") {
		if f.path == name {
			return f
		}
	}
	t.Skipf("%s does not exist yet; this rule binds as soon as it does", name)
	return file{}
}
