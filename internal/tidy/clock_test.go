package tidy

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Times of Go and Python that come from the clock on the wall. All other times of both are of a clock that only goes on: time.Now keeps its reading of
// that clock as long as nothing takes it away, and differences are of it.
var (
	wallGo     = []string{"Unix", "UnixMicro", "UnixMilli", "UnixNano"}
	wallPython = regexp.MustCompile(`\btime\.(time|time_ns|localtime|gmtime|ctime|asctime|strftime)\(|\bdatetime\b|\bCLOCK_REALTIME\b`)
	// wallAllowed says where the wall clock may be read: sequences of pages begin above those of an index that is lost, and are held above all that are
	// recorded whatever the clock says; and a record of the timeline tells its reader when it was written.
	wallAllowed = []string{"internal/ssd/journal/recover.go:startAbove", "internal/daemon/timeline.go:timelineNow"}
)

// TestWallClock keeps the wall clock, which people and time servers set back and forth, out of everything that measures a time: leases, patience, devices
// that hang, rates, ages.
func TestWallClock(t *testing.T) {
	report(t, wallClocks(goFiles(t), under(treeFiles(t, ".py"), "python/src/")))
}

func wallClocks(golang []goFile, python []file) []string {
	var breaches []string
	for _, f := range golang {
		if f.test() {
			continue
		}
		for _, d := range f.tree.Decls {
			function, ok := d.(*ast.FuncDecl)
			if ok && slices.Contains(wallAllowed, f.path+":"+function.Name.Name) {
				continue
			}
			ast.Inspect(d, func(node ast.Node) bool {
				if call, ok := node.(*ast.CallExpr); ok && readsWall(call) {
					breaches = append(breaches, fmt.Sprintf("%s:%d: a time by the wall clock; measure with the difference of two time.Now", f.path, f.line(call.Pos())))
				}
				return true
			})
		}
	}
	for _, f := range python {
		for i, line := range strings.Split(f.text, "\n") {
			if wallPython.MatchString(line) {
				breaches = append(breaches, fmt.Sprintf("%s:%d: a time by the wall clock; measure with time.monotonic", f.path, i+1))
			}
		}
	}
	return breaches
}

// readsWall says whether a call is for a time on the wall, or takes from a time all that it has beside that: x.Unix(), time.Unix(x, y), x.Round(0).
func readsWall(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if selector.Sel.Name == "Round" && len(call.Args) == 1 {
		zero, ok := call.Args[0].(*ast.BasicLit)
		return ok && zero.Value == "0"
	}
	return slices.Contains(wallGo, selector.Sel.Name) && (len(call.Args) == 0 || strings.HasPrefix(callee(call), "time."))
}

// TestWallClockIsFound plants the wall clock where it must not be, and things beside it that only look like it.
func TestWallClockIsFound(t *testing.T) {
	for source, want := range map[string]int{
		"func f() { g(time.Now().UnixMicro()) }":      1,
		"func f() { g(time.Unix(1, 0)) }":             1,
		"func f() { g(time.Now().Round(0)) }":         1,
		"func f() { g(time.Since(x).Round(second)) }": 0,
		"func f() { g(net.Unix(1)) }":                 0,
		"func f() { g(time.Now().Sub(x)) }":           0,
	} {
		if got := wallClocks([]goFile{parse(t, "internal/a/a.go", "package a\n"+source)}, nil); len(got) != want {
			t.Errorf("%s: %v", source, got)
		}
	}
	for source, want := range map[string]int{"x = time.time()": 1, "x = time.time_ns()": 1, "from datetime import date": 1, "x = time.monotonic()": 0, "self.time()": 0} {
		if got := wallClocks(nil, []file{{"a.py", source}}); len(got) != want {
			t.Errorf("%s: %v", source, got)
		}
	}
	allowed := parse(t, "internal/ssd/journal/recover.go", "package journal\nfunc (j *Journal) startAbove() { g(time.Now().UnixMicro()) }")
	if got := wallClocks([]goFile{allowed}, nil); len(got) != 0 {
		t.Errorf("where it may be read: %v", got)
	}
}
