package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// managerBytes is what a Manager needs beside its pool: the index of tens of millions of pages and the process itself.
const managerBytes = 1 << 30

// memoryLines compare the pool with what the control group and the machine give.
func memoryLines(o Options) []Line {
	const name = "memory"
	allowed, err := AllowedMemory(o.FS)
	if err != nil {
		return []Line{bad(name, "mount /proc", "%v", err)}
	}
	pool, chosen := o.PoolBytes, "configured"
	if pool == 0 {
		pool, chosen = DefaultPoolBytes(allowed.Bytes), fmt.Sprintf("default, 1/%d of what is allowed", PoolShare)
	}
	found := fmt.Sprintf("pool %s (%s); allowed %s by %s", size(pool), chosen, size(allowed.Bytes), allowed.Source)

	lines := []Line{good(name, "%s", found)}
	switch {
	case pool > allowed.Bytes:
		lines[0] = bad(name, "give a smaller --pool-size or raise the limit: populating this pool ends in the out-of-memory killer", "%s", found)
	case allowed.Bytes-pool < min(managerBytes, allowed.Bytes/8):
		lines[0] = bad(name, fmt.Sprintf("leave %s beside the pool for the index and the process", size(min(managerBytes, allowed.Bytes/8))), "%s", found)
	}
	if available, ok := meminfo(o.FS, "MemAvailable"); ok && pool > available && pool <= allowed.Bytes {
		lines = append(lines, note("memory available", "start the Manager before other users of memory, or give a smaller --pool-size",
			"%s of the machine is available now, less than the pool of %s", size(available), size(pool)))
	}
	return lines
}

func lockedMemoryLine(o Options) Line {
	const name = "locked memory"
	const fix = "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited; needed only by fixed buffers of io_uring and by RDMA. " +
		"An engine has a limit of its own: raise that one, too, where its log says that arenas could not be registered with a GPU"
	fsys := o.FS
	limits, err := readWord(fsys, "proc/self/limits")
	if err != nil {
		return note(name, fix, "limit unreadable: %v", err)
	}
	status, statusErr := readWord(fsys, "proc/self/status")
	limit, err := lockedMemoryLimit(limits)
	switch {
	case statusErr == nil && hasIPCLock(status):
		return good(name, "the process may lock without a limit (CAP_IPC_LOCK)")
	case err != nil:
		return note(name, fix, "limit unreadable: %v", err)
	case limit == unlimited:
		return good(name, "unlimited")
	case len(o.SSD.Paths) > 0 && !o.SSD.NoRing:
		return note(name, fix+". Without them SSD reads and writes cost more processor time", "limited to %s, and io_uring would lock the pool", size(limit))
	}
	return note(name, fix, "limited to %s", size(limit))
}

func swapLine(fsys fs.FS) Line {
	const name = "swap"
	total, ok := meminfo(fsys, "SwapTotal")
	switch {
	case !ok:
		return note(name, "", "/proc/meminfo has no SwapTotal")
	case total == 0:
		return good(name, "none: the pool stays in memory")
	case !swapAllowed(fsys):
		return good(name, "%s on the machine, none for this control group", size(total))
	}
	return note(name, "swapoff -a, or MemorySwapMax=0 in the unit: a pool in swap is slower than recomputation",
		"%s on the machine: the pool can be swapped out", size(total))
}

const hugePagesDir = "sys/kernel/mm/hugepages"

// hugePageLines report the reserved pools, one line a size, and whether shared memory may use transparent huge pages.
func hugePageLines(o Options) []Line {
	var lines []Line
	entries, err := fs.ReadDir(o.FS, hugePagesDir)
	if err != nil || len(entries) == 0 {
		l := note("huge pages", "", "the kernel has no reserved huge pages")
		if o.HugePages {
			l = bad("huge pages", "start without --use-hugepages", "the kernel has no reserved huge pages")
		}
		lines = append(lines, l)
	}
	wanted, hasDefault := meminfo(o.FS, "Hugepagesize")
	for _, e := range entries {
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		lines = append(lines, reservedLine(o, e.Name(), kib<<10, hasDefault && kib<<10 == wanted))
	}
	return append(lines, sharedHugePagesLine(o.FS))
}

func reservedLine(o Options, dir string, pageBytes uint64, isDefault bool) Line {
	name := "huge pages " + size(pageBytes)
	total, err := readNumber(o.FS, path.Join(hugePagesDir, dir, "nr_hugepages"))
	if err != nil {
		return note(name, "", "unreadable: %v", err)
	}
	free, err := readNumber(o.FS, path.Join(hugePagesDir, dir, "free_hugepages"))
	if err != nil {
		return note(name, "", "unreadable: %v", err)
	}
	found := fmt.Sprintf("%d reserved, %d free", total, free)
	if !o.HugePages || !isDefault {
		return note(name, "", "%s", found)
	}
	pool := o.PoolBytes
	if allowed, err := AllowedMemory(o.FS); pool == 0 && err == nil {
		pool = DefaultPoolBytes(allowed.Bytes)
	}
	needed := (pool + pageBytes - 1) / pageBytes
	if free >= needed {
		return good(name, "%s; the pool needs %d", found, needed)
	}
	return bad(name, fmt.Sprintf("sysctl vm.nr_hugepages=%d, or start without --use-hugepages", total-free+needed), "%s; the pool needs %d", found, needed)
}

func sharedHugePagesLine(fsys fs.FS) Line {
	const name = "transparent huge pages"
	setting, err := readWord(fsys, "sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil {
		return note(name, "", "the kernel has none for shared memory")
	}
	switch word := chosenWord(setting); word {
	case "always", "within_size", "advise", "force":
		return good(name, "shared memory: %s", word)
	default:
		return note(name, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled: populating and mapping the pool are several times faster",
			"shared memory: %s", word)
	}
}

func nodesLine(fsys fs.FS) Line {
	const name = "NUMA nodes"
	list, err := readWord(fsys, "sys/devices/system/node/online")
	if err != nil {
		return note(name, "", "the kernel names no nodes: the pool is not placed")
	}
	nodes, err := rangeList(list)
	if err != nil {
		return note(name, "", "/sys/devices/system/node/online: %v", err)
	}
	if len(nodes) == 1 {
		return good(name, "one: nothing to place")
	}
	var parts []string
	for _, n := range nodes {
		parts = append(parts, fmt.Sprintf("node %d %s", n, nodeMemory(fsys, n)))
	}
	return good(name, "%d: %s; arenas are placed on each", len(nodes), strings.Join(parts, ", "))
}

// nodeMemory returns a node's memory as text: its file has lines such as "Node 0 MemTotal:  1024 kB".
func nodeMemory(fsys fs.FS, node int) string {
	text, err := readWord(fsys, fmt.Sprintf("sys/devices/system/node/node%d/meminfo", node))
	if err != nil {
		return "unreadable"
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 4 || words[2] != "MemTotal:" {
			continue
		}
		if kib, err := strconv.ParseUint(words[3], 10, 64); err == nil {
			return size(kib << 10)
		}
	}
	return "without memory"
}
