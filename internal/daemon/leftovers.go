package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"orbitkv/internal/arena"
)

// held is what one process keeps of an earlier Manager's pool.
type held struct {
	pid     int
	command string
	bytes   uint64
}

// nameLeftovers logs the processes that still map arenas of a Manager that is gone: their memory counts until they unmap it.
// own is this Manager's incarnation as it stands in the names of its arenas.
func nameLeftovers(log *slog.Logger, proc, own string) {
	for _, h := range findLeftovers(proc, own) {
		log.Warn("a process still maps the pool of an earlier Manager; the memory comes back when it attaches anew or ends",
			"pid", h.pid, "command", h.command, "bytes", h.bytes)
	}
}

// findLeftovers looks through the processes that it may read. An arena whose Manager lives is open there as a descriptor and is left out.
func findLeftovers(proc, own string) []held {
	pids, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil
	}
	living := map[string]bool{own: true}
	for _, dir := range pids {
		if name, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil && strings.TrimSpace(string(name)) == "orbitkv" {
			openIncarnations(dir, living)
		}
	}
	var found []held
	for _, dir := range pids {
		bytes := mappedBytes(dir, living)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if bytes == 0 || err != nil {
			continue
		}
		command, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it has ended meanwhile
		}
		found = append(found, held{pid, strings.TrimSpace(string(command)), bytes})
	}
	return found
}

// openIncarnations adds the incarnations whose arenas a process has open.
func openIncarnations(dir string, into map[string]bool) {
	links, err := filepath.Glob(filepath.Join(dir, "fd", "*"))
	if err != nil {
		return
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			if incarnation, ok := incarnationOf(target); ok {
				into[incarnation] = true
			}
		}
	}
}

// mappedBytes sums a process's mappings of arenas whose incarnation is not in living.
func mappedBytes(dir string, living map[string]bool) (bytes uint64) {
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		incarnation, ok := incarnationOf(fields[5])
		if !ok || living[incarnation] {
			continue
		}
		low, high, _ := strings.Cut(fields[0], "-")
		from, fromErr := strconv.ParseUint(low, 16, 64)
		to, toErr := strconv.ParseUint(high, 16, 64)
		if fromErr == nil && toErr == nil && to > from {
			bytes += to - from
		}
	}
	return bytes
}

// incarnationOf reads the incarnation out of an arena's name in /proc.
func incarnationOf(path string) (string, bool) {
	name, ok := strings.CutPrefix(path, "/memfd:"+arena.NamePrefix)
	incarnation, _, _ := strings.Cut(name, "-")
	return incarnation, ok
}
