package tidy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "orbitkv"

// TestPackageDocs wants exactly one page a package, in the customary form.
func TestPackageDocs(t *testing.T) {
	report(t, packageDocs(goFiles(t)))
}

func packageDocs(files []goFile) []string {
	pages, onlyTests := map[string][]goFile{}, map[string]bool{}
	for _, f := range files {
		if _, seen := onlyTests[f.dir()]; !seen {
			onlyTests[f.dir()] = true
			pages[f.dir()] = nil
		}
		if !f.test() {
			onlyTests[f.dir()] = false
		}
		if f.tree.Doc != nil && strings.TrimSpace(f.tree.Doc.Text()) != "" {
			pages[f.dir()] = append(pages[f.dir()], f)
		}
	}
	var breaches []string
	for _, dir := range slices.Sorted(maps.Keys(pages)) {
		switch found := pages[dir]; {
		case len(found) == 0:
			breaches = append(breaches, fmt.Sprintf("%s: no file has a package comment; say what the package owns, its concurrency rule and what it must not do", dir))
		case len(found) > 1:
			breaches = append(breaches, fmt.Sprintf("%s: %d package comments (%s and %s); one page tells it", dir, len(found), found[0].path, found[1].path))
		case found[0].test() && !onlyTests[dir]:
			breaches = append(breaches, fmt.Sprintf("%s: the package comment stands in a test", found[0].path))
		default:
			name, text := found[0].tree.Name.Name, found[0].tree.Doc.Text()
			if name != "main" && !strings.HasPrefix(text, "Package "+name+" ") || name == "main" && !strings.HasPrefix(text, "Command ") {
				breaches = append(breaches, fmt.Sprintf("%s: the package comment begins with neither `Package %s` nor, for a command, `Command`", found[0].path, name))
			}
		}
	}
	return breaches
}

var (
	tableRow = regexp.MustCompile(`^\|([^|]*)\|([^|]*)\|([^|]*)\|\s*$`)
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// importTable reads the rows between the two marks: package to the packages that it may import.
func importTable(page string) (map[string][]string, error) {
	_, rest, begins := strings.Cut(page, "<!-- imports:begin -->")
	body, _, ends := strings.Cut(rest, "<!-- imports:end -->")
	if !begins || !ends {
		return nil, fmt.Errorf("ARCHITECTURE.md has no table between the marks imports:begin and imports:end")
	}
	table := map[string][]string{}
	for line := range strings.SplitSeq(body, "\n") {
		row := tableRow.FindStringSubmatch(line)
		if row == nil || !strings.Contains(row[2], "`") {
			continue
		}
		allowed := names(row[3])
		if len(allowed) == 0 && strings.TrimSpace(row[3]) != "none" {
			return nil, fmt.Errorf("the import table's row %q names no package and does not say none", line)
		}
		for _, name := range names(row[2]) {
			if _, twice := table[name]; twice {
				return nil, fmt.Errorf("the import table has two rows for %s", name)
			}
			table[name] = allowed
		}
	}
	return table, nil
}

func names(cell string) []string {
	var found []string
	for _, match := range quoted.FindAllStringSubmatch(cell, -1) {
		found = append(found, match[1])
	}
	return found
}

// TestImports holds every package to the import table. Tests may import what the language lets them.
func TestImports(t *testing.T) {
	table, err := importTable(document(t, "ARCHITECTURE.md").text)
	if err != nil {
		t.Fatal(err)
	}
	report(t, imports(goFiles(t), table))
}

func imports(files []goFile, table map[string][]string) []string {
	var breaches []string
	exists, told := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		exists[f.dir()] = true
		allowed, listed := table[f.dir()]
		if !listed && !told[f.dir()] {
			told[f.dir()] = true
			breaches = append(breaches, fmt.Sprintf("%s: the package is missing from the import table of ARCHITECTURE.md", f.dir()))
		}
		if !listed || f.test() {
			continue
		}
		for _, spec := range f.tree.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			inside, ours := strings.CutPrefix(name, module+"/")
			if ours && !slices.Contains(allowed, inside) {
				breaches = append(breaches, fmt.Sprintf("%s:%d: imports %s, which the import table does not allow to %s", f.path, f.line(spec.Pos()), inside, f.dir()))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if !exists[name] {
			breaches = append(breaches, fmt.Sprintf("ARCHITECTURE.md: the import table lists %s, which is no package of the tree", name))
		}
	}
	return breaches
}

// TestUnsafe keeps memory without the language's protection in files whose name says so.
func TestUnsafe(t *testing.T) {
	report(t, unsafeOutside(goFiles(t)))
}

func unsafeOutside(files []goFile) []string {
	var breaches []string
	for _, f := range files {
		if strings.HasSuffix(f.path, "_unsafe.go") || strings.HasSuffix(f.path, "_unsafe_test.go") {
			continue
		}
		for _, spec := range f.tree.Imports {
			if spec.Path.Value == `"unsafe"` {
				breaches = append(breaches, fmt.Sprintf("%s:%d: imports unsafe; move the code into a file named *_unsafe.go", f.path, f.line(spec.Pos())))
			}
		}
		for _, group := range f.tree.Comments {
			for _, comment := range group.List {
				if strings.HasPrefix(comment.Text, "//go:linkname ") {
					breaches = append(breaches, fmt.Sprintf("%s:%d: go:linkname; move the code into a file named *_unsafe.go", f.path, f.line(comment.Pos())))
				}
			}
		}
	}
	return breaches
}
