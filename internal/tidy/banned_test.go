package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestBannedGo forbids calls that bypass the log, panics that say nothing, and sleeping as synchronisation.
func TestBannedGo(t *testing.T) {
	report(t, bannedGo(goFiles(t)))
}

func bannedGo(files []goFile) []string {
	var breaches []string
	for _, f := range files {
		speaks := strings.HasPrefix(f.path, "cmd/") || f.tree.Name.Name == "main"
		ast.Inspect(f.tree, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := callee(call)
			switch {
			case !speaks && !f.test() && (strings.HasPrefix(name, "fmt.Print") || name == "print" || name == "println"):
				breaches = append(breaches, fmt.Sprintf("%s:%d: %s; a package logs or returns, only a command prints", f.path, f.line(call.Pos()), name))
			case name == "panic" && !f.test() && !saysWhat(call.Args[0]):
				breaches = append(breaches, fmt.Sprintf("%s:%d: a panic whose message does not begin with a constant text; name the broken rule", f.path, f.line(call.Pos())))
			case name == "time.Sleep" && f.test():
				breaches = append(breaches, fmt.Sprintf("%s:%d: time.Sleep in a test; wait for the event itself, or use testing/synctest", f.path, f.line(call.Pos())))
			}
			return true
		})
	}
	return breaches
}

// callee returns f or pkg.F of a call, and nothing for calls of any other shape.
func callee(call *ast.CallExpr) string {
	switch function := call.Fun.(type) {
	case *ast.Ident:
		return function.Name
	case *ast.SelectorExpr:
		if pkg, ok := function.X.(*ast.Ident); ok {
			return pkg.Name + "." + function.Sel.Name
		}
	}
	return ""
}

// saysWhat says whether an expression is a text that begins with a literal, plain, joined or formatted.
func saysWhat(expression ast.Expr) bool {
	switch e := expression.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING
	case *ast.BinaryExpr:
		return saysWhat(e.X)
	case *ast.CallExpr:
		formats := []string{"fmt.Sprintf", "fmt.Errorf", "fmt.Sprint", "errors.New"}
		return slices.Contains(formats, callee(e)) && len(e.Args) > 0 && saysWhat(e.Args[0])
	}
	return false
}

var (
	broadExcept  = regexp.MustCompile(`^(\s*)except(\s*:|.*\b(Exception|BaseException)\b)`)
	bareRaise    = regexp.MustCompile(`^\s+raise$`)
	unsafePython = regexp.MustCompile(`^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle)\b|(^|[^.\w])(eval|exec)\(`)
)

// TestBannedPython forbids, in the package that runs inside an engine, what hides a fault or runs foreign bytes.
func TestBannedPython(t *testing.T) {
	report(t, bannedPython(under(treeFiles(t, ".py"), "python/src/")))
}

func bannedPython(files []file) []string {
	var breaches []string
	for _, f := range files {
		lines := strings.Split(f.text, "\n")
		for i, line := range lines {
			if head := broadExcept.FindStringSubmatch(line); head != nil && !raisesAgain(lines[i+1:], len(head[1])) {
				breaches = append(breaches, fmt.Sprintf("%s:%d: a broad except that does not raise again; name the failures that are expected", f.path, i+1))
			}
			if unsafePython.MatchString(line) {
				breaches = append(breaches, fmt.Sprintf("%s:%d: %s; bytes from outside are never run", f.path, i+1, strings.TrimSpace(line)))
			}
		}
	}
	return breaches
}

// raisesAgain says whether the block below an except line holds a bare raise.
func raisesAgain(lines []string, indent int) bool {
	for _, line := range lines {
		bare := strings.TrimLeft(line, " ")
		if bare != "" && len(line)-len(bare) <= indent {
			return false
		}
		if bareRaise.MatchString(line) {
			return true
		}
	}
	return false
}

// Names are written in two halves so that this file does not break its own rule.
var (
	indexHosts = []string{
		"pypi" + ".org", "pythonhosted" + ".org", "proxy.golang" + ".org", "sum.golang" + ".org", "npmjs" + ".org",
		"crates" + ".io", "docker" + ".io", "ghcr" + ".io", "quay" + ".io", "gcr" + ".io", "anaconda" + ".org",
		"download.pytorch" + ".org", "huggingface" + ".co",
	}
	unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b|(?i)\bfor ` + `now\b`)
	temporary  = regexp.MustCompile(`/tmp/[\w.-]+`)
)

// TestForeignNames keeps index hosts, folders of one machine and unfinished work out of every file.
func TestForeignNames(t *testing.T) {
	top, err := root()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	report(t, foreignNames(treeFiles(t), localFolders(top, home)))
}

// Folders that pages may well name, wherever the checkout lies.
var commonFolders = []string{
	"", "/", "/build", "/data", "/dev", "/dev/shm", "/etc", "/home", "/mnt", "/opt", "/proc", "/root", "/run", "/src", "/srv", "/sys",
	"/tmp", "/usr", "/usr/local", "/usr/src", "/var", "/var/tmp",
}

// localFolders returns the folders that only this machine has: the checkout, the one around it and the user's home.
func localFolders(top, home string) []string {
	var folders []string
	for _, folder := range []string{top, filepath.Dir(top), home} {
		if !slices.Contains(commonFolders, strings.TrimRight(folder, "/")) {
			folders = append(folders, strings.TrimRight(folder, "/")+"/")
		}
	}
	return folders
}

// namesFolder says whether an absolute path into the folder begins somewhere in the line.
func namesFolder(line, folder string) bool {
	for at := strings.Index(line, folder); at >= 0; {
		if at == 0 || strings.ContainsRune(" \t\"'`=(:,<[", rune(line[at-1])) {
			return true
		}
		next := strings.Index(line[at+1:], folder)
		if next < 0 {
			return false
		}
		at += 1 + next
	}
	return false
}

func foreignNames(files []file, folders []string) []string {
	var breaches []string
	for _, f := range files {
		for i, line := range strings.Split(f.text, "\n") {
			isHere := func(folder string) bool { return namesFolder(line, folder) }
			isIn := func(host string) bool { return strings.Contains(line, host) }
			if slices.ContainsFunc(indexHosts, isIn) || slices.ContainsFunc(folders, isHere) {
				breaches = append(breaches, fmt.Sprintf("%s:%d: names an index or a folder of one machine, which do not belong in the tree", f.path, i+1))
			}
			for _, name := range temporary.FindAllString(line, -1) {
				if !strings.HasPrefix(name, "/tmp/orbitkv") {
					breaches = append(breaches, fmt.Sprintf("%s:%d: names %s; ask for a temporary folder instead", f.path, i+1, name))
				}
			}
			if word := unfinished.FindString(line); word != "" {
				breaches = append(breaches, fmt.Sprintf("%s:%d: %q; finish it or leave it out", f.path, i+1, word))
			}
		}
	}
	return breaches
}
