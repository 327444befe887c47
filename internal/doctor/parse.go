package doctor

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// readWord returns a file's text without blanks at its ends.
func readWord(fsys fs.FS, path string) (string, error) {
	raw, err := fs.ReadFile(fsys, path)
	return strings.TrimSpace(string(raw)), err
}

// readNumber returns a file that holds one unsigned number.
func readNumber(fsys fs.FS, path string) (uint64, error) {
	word, err := readWord(fsys, path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(word, 10, 64)
}

// meminfo returns a value of /proc/meminfo in bytes; ok is false when the field is not there.
func meminfo(fsys fs.FS, field string) (bytes uint64, ok bool) {
	raw, err := fs.ReadFile(fsys, "proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(raw)) {
		name, rest, found := strings.Cut(line, ":")
		if !found || name != field {
			continue
		}
		words := strings.Fields(rest)
		if len(words) == 0 {
			return 0, false
		}
		value, err := strconv.ParseUint(words[0], 10, 64)
		if err != nil {
			return 0, false
		}
		if len(words) > 1 && words[1] == "kB" {
			value <<= 10
		}
		return value, true
	}
	return 0, false
}

// unlimited stands for "no limit" of a process limit or a control group.
const unlimited = ^uint64(0)

// lockedMemoryLimit returns the soft limit of locked memory from the text of /proc/self/limits, in bytes.
func lockedMemoryLimit(limits string) (bytes uint64, err error) {
	for line := range strings.Lines(limits) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		if !found {
			continue
		}
		words := strings.Fields(rest)
		if len(words) == 0 {
			break
		}
		if words[0] == "unlimited" {
			return unlimited, nil
		}
		return strconv.ParseUint(words[0], 10, 64)
	}
	return 0, fmt.Errorf("no line for locked memory")
}

// capIPCLock is the number of the capability that lifts the limit of locked memory.
const capIPCLock = 14

// hasIPCLock says whether the text of /proc/self/status names the effective capability to lock memory without a limit.
func hasIPCLock(status string) bool {
	for line := range strings.Lines(status) {
		rest, found := strings.CutPrefix(line, "CapEff:")
		if !found {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
		return err == nil && bits>>capIPCLock&1 == 1
	}
	return false
}

// chosenWord returns the word in brackets of a kernel setting such as "always [never] advise".
func chosenWord(setting string) string {
	_, rest, found := strings.Cut(setting, "[")
	word, _, closed := strings.Cut(rest, "]")
	if !found || !closed {
		return ""
	}
	return word
}

// rangeList returns the numbers of a kernel list such as "0-2,5". Numbers above rangeListMax are an error, so that a broken
// file costs no memory.
func rangeList(list string) ([]int, error) {
	var numbers []int
	for _, item := range strings.Split(list, ",") {
		low, high, isRange := strings.Cut(item, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			return nil, fmt.Errorf("%q is no list of numbers", list)
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				return nil, fmt.Errorf("%q is no list of numbers", list)
			}
		}
		if first < 0 || last < first || last > rangeListMax {
			return nil, fmt.Errorf("%q is outside 0..%d", list, rangeListMax)
		}
		for n := first; n <= last; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

const rangeListMax = 4096

// size prints bytes with a binary unit and at most one decimal.
func size(bytes uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + units[unit]
}
