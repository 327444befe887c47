package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// What a GPU is by its files in sysfs, and what the transfer backends ask of its driver.
const (
	pciDevices    = "sys/bus/pci/devices"
	nvidiaVendor  = "0x10de"
	displayClass  = "0x03" // the first digits of a class: graphics and compute
	driverVersion = "proc/driver/nvidia/version"
	driverOldest  = 570 // the first one with CUDA 12.8, and so with batches of copies
)

// gpuLines say what engines on a GPU find: the driver, each device and whether the pool lies beside it, and what registering the pool means for memory.
func gpuLines(o Options) []Line {
	gpus := nvidiaDevices(o.FS)
	text, err := readWord(o.FS, driverVersion)
	if len(gpus) == 0 && err != nil {
		return []Line{good("GPUs", "none of NVIDIA's: engines on the processor copy host memory")}
	}
	lines := []Line{driverLine(text, err)}
	for _, gpu := range gpus {
		lines = append(lines, gpuLine(o.FS, gpu))
	}
	return append(lines, registrationLine(o))
}

// driverLine tells a driver that copies in batches from one that does not.
func driverLine(text string, err error) Line {
	const name = "NVIDIA driver"
	fix := fmt.Sprintf("release %d or newer, which has CUDA 12.8: engines on the GPU cannot use the cache without it", driverOldest)
	if err != nil {
		return note(name, fix, "none is loaded: %v", err)
	}
	version := releaseIn(text)
	major, _, _ := strings.Cut(version, ".")
	switch release, err := strconv.Atoi(major); {
	case err != nil:
		return note(name, fix, "/%s names no release", driverVersion)
	case release < driverOldest:
		return note(name, fix, "%s", version)
	}
	return good(name, "%s", version)
}

// releaseIn returns the first word of the driver's version that is numbers with points between them, such as 580.65.06.
func releaseIn(text string) string {
	for _, word := range strings.Fields(text) {
		if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
			return word
		}
	}
	return ""
}

// nvidiaDevices returns the PCI addresses of NVIDIA's GPUs, in order.
func nvidiaDevices(fsys fs.FS) []string {
	entries, err := fs.ReadDir(fsys, pciDevices)
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		vendor, vendorErr := readWord(fsys, path.Join(pciDevices, e.Name(), "vendor"))
		class, classErr := readWord(fsys, path.Join(pciDevices, e.Name(), "class"))
		if vendorErr == nil && classErr == nil && vendor == nvidiaVendor && strings.HasPrefix(class, displayClass) {
			found = append(found, e.Name())
		}
	}
	return found
}

// gpuLine says whether the pool lies on the node beside a GPU: copies from another node share the link between the processors.
func gpuLine(fsys fs.FS, address string) Line {
	name := "GPU " + address
	nodes, err := poolNodes(fsys)
	if err != nil {
		return note(name, "", "the nodes of the pool are not known: %v", err)
	}
	word, err := readWord(fsys, path.Join(pciDevices, address, "numa_node"))
	if err != nil {
		word = "-1"
	}
	node, err := strconv.Atoi(word)
	switch {
	case len(nodes) == 1 && (err != nil || node < 0 || node == nodes[0]):
		return good(name, "the only node of the pool is beside it")
	case err != nil || node < 0:
		return note(name, "look at `nvidia-smi topo -m`, and start Manager and engine on that node (numactl)", "the machine does not name its node; the pool is on %s", nodesText(nodes))
	case !slices.Contains(nodes, node):
		return note(name, "let the Manager use that node too (numactl --membind, AllowedMemoryNodes= in the unit, cpuset.mems): copies cross the link between the nodes",
			"on node %d, the pool on %s", node, nodesText(nodes))
	}
	return good(name, "on node %d; the pool on %s", node, nodesText(nodes))
}

// poolNodes returns the nodes that a pool is spread over: those with memory that this process may use.
func poolNodes(fsys fs.FS) ([]int, error) {
	list, err := readWord(fsys, "sys/devices/system/node/has_memory")
	if err != nil {
		list, err = readWord(fsys, "sys/devices/system/node/online")
	}
	if err != nil {
		return nil, err
	}
	nodes, err := rangeList(list)
	if err != nil {
		return nil, err
	}
	status, err := readWord(fsys, "proc/self/status")
	if err != nil {
		return nodes, nil
	}
	for line := range strings.Lines(status) {
		rest, found := strings.CutPrefix(line, "Mems_allowed_list:")
		if !found {
			continue
		}
		if allowed, err := rangeList(strings.TrimSpace(rest)); err == nil {
			nodes = slices.DeleteFunc(nodes, func(n int) bool { return !slices.Contains(allowed, n) })
		}
	}
	return nodes, nil
}

func nodesText(nodes []int) string {
	var words []string
	for _, n := range nodes {
		words = append(words, strconv.Itoa(n))
	}
	if len(words) == 1 {
		return "node " + words[0]
	}
	return "nodes " + strings.Join(words, ", ")
}

// registrationLine says in words what becomes of the pool when engines register it with a GPU.
func registrationLine(o Options) Line {
	const name = "pinned memory"
	allowed, err := AllowedMemory(o.FS)
	if err != nil {
		return note(name, "mount /proc", "%v", err)
	}
	pool := o.PoolBytes
	if pool == 0 {
		pool = DefaultPoolBytes(allowed.Bytes)
	}
	rest := allowed.Bytes - min(pool, allowed.Bytes)
	found := fmt.Sprintf("engines lock the pool's %s for their GPUs; it is charged once, to the Manager's control group, and can then neither be swapped nor moved; %s of %s are left (%s)",
		size(pool), size(rest), size(allowed.Bytes), allowed.Source)
	if rest < pool/pinnedRoom {
		return note(name, "give a smaller --pool-size, or raise the limit: what is left must hold everything else that is charged there, and the kernel cannot take from the pool", "%s", found)
	}
	return good(name, "%s", found)
}

// pinnedRoom is the part of a locked pool that should be free beside it at least: one over this number.
const pinnedRoom = 8
