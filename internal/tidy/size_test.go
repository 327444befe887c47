package tidy

import (
	"fmt"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	fileLinesMax     = 600 // A file has one job.
	functionLinesMax = 70  // A function is read on one screen.
)

// Sizes above the limits that are borne, by "path" or "path:function". The list may only shrink: an entry must be exactly
// today's size, so whoever makes one smaller lowers it, and whoever makes one larger is stopped.
var oversize = map[string]int{}

// TestSizes bounds files and functions. What a program wrote is not read by people, and a test's length is its table.
func TestSizes(t *testing.T) {
	report(t, judgeSizes(measure(goFiles(t), under(treeFiles(t, ".py"), "")), oversize))
}

// size is one measured thing.
type size struct {
	name  string
	lines int
	max   int
}

func measure(golang []goFile, python []file) []size {
	var sizes []size
	for _, f := range golang {
		if f.generated() {
			continue
		}
		sizes = append(sizes, size{f.path, f.lines(), fileLinesMax})
		if f.test() {
			continue
		}
		for _, decl := range f.tree.Decls {
			if function, ok := decl.(*ast.FuncDecl); ok {
				lines := f.line(function.End()) - f.line(function.Pos()) + 1
				sizes = append(sizes, size{f.path + ":" + functionName(function), lines, functionLinesMax})
			}
		}
	}
	for _, f := range python {
		if f.generated() {
			continue
		}
		sizes = append(sizes, size{f.path, f.lines(), fileLinesMax})
		if strings.Contains(f.path, "tests/") {
			continue
		}
		for _, function := range pythonDefinitions(f.text) {
			if function.kind == "def" {
				sizes = append(sizes, size{f.path + ":" + function.name, function.lines, functionLinesMax})
			}
		}
	}
	return sizes
}

func judgeSizes(sizes []size, borne map[string]int) []string {
	var breaches []string
	left := maps.Clone(borne)
	for _, s := range sizes {
		bearing, listed := borne[s.name]
		delete(left, s.name)
		switch {
		case listed && s.lines <= s.max:
			breaches = append(breaches, fmt.Sprintf("%s: %d lines are within the limit of %d; take it off the list", s.name, s.lines, s.max))
		case listed && s.lines != bearing:
			breaches = append(breaches, fmt.Sprintf("%s: %d lines, the list says %d; it may only shrink", s.name, s.lines, bearing))
		case !listed && s.lines > s.max:
			breaches = append(breaches, fmt.Sprintf("%s: %d lines, at most %d; split it", s.name, s.lines, s.max))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		breaches = append(breaches, fmt.Sprintf("%s: is on the list and no more in the tree; take it off", name))
	}
	return breaches
}

// functionName returns Func, or Type.Method without the star and without type parameters.
func functionName(function *ast.FuncDecl) string {
	if function.Recv == nil || len(function.Recv.List) == 0 {
		return function.Name.Name
	}
	receiver := function.Recv.List[0].Type
	for {
		switch kind := receiver.(type) {
		case *ast.StarExpr:
			receiver = kind.X
		case *ast.IndexExpr:
			receiver = kind.X
		case *ast.IndexListExpr:
			receiver = kind.X
		case *ast.Ident:
			return kind.Name + "." + function.Name.Name
		default:
			return function.Name.Name
		}
	}
}

// definition is a class or function of a Python file, its name qualified by what it is nested in.
type definition struct {
	kind  string
	name  string
	lines int
}

var (
	definitionLine = regexp.MustCompile(`^(\s*)(?:async )?(def|class) (\w+)`)
	assignmentLine = regexp.MustCompile(`^(\s*)(\w+)(?::[^=]+)?(?: = .*)?$`)
)

// pythonDefinitions reads classes and functions by indentation, which the formatter keeps regular: a body ends at the
// first line that stands no deeper than its head, unless that line only closes the head's own brackets.
func pythonDefinitions(text string) []definition {
	type open struct {
		definition
		indent, first, last int
	}
	var stack []open
	var found []definition
	closeTo := func(indent int) {
		for len(stack) > 0 && stack[len(stack)-1].indent >= indent {
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			top.lines = top.last - top.first + 1
			found = append(found, top.definition)
		}
	}
	for number, line := range strings.Split(text, "\n") {
		bare := strings.TrimLeft(line, " ")
		if bare == "" {
			continue
		}
		indent := len(line) - len(bare)
		if !strings.HasPrefix(bare, ")") && !strings.HasPrefix(bare, "]") {
			closeTo(indent)
		}
		if head := definitionLine.FindStringSubmatch(line); head != nil {
			name := head[3]
			if len(stack) > 0 {
				name = stack[len(stack)-1].name + "." + name
			}
			stack = append(stack, open{definition{head[2], name, 0}, indent, number, number})
		}
		for i := range stack {
			stack[i].last = number
		}
	}
	closeTo(0)
	return found
}
