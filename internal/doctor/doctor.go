package doctor

import (
	"fmt"
	"io/fs"
	"os"
)

// Verdict says what a line means for a Cache Manager on this machine.
type Verdict string

// The verdicts. Bad means that the Manager or an engine would fail or be refused; Note means that it works, and how it could
// work better or what else to know.
const (
	Good Verdict = "good"
	Bad  Verdict = "bad"
	Note Verdict = "note"
)

// Line is the outcome of one check.
type Line struct {
	Verdict Verdict `json:"verdict"`
	Name    string  `json:"name"`
	Found   string  `json:"found"`
	Fix     string  `json:"fix,omitempty"`
}

// Socket is one path of the search order that Manager and engines share.
type Socket struct {
	Source string // where the path comes from: a flag, a variable or a built-in default
	Path   string // absolute
}

// Options says what to look at. The zero value looks at this machine without any socket path.
type Options struct {
	FS        fs.FS    // the file system from "/"; nil is the machine's own
	Probe     *Probe   // what to try in the kernel; nil tries for real
	PoolBytes uint64   // pool that would be used, bytes; zero takes DefaultPoolBytes
	HugePages bool     // whether the pool would lie in reserved huge pages
	Sockets   []Socket // in search order
	SSD       SSD      // the tier below the pool that would be used
	UID       int      // user that the Manager would run as; used for the owners of sockets
}

// PoolShare is the part of the allowed memory that DefaultPoolBytes takes: one over this number.
const PoolShare = 4

// DefaultPoolBytes is the size of a pool that nobody configured, from what AllowedMemory found.
func DefaultPoolBytes(allowedBytes uint64) uint64 { return allowedBytes / PoolShare }

// Run makes every check and returns its lines in the order in which a person would fix them. It never fails: a file that
// cannot be read is a line too.
func Run(o Options) []Line {
	if o.FS == nil {
		o.FS = os.DirFS("/")
	}
	if o.Probe == nil {
		o.Probe = RealProbe()
	}
	lines := kernelLines(o)
	lines = append(lines, memoryLines(o)...)
	lines = append(lines, lockedMemoryLine(o))
	lines = append(lines, swapLine(o.FS))
	lines = append(lines, hugePageLines(o)...)
	lines = append(lines, nodesLine(o.FS))
	lines = append(lines, gpuLines(o)...)
	lines = append(lines, leftoversLine(o.FS))
	lines = append(lines, ssdLines(o)...)
	return append(lines, socketLines(o)...)
}

// AnyBad says whether a line is bad, for the exit status of a command.
func AnyBad(lines []Line) bool {
	for _, l := range lines {
		if l.Verdict == Bad {
			return true
		}
	}
	return false
}

func good(name, format string, args ...any) Line {
	return Line{Verdict: Good, Name: name, Found: fmt.Sprintf(format, args...)}
}

func bad(name, fix, format string, args ...any) Line {
	return Line{Verdict: Bad, Name: name, Found: fmt.Sprintf(format, args...), Fix: fix}
}

func note(name, fix, format string, args ...any) Line {
	return Line{Verdict: Note, Name: name, Found: fmt.Sprintf(format, args...), Fix: fix}
}
