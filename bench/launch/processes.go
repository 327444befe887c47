package launch

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// procFacts are what /proc says of a process. A zombie holds nothing any more and is left out.
type procFacts struct {
	pid, parent int
}

// livingProcesses lists the processes that are alive; one that ends meanwhile is left out.
func livingProcesses() []procFacts {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var found []procFacts
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if facts, ok := parseStat(string(text)); ok {
			found = append(found, facts)
		}
	}
	return found
}

// parseStat reads a line of /proc/PID/stat. The command's name stands in parentheses and may hold anything, parentheses too.
func parseStat(text string) (procFacts, bool) {
	head, rest, ok := cutLast(text, ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 || strings.ContainsAny(fields[0], "ZX") {
		return procFacts{}, false
	}
	first, _, _ := strings.Cut(head, " ")
	pid, err1 := strconv.Atoi(first)
	parent, err2 := strconv.Atoi(fields[1])
	return procFacts{pid, parent}, err1 == nil && err2 == nil
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// descendants lists the living processes below one, whatever their sessions are. A zombie that has living children does not occur: they
// belong to the nearest subreaper from the moment it dies.
func descendants(root int) []int {
	children := map[int][]int{}
	for _, p := range livingProcesses() {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	var found []int
	for next := []int{root}; len(next) > 0; {
		found = append(found, children[next[0]]...)
		next = append(next[1:], children[next[0]]...)
	}
	return found
}

// markVariable is in the environment of a charge and of all that it starts; its value tells charges apart.
const markVariable = "BENCH_CHARGE"

// newMark returns an entry of the environment that no other process has.
func newMark() string { return markVariable + "=" + rand.Text() }

// marked lists the living processes that were started with a mark, whoever their parents are now.
func marked(mark string) []int {
	var found []int
	for _, p := range livingProcesses() {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/environ")
		if err == nil && slices.Contains(strings.Split(string(text), "\x00"), mark) {
			found = append(found, p.pid)
		}
	}
	return found
}

// tracksResources says whether a process is a resource tracker of Python's multiprocessing.
func tracksResources(pid int) bool {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && bytes.Contains(line, []byte("multiprocessing.resource_tracker"))
}
