package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Allowance is how much memory this process may use, and what says so.
type Allowance struct {
	Bytes  uint64 // the smallest of the machine's memory and the limits of the process's control groups
	Source string // the file that holds the smallest limit, or "machine memory"
}

// AllowedMemory reads the memory that this process may use: the smallest of MemTotal and the limit of each control group from the
// process's own up to the root, version 2 and version 1. The error says that the machine's memory is unreadable; an
// unreadable control group limits nothing.
func AllowedMemory(fsys fs.FS) (Allowance, error) {
	total, ok := meminfo(fsys, "MemTotal")
	if !ok {
		return Allowance{}, fmt.Errorf("doctor: /proc/meminfo has no MemTotal: is /proc mounted?")
	}
	allowed := Allowance{Bytes: total, Source: "machine memory"}
	for _, g := range memoryGroups(fsys) {
		for _, dir := range g.upwards() {
			for _, file := range g.limitFiles {
				limit, err := readLimit(fsys, path.Join(dir, file))
				if err == nil && limit < allowed.Bytes {
					allowed = Allowance{Bytes: limit, Source: "/" + path.Join(dir, file)}
				}
			}
		}
	}
	return allowed, nil
}

// FreeMemory reads how much more memory this process may be charged with: the smallest of MemAvailable and, for each control group from
// its own up to the root, the limit less what is in use and cannot be reclaimed. Memory of files counts as free, since the kernel
// takes it back; shared memory, such as a pool, does not. The error says that the machine's memory is unreadable.
func FreeMemory(fsys fs.FS) (Allowance, error) {
	available, ok := meminfo(fsys, "MemAvailable")
	if !ok {
		return Allowance{}, fmt.Errorf("doctor: /proc/meminfo has no MemAvailable: is /proc mounted?")
	}
	free := Allowance{Bytes: available, Source: "machine memory"}
	for _, g := range memoryGroups(fsys) {
		for _, dir := range g.upwards() {
			used, err := readNumber(fsys, path.Join(dir, g.usageFile))
			if err != nil {
				continue
			}
			used -= min(used, reclaimable(fsys, path.Join(dir, "memory.stat"), g.statPrefix))
			for _, file := range g.limitFiles {
				limit, err := readLimit(fsys, path.Join(dir, file))
				if err == nil && limit-min(limit, used) < free.Bytes {
					free = Allowance{Bytes: limit - min(limit, used), Source: "/" + path.Join(dir, file)}
				}
			}
		}
	}
	return free, nil
}

// reclaimable returns the bytes of files that a control group is charged with, from its memory.stat.
func reclaimable(fsys fs.FS, file, prefix string) (bytes uint64) {
	text, err := readWord(fsys, file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != prefix+"inactive_file" && name != prefix+"active_file" {
			continue
		}
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			bytes += n
		}
	}
	return bytes
}

// group is one hierarchy that may limit the process's memory. Paths have no leading slash, as fs.FS wants them.
type group struct {
	mount      string // where the hierarchy is mounted
	inside     string // path of the process's group below the mount
	limitFiles []string
	usageFile  string
	statPrefix string // of the figures of memory.stat that count the groups below too
	swapFile   string
	swapAlone  bool // swapFile counts swap without memory
}

// upwards returns the folders of the group and of all groups above it, the process's own first.
func (g group) upwards() []string {
	var dirs []string
	for inside := path.Clean("/" + g.inside); ; inside = path.Dir(inside) {
		dirs = append(dirs, path.Join(g.mount, inside))
		if inside == "/" {
			return dirs
		}
	}
}

// memoryGroups finds the hierarchies of the memory controller: where /proc/self/mountinfo says that they are mounted, and the
// group that /proc/self/cgroup names in each.
func memoryGroups(fsys fs.FS) []group {
	membership, err := fs.ReadFile(fsys, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(fsys, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return parseGroups(string(membership), string(mounts))
}

func parseGroups(membership, mountinfo string) []group {
	v1, v2 := groupPaths(membership)
	var groups []group
	for line := range strings.Lines(mountinfo) {
		root, mount, kind, options, ok := parseMount(line)
		if !ok {
			continue
		}
		switch {
		case kind == "cgroup2" && v2 != "":
			groups = append(groups, group{
				mount: mount, inside: below(root, v2), limitFiles: []string{"memory.max", "memory.high"}, usageFile: "memory.current",
				swapFile: "memory.swap.max", swapAlone: true,
			})
		case kind == "cgroup" && v1 != "" && hasWord(options, "memory"):
			groups = append(groups, group{
				mount: mount, inside: below(root, v1), limitFiles: []string{"memory.limit_in_bytes"}, usageFile: "memory.usage_in_bytes", statPrefix: "total_",
				swapFile: "memory.memsw.limit_in_bytes",
			})
		}
	}
	return groups
}

// groupPaths returns the process's group in the version 1 memory hierarchy and in the version 2 hierarchy, "" when there is none.
func groupPaths(membership string) (v1, v2 string) {
	for line := range strings.Lines(membership) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if fields[0] == "0" && fields[1] == "" {
			v2 = fields[2]
		} else if hasWord(fields[1], "memory") {
			v1 = fields[2]
		}
	}
	return v1, v2
}

// parseMount reads one line of mountinfo: id, parent, device, root, mount point, options, tags, "-", type, source, options.
func parseMount(line string) (root, mount, kind, options string, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	head, tail := strings.Fields(before), strings.Fields(after)
	if !found || len(head) < 6 || len(tail) < 3 {
		return "", "", "", "", false
	}
	return head[3], strings.TrimPrefix(head[4], "/"), tail[0], tail[2], true
}

// below returns a group's path seen from a mount that shows only what lies under root: in a container the mount's root is
// the container's own group.
func below(root, groupPath string) string {
	if root == "/" {
		return groupPath
	}
	if rest, found := strings.CutPrefix(groupPath, root); found {
		return rest
	}
	return "/"
}

func hasWord(list, word string) bool {
	for _, item := range strings.Split(list, ",") {
		if item == word {
			return true
		}
	}
	return false
}

// readLimit reads a limit of a control group in bytes: "max" and the page-rounded largest number of version 1 are no limit.
func readLimit(fsys fs.FS, file string) (uint64, error) {
	word, err := readWord(fsys, file)
	if err != nil {
		return 0, err
	}
	if word == "max" {
		return unlimited, nil
	}
	return strconv.ParseUint(word, 10, 64)
}

// swapAllowed says whether the process's control groups let its memory be swapped out.
func swapAllowed(fsys fs.FS) bool {
	for _, g := range memoryGroups(fsys) {
		for _, dir := range g.upwards() {
			if g.forbidsSwap(fsys, dir) {
				return false
			}
		}
	}
	return true
}

// forbidsSwap says whether the limits of one folder leave no room for swap. Version 2 limits swap alone; version 1 limits memory
// and swap together, so that equal limits mean none.
func (g group) forbidsSwap(fsys fs.FS, dir string) bool {
	limit, err := readLimit(fsys, path.Join(dir, g.swapFile))
	if err != nil || limit >= limitNoneV1 {
		return false
	}
	if g.swapAlone {
		return limit == 0
	}
	memory, err := readLimit(fsys, path.Join(dir, g.limitFiles[0]))
	return err == nil && limit <= memory
}

// limitNoneV1 is what version 1 shows at least when nothing is limited: the largest signed number, rounded down to a page.
const limitNoneV1 = 1<<63 - 1<<20
