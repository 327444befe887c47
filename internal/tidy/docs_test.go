package tidy

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const invariants = 11 // I1 to I11; ARCHITECTURE.md states them and where each is kept.

var codeName = regexp.MustCompile("`([\\w./-]+\\.(?:go|py)):([A-Za-z_][\\w.]*)`")

// TestNamedCodeExists proves that every function a page names by path stands in that file.
func TestNamedCodeExists(t *testing.T) {
	document(t, "ARCHITECTURE.md")
	report(t, namedCode(treeFiles(t, ".md"), func(name string) (map[string]bool, bool) {
		for _, f := range treeFiles(t, ".go", ".py") {
			if f.path == name {
				return definedIn(t, f), true
			}
		}
		return nil, false
	}))
}

func namedCode(pages []file, defined func(path string) (map[string]bool, bool)) []string {
	var breaches []string
	for _, page := range pages {
		for i, line := range strings.Split(page.text, "\n") {
			for _, match := range codeName.FindAllStringSubmatch(line, -1) {
				names, exists := defined(match[1])
				switch {
				case !exists:
					breaches = append(breaches, fmt.Sprintf("%s:%d: names %s, which is no file of the tree", page.path, i+1, match[1]))
				case !names[match[2]]:
					breaches = append(breaches, fmt.Sprintf("%s:%d: names %s of %s, which does not define it", page.path, i+1, match[2], match[1]))
				}
			}
		}
	}
	return breaches
}

// definedIn returns the names that a file defines: Func, Type, Type.Method, or their Python likes.
func definedIn(t *testing.T, f file) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	if strings.HasSuffix(f.path, ".py") {
		for _, d := range pythonDefinitions(f.text) {
			found[d.name] = true
		}
		for line := range strings.SplitSeq(f.text, "\n") {
			if match := assignmentLine.FindStringSubmatch(line); match != nil && match[1] == "" {
				found[match[2]] = true
			}
		}
		return found
	}
	for _, decl := range parse(t, f.path, f.text).tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			found[functionName(d)] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					found[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, name := range s.Names {
						found[name.Name] = true
					}
				}
			}
		}
	}
	return found
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} (.*)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinks resolves every link between the pages and into the tree, headings too.
func TestLinks(t *testing.T) {
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	report(t, links(treeFiles(t, ".md"), func(name string) bool {
		_, err := os.Stat(filepath.Join(top, name))
		return err == nil
	}))
}

func links(pages []file, exists func(path string) bool) []string {
	headings := map[string][]string{}
	for _, page := range pages {
		headings[page.path] = slugs(page.text)
	}
	var breaches []string
	for _, page := range pages {
		for i, line := range withoutCode(page.text) {
			for _, match := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
					continue
				}
				target, anchor, _ := strings.Cut(match[1], "#")
				name := page.path
				if target != "" {
					name = path.Join(path.Dir(page.path), target)
				}
				if !exists(name) {
					breaches = append(breaches, fmt.Sprintf("%s:%d: links to %s, which does not exist", page.path, i+1, name))
				} else if known, isPage := headings[name]; anchor != "" && isPage && !slices.Contains(known, anchor) {
					breaches = append(breaches, fmt.Sprintf("%s:%d: links to #%s of %s, which has no such heading", page.path, i+1, anchor, name))
				}
			}
		}
	}
	return breaches
}

// slugs returns the anchors of a page's headings as the usual Markdown viewers make them.
func slugs(text string) []string {
	var found []string
	for _, line := range withoutCode(text) {
		if match := heading.FindStringSubmatch(line); match != nil {
			plain := notSlug.ReplaceAllString(strings.ToLower(match[1]), "")
			found = append(found, strings.ReplaceAll(strings.TrimSpace(plain), " ", "-"))
		}
	}
	return found
}

// withoutCode returns the lines of a page with fenced ones made empty, so that line numbers hold.
func withoutCode(text string) []string {
	lines, fenced := strings.Split(text, "\n"), false
	for i, line := range lines {
		mark := strings.HasPrefix(strings.TrimSpace(line), "```")
		if mark || fenced {
			lines[i] = ""
		}
		fenced = fenced != mark
	}
	return lines
}

// TestInvariants wants every invariant stated in ARCHITECTURE.md and named where the code keeps it.
func TestInvariants(t *testing.T) {
	page := document(t, "ARCHITECTURE.md")
	code := under(treeFiles(t, ".go", ".py"), "internal/", "python/src/")
	report(t, unkept(page.text, slices.DeleteFunc(code, func(f file) bool {
		return strings.HasPrefix(f.path, "internal/tidy/") || hasSuffix(f.path, []string{"_test.go"})
	})))
}

func unkept(page string, code []file) []string {
	var breaches []string
	for i := 1; i <= invariants; i++ {
		id := fmt.Sprintf(`\bI%d\b`, i)
		if !regexp.MustCompile(id).MatchString(page) {
			breaches = append(breaches, fmt.Sprintf("ARCHITECTURE.md: I%d is not stated", i))
		}
		comment := regexp.MustCompile(`(//|#).*` + id)
		if !slices.ContainsFunc(code, func(f file) bool { return comment.MatchString(f.text) }) {
			breaches = append(breaches, fmt.Sprintf("I%d: no comment under internal/ or python/src/ says where it is kept", i))
		}
	}
	return breaches
}
