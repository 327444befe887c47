package launch

import (
	"context"
	"encoding/csv"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
	"orbitkv/internal/doctor"
)

// smiLimit bounds one question to nvidia-smi, which takes seconds while a driver wakes up.
const smiLimit = 30 * time.Second

// Machine reads what the host is, its GPUs too. What cannot be read stays empty.
func Machine(ctx context.Context) record.Machine {
	m := Host()
	m.GPUs = gpus(ctx)
	return m
}

// Host reads what the host is, its GPUs left out: asking for them can take seconds. What cannot be read stays empty.
func Host() record.Machine {
	root := os.DirFS("/")
	m := record.Machine{CPU: cpuName(root), CPUs: runtime.NumCPU(), NUMANodes: numaNodes(root)}
	if allowed, err := doctor.AllowedMemory(root); err == nil {
		m.MemoryBytes = allowed.Bytes
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// cpuName is the processor's name; where it has none, as on ARM, its architecture.
func cpuName(root fs.FS) string {
	text, err := fs.ReadFile(root, "proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			if strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}

// numaNodes counts the nodes that the kernel names; a kernel without them has one.
func numaNodes(root fs.FS) int {
	nodes, err := fs.Glob(root, "sys/devices/system/node/node[0-9]*")
	if err != nil {
		return 1
	}
	return max(1, len(nodes))
}

// loadAverage is the machine's of one minute; 0 where it cannot be read.
func loadAverage(root fs.FS) float64 {
	text, err := fs.ReadFile(root, "proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}

// onlineProcessors counts the processors that the load average is of: those of the machine, not of this process.
func onlineProcessors(root fs.FS) int {
	text, err := fs.ReadFile(root, "proc/stat")
	if err != nil {
		return 0
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); len(name) > len("cpu") && strings.HasPrefix(name, "cpu") && name[3] <= '9' {
			n++
		}
	}
	return n
}

// gpus asks nvidia-smi for the devices that CUDA_VISIBLE_DEVICES leaves to the engines; without it, there are none.
func gpus(ctx context.Context) []record.GPU {
	const fields = "uuid,name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.max.sm,power.limit"
	rows, err := smi(ctx, "--query-gpu="+fields)
	if err != nil {
		return nil
	}
	uses := map[string]int{}
	if processes, err := smi(ctx, "--query-compute-apps=gpu_uuid,pid"); err == nil {
		for _, p := range processes {
			uses[p[0]]++
		}
	}
	return gpuRows(visible(rows, os.Getenv("CUDA_VISIBLE_DEVICES")), uses)
}

// visible keeps the rows of GPUs that are named by their index or by the beginning of their UUID, in that order. All of them where nothing is named,
// and where a name is of no row (a part of a device, say): then it is better to know of too many.
func visible(rows [][]string, names string) [][]string {
	var kept [][]string
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		at := slices.IndexFunc(rows, func(r []string) bool { return name != "" && len(r) > 0 && strings.HasPrefix(r[0], name) })
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(rows) {
			at = i
		}
		if at < 0 {
			return rows
		}
		kept = append(kept, rows[at])
	}
	return kept
}

// gpuRows turns nvidia-smi's answer into GPUs; a row with another number of fields is no GPU.
func gpuRows(rows [][]string, uses map[string]int) []record.GPU {
	var found []record.GPU
	for _, r := range rows {
		if len(r) != 8 {
			continue
		}
		memory, err := strconv.Atoi(r[2])
		if err != nil {
			memory = 0 // nvidia-smi writes [N/A] where a device does not tell
		}
		found = append(found, record.GPU{
			Name: r[1], MemoryMiB: memory, Driver: r[3], PCIe: fmt.Sprintf("gen %s x%s", r[4], r[5]), SMClock: r[6], PowerCap: r[7], OtherUses: uses[r[0]],
		})
	}
	return found
}

// smi asks nvidia-smi for rows without units.
func smi(ctx context.Context, query string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, smiLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", query, "--format=csv,noheader,nounits").Output()
	if err != nil {
		return nil, err
	}
	in := csv.NewReader(strings.NewReader(string(out)))
	in.TrimLeadingSpace, in.FieldsPerRecord = true, -1
	return in.ReadAll()
}
