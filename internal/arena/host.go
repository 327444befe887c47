package arena

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// memoryNodes returns the NUMA nodes that have memory and that this process may use; none when the kernel does not tell.
func memoryNodes() []int {
	present, err := os.ReadFile("/sys/devices/system/node/has_memory")
	if err != nil {
		return nil
	}
	nodes := parseList(strings.TrimSpace(string(present)))
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nodes
	}
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "Mems_allowed_list:"); ok {
			return intersect(nodes, parseList(strings.TrimSpace(list)))
		}
	}
	return nodes
}

// parseList reads the kernel's form "0-3,8" and leaves out what is no number.
func parseList(list string) []int {
	var out []int
	for item := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(item, "-")
		first, err := strconv.Atoi(low)
		if err != nil || first < 0 || first >= maskBits {
			continue
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(high); err != nil || last >= maskBits {
				continue
			}
		}
		for n := first; n <= last; n++ {
			out = append(out, n)
		}
	}
	return out
}

func intersect(a, b []int) []int {
	in := map[int]bool{}
	for _, n := range b {
		in[n] = true
	}
	var out []int
	for _, n := range a {
		if in[n] {
			out = append(out, n)
		}
	}
	return out
}

// HugePages is the state of the default huge page pool.
type HugePages struct {
	Bytes uint64 // size of one huge page; zero when the kernel has none
	Total uint64
	Free  uint64 // neither in use nor promised to a mapping
}

// ReadHugePages reads /proc/meminfo.
func ReadHugePages() (HugePages, error) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return HugePages{}, err
	}
	values := map[string]uint64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 {
			if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
				values[strings.TrimSuffix(fields[0], ":")] = n
			}
		}
	}
	if err := firstError(lines.Err(), file.Close()); err != nil {
		return HugePages{}, err
	}
	free := values["HugePages_Free"] - min(values["HugePages_Free"], values["HugePages_Rsvd"])
	return HugePages{Bytes: values["Hugepagesize"] << 10, Total: values["HugePages_Total"], Free: free}, nil
}

// checkHugePages returns the size of a huge page when enough of them are free for the pool.
func checkHugePages(poolBytes uint64) (uint64, error) {
	huge, err := ReadHugePages()
	if err != nil {
		return 0, fmt.Errorf("--use-hugepages: %w", err)
	}
	return huge.Bytes, huge.check(poolBytes)
}

func (h HugePages) check(poolBytes uint64) error {
	if h.Bytes == 0 {
		return fmt.Errorf("--use-hugepages: this kernel has no huge pages: start without the flag")
	}
	need := poolBytes / h.Bytes
	if need > h.Free {
		return fmt.Errorf("--use-hugepages: a pool of %d bytes needs %d huge pages of %d KiB and %d of %d are free: run `sysctl -w vm.nr_hugepages=%d`, lower --pool-size, or start without the flag",
			poolBytes, need, h.Bytes>>10, h.Free, h.Total, h.Total-h.Free+need)
	}
	return nil
}
