package doctor

import (
	"testing"
	"testing/fstest"
)

// TestFreeMemory reads groups of both versions: what is in use counts, what the kernel can take back does not, and the tightest wins.
func TestFreeMemory(t *testing.T) {
	const gib = 1 << 30
	machine := map[string]string{"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"}
	v2 := map[string]string{
		"proc/self/cgroup":             "0::/pod/box\n",
		"proc/self/mountinfo":          "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/pod/memory.max": "max\n", "sys/fs/cgroup/pod/memory.current": "99\n",
		"sys/fs/cgroup/pod/box/memory.max": "4294967296\n", "sys/fs/cgroup/pod/box/memory.current": "3221225472\n",
		"sys/fs/cgroup/pod/box/memory.stat": "anon 1\nshmem 2147483648\ninactive_file 1073741824\nactive_file 0\n",
	}
	v1 := map[string]string{
		"proc/self/cgroup":                               "4:memory:/box\n",
		"proc/self/mountinfo":                            "1 1 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
		"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "4294967296\n", "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "5368709120\n",
		"sys/fs/cgroup/memory/box/memory.stat": "inactive_file 9\ntotal_inactive_file 0\n",
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		free  uint64
		by    string
	}{
		{"no group", nil, 8 * gib, "machine memory"},
		{"version 2", v2, 2 * gib, "/sys/fs/cgroup/pod/box/memory.max"},
		{"version 1, over its limit", v1, 0, "/sys/fs/cgroup/memory/box/memory.limit_in_bytes"},
	} {
		fsys := fstest.MapFS{}
		for _, files := range []map[string]string{machine, c.files} {
			for name, text := range files {
				fsys[name] = &fstest.MapFile{Data: []byte(text)}
			}
		}
		if free, err := FreeMemory(fsys); err != nil || free != (Allowance{c.free, c.by}) {
			t.Errorf("%s: %v, %v; want %d by %s", c.name, free, err, c.free, c.by)
		}
	}
	if _, err := FreeMemory(fstest.MapFS{}); err == nil {
		t.Error("a machine without /proc has free memory")
	}
}
