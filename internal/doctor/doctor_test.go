package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

const gib = 1 << 30

// soundMachine is a host of 64 GiB with one node, version 2 control groups and nothing to complain about.
func soundMachine() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"proc/meminfo":          file("MemTotal:       67108864 kB\nMemAvailable:   60000000 kB\nSwapTotal:             0 kB\nHugepagesize:       2048 kB\n"),
		"proc/self/cgroup":      file("0::/system.slice/orbitkv.service\n"),
		"proc/self/mountinfo":   file("30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
		"proc/self/limits":      file("Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         unlimited            unlimited            bytes\n"),
		"proc/self/status":      file("Name:\torbitkv\nCapEff:\t0000000000000000\n"),
		"dev/shm":               {Mode: fs.ModeDir | 0o777},
		"run/orbitkv":           {Mode: fs.ModeDir | 0o755},
		"sys/fs/cgroup/x":       file(""),
		nodes + "online":        file("0\n"),
		huge + "nr_hugepages":   file("0\n"),
		huge + "free_hugepages": file("0\n"),
		shmem:                   file("always within_size [advise] never deny force\n"),
	}
}

const (
	nodes = "sys/devices/system/node/"
	huge  = "sys/kernel/mm/hugepages/hugepages-2048kB/"
	shmem = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	unit  = "sys/fs/cgroup/system.slice/"
)

func soundKernel() *Probe {
	works := func() error { return nil }
	return &Probe{
		Release: func() string { return "6.18.0" }, MemfdSeals: works, PidfdOpen: works, PeerPidfd: works, PopulateWrite: works,
		IOUring: works, Dial: func(string) error { return nil }, DirectIO: func(string) error { return nil },
		Folder: func(path string) (Folder, error) { return Folder{Path: path, FreeBytes: 100 * gib}, nil },
	}
}

func socketAt(mode fs.FileMode, uid uint32) *fstest.MapFile {
	return &fstest.MapFile{Mode: fs.ModeSocket | mode, Sys: &syscall.Stat_t{Uid: uid}}
}

func linkTo(target string) *fstest.MapFile {
	return &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(target)}
}

// me is the user that the Manager of the test machines runs as.
const me = 1000

// machine differs from a sound one in one thing; line is the one that speaks of it.
type machine struct {
	name    string
	files   map[string]string
	nodes   fstest.MapFS
	drop    string
	probe   func(*Probe)
	options Options
	line    string
	verdict Verdict
	words   []string // in found or fix
	never   string   // in neither, when it is not empty
}

var machines = []machine{
	{name: "default pool", line: "memory", verdict: Good, words: []string{"pool 16 GiB", "1/4", "allowed 64 GiB by machine memory"}},
	{
		name: "group limit", files: map[string]string{unit + "orbitkv.service/memory.max": fmt.Sprint(8 * gib)},
		line: "memory", verdict: Good, words: []string{"pool 2 GiB", "allowed 8 GiB by /sys/fs/cgroup/system.slice/orbitkv.service/memory.max"},
	},
	{
		name: "a group above is tighter", files: map[string]string{
			unit + "orbitkv.service/memory.max": "max", unit + "memory.max": fmt.Sprint(4 * gib),
		},
		line: "memory", verdict: Good, words: []string{"allowed 4 GiB by /sys/fs/cgroup/system.slice/memory.max"},
	},
	{
		name: "throttled group", files: map[string]string{unit + "orbitkv.service/memory.high": fmt.Sprint(2 * gib)},
		line: "memory", verdict: Good, words: []string{"allowed 2 GiB", "memory.high"},
	},
	{
		name: "pool over the group's limit", files: map[string]string{unit + "orbitkv.service/memory.max": fmt.Sprint(8 * gib)},
		options: Options{PoolBytes: 9 * gib}, line: "memory", verdict: Bad, words: []string{"--pool-size", "configured"},
	},
	{
		name: "pool leaves nothing", files: map[string]string{unit + "orbitkv.service/memory.max": fmt.Sprint(8 * gib)},
		options: Options{PoolBytes: 8*gib - 4096}, line: "memory", verdict: Bad, words: []string{"leave 1 GiB"},
	},
	{
		name: "version 1 in a container", files: map[string]string{
			"proc/self/cgroup":    "4:cpu,memory:/docker/abc/inner\n0::/\n",
			"proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/inner/memory.limit_in_bytes": fmt.Sprint(3 * gib),
		},
		line: "memory", verdict: Good, words: []string{"allowed 3 GiB by /sys/fs/cgroup/memory/inner/memory.limit_in_bytes"},
	},
	{
		name: "version 1 without a limit", files: map[string]string{
			"proc/self/cgroup":                           "4:memory:/\n",
			"proc/self/mountinfo":                        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		},
		line: "memory", verdict: Good, words: []string{"allowed 64 GiB by machine memory"},
	},
	{name: "no proc", drop: "proc/meminfo", line: "memory", verdict: Bad, words: []string{"mount /proc"}},
	{
		name: "others use the memory", files: map[string]string{"proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 1048576 kB\nSwapTotal: 0 kB\n"},
		line: "memory available", verdict: Note, words: []string{"1 GiB", "16 GiB"},
	},

	{name: "no seals", probe: func(p *Probe) { p.MemfdSeals = failing(syscall.EINVAL) }, line: "sealed memfd", verdict: Bad, words: []string{"EINVAL", "3.17"}},
	{name: "no populate", probe: func(p *Probe) { p.PopulateWrite = failing(syscall.EINVAL) }, line: "populate by madvise", verdict: Note, words: []string{"5.14", "EINVAL", "fallocate"}},
	{name: "populate forbidden", probe: func(p *Probe) { p.PopulateWrite = failing(syscall.EPERM) }, line: "populate by madvise", verdict: Bad, words: []string{"EPERM", "no filter"}},
	{name: "no pidfd", probe: func(p *Probe) { p.PidfdOpen = failing(syscall.ENOSYS) }, line: "pidfd_open", verdict: Bad, words: []string{"ENOSYS", "5.3"}},
	{name: "no peer pidfd", probe: func(p *Probe) { p.PeerPidfd = failing(syscall.ENOPROTOOPT) }, line: "SO_PEERPIDFD", verdict: Note, words: []string{"ENOPROTOOPT", "6.5"}},
	{name: "ring forbidden", probe: func(p *Probe) { p.IOUring = failing(syscall.EPERM) }, line: "io_uring", verdict: Note, words: []string{"EPERM", "kernel.io_uring_disabled"}},
	{name: "ring absent", probe: func(p *Probe) { p.IOUring = failing(syscall.ENOSYS) }, line: "io_uring", verdict: Note, words: []string{"ENOSYS", "built without"}},
	{name: "ring without memory", probe: func(p *Probe) { p.IOUring = failing(syscall.ENOMEM) }, line: "io_uring", verdict: Note, words: []string{"ENOMEM", "locked memory"}},

	{name: "locked memory unlimited", line: "locked memory", verdict: Good, words: []string{"unlimited"}},
	{
		name: "locked memory of engines", files: map[string]string{"proc/self/limits": "Max locked memory         8388608              8388608              bytes\n"},
		line: "locked memory", verdict: Note, words: []string{"An engine has a limit of its own", "registered with a GPU"},
	},
	{
		name: "locked memory limited", files: map[string]string{"proc/self/limits": "Max locked memory         8388608              8388608              bytes\n"},
		line: "locked memory", verdict: Note, words: []string{"8 MiB", "LimitMEMLOCK=infinity"},
	},
	{
		name: "locked memory by capability", files: map[string]string{
			"proc/self/limits": "Max locked memory         8388608              8388608              bytes\n",
			"proc/self/status": "CapEff:\t0000000000004000\n",
		},
		line: "locked memory", verdict: Good, words: []string{"CAP_IPC_LOCK"},
	},

	{name: "no swap", line: "swap", verdict: Good, words: []string{"none"}},
	{
		name: "swap", files: map[string]string{"proc/meminfo": "MemTotal: 67108864 kB\nSwapTotal: 2097152 kB\n"},
		line: "swap", verdict: Note, words: []string{"2 GiB", "MemorySwapMax=0"},
	},
	{
		name: "swap forbidden to the group", files: map[string]string{
			"proc/meminfo": "MemTotal: 67108864 kB\nSwapTotal: 2097152 kB\n", unit + "orbitkv.service/memory.swap.max": "0",
		},
		line: "swap", verdict: Good, words: []string{"none for this control group"},
	},
	{
		name: "swap forbidden by version 1", files: map[string]string{
			"proc/meminfo":        "MemTotal: 67108864 kB\nSwapTotal: 2097152 kB\n",
			"proc/self/cgroup":    "4:memory:/a\n",
			"proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":       "1073741824",
			"sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes": "1073741824",
		},
		line: "swap", verdict: Good, words: []string{"none for this control group"},
	},
	{
		name: "version 1 without a swap limit", files: map[string]string{
			"proc/meminfo":        "MemTotal: 67108864 kB\nSwapTotal: 2097152 kB\n",
			"proc/self/cgroup":    "4:memory:/a\n",
			"proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":       "9223372036854771712",
			"sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes": "9223372036854771712",
		},
		line: "swap", verdict: Note, words: []string{"swapoff"},
	},

	{name: "huge pages unused", line: "huge pages 2 MiB", verdict: Note, words: []string{"0 reserved, 0 free"}},
	{name: "huge pages missing", options: Options{HugePages: true, PoolBytes: gib}, line: "huge pages 2 MiB", verdict: Bad, words: []string{"sysctl vm.nr_hugepages=512"}},
	{
		name: "huge pages partly taken", files: map[string]string{huge + "nr_hugepages": "600", huge + "free_hugepages": "500"},
		options: Options{HugePages: true, PoolBytes: gib}, line: "huge pages 2 MiB", verdict: Bad, words: []string{"vm.nr_hugepages=612"},
	},
	{
		name: "huge pages enough", files: map[string]string{huge + "nr_hugepages": "600", huge + "free_hugepages": "512"},
		options: Options{HugePages: true, PoolBytes: gib}, line: "huge pages 2 MiB", verdict: Good, words: []string{"needs 512"},
	},
	{name: "transparent huge pages", line: "transparent huge pages", verdict: Good, words: []string{"advise"}},
	{
		name: "transparent huge pages off", files: map[string]string{shmem: "always within_size advise [never] deny force\n"},
		line: "transparent huge pages", verdict: Note, words: []string{"never", "echo advise"},
	},

	{name: "one node", line: "NUMA nodes", verdict: Good, words: []string{"one"}},
	{
		name: "two nodes", files: map[string]string{
			nodes + "online": "0-1\n", nodes + "node0/meminfo": "Node 0 MemTotal:       33554432 kB\n", nodes + "node1/meminfo": "Node 1 MemFree: 1 kB\n",
		},
		line: "NUMA nodes", verdict: Good, words: []string{"node 0 32 GiB", "node 1 without memory"},
	},
	{name: "nodes nonsense", files: map[string]string{nodes + "online": "0-99999999\n"}, line: "NUMA nodes", verdict: Note, words: []string{"outside"}},

	{name: "no GPU", line: "GPUs", verdict: Good, words: []string{"none of NVIDIA's"}},
	{name: "another vendor's GPU", nodes: gpu("0000:01:00.0", "0x1002", "0x030000", "0"), line: "GPUs", verdict: Good, words: []string{"none"}},
	{name: "NVIDIA's network card", nodes: gpu("0000:01:00.0", "0x10de", "0x020700", "0"), line: "GPUs", verdict: Good, words: []string{"none"}},
	{name: "driver", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"), files: driver("580.65.06"), line: "NVIDIA driver", verdict: Good, words: []string{"580.65.06"}},
	{name: "open driver", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"), files: map[string]string{
		driverVersion: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (builder@host)\nGCC version:  gcc version 12.2.0\n",
	}, line: "NVIDIA driver", verdict: Good, words: []string{"570.86.10"}},
	{name: "old driver", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"), files: driver("550.54.15"), line: "NVIDIA driver", verdict: Note, words: []string{"550.54.15", "release 570", "12.8"}},
	{name: "no driver", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"), line: "NVIDIA driver", verdict: Note, words: []string{"none is loaded", "release 570"}},
	{name: "strange driver", files: map[string]string{driverVersion: "NVRM version: unknown\n"}, line: "NVIDIA driver", verdict: Note, words: []string{"names no release"}},
	{name: "GPU on the only node", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"), line: "GPU 0000:1b:00.0", verdict: Good, words: []string{"only node", "beside it"}},
	{name: "GPU without a node", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "-1"), line: "GPU 0000:1b:00.0", verdict: Good, words: []string{"only node"}},
	{
		name: "GPU beside one of two nodes", nodes: gpu("0000:9b:00.0", "0x10de", "0x030000", "1"), files: twoNodes("0-1"),
		line: "GPU 0000:9b:00.0", verdict: Good, words: []string{"on node 1; the pool on nodes 0, 1"},
	},
	{
		name: "GPU beside a node that the pool may not use", nodes: gpu("0000:9b:00.0", "0x10de", "0x030200", "1"), files: twoNodes("0"),
		line: "GPU 0000:9b:00.0", verdict: Note, words: []string{"on node 1, the pool on node 0", "--membind", "AllowedMemoryNodes="},
	},
	{
		name: "GPU of which two nodes do not know", nodes: gpu("0000:9b:00.0", "0x10de", "0x030200", "-1"), files: twoNodes("0-1"),
		line: "GPU 0000:9b:00.0", verdict: Note, words: []string{"does not name its node", "nvidia-smi topo -m"},
	},
	{
		name: "pinned pool", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"),
		line: "pinned memory", verdict: Good, words: []string{"the pool's 16 GiB", "charged once", "48 GiB of 64 GiB are left (machine memory)"},
	},
	{
		name: "pinned pool that leaves little", nodes: gpu("0000:1b:00.0", "0x10de", "0x030200", "0"), options: Options{PoolBytes: 60 * gib},
		files: map[string]string{unit + "orbitkv.service/memory.max": fmt.Sprint(62 * gib)},
		line:  "pinned memory", verdict: Note, words: []string{"2 GiB of 62 GiB are left", "memory.max", "--pool-size"},
	},

	{name: "nothing left over", line: "/dev/shm", verdict: Good, words: []string{"no files"}},
	{
		name: "left over", files: map[string]string{"dev/shm/a": "12345678", "dev/shm/b": "12345678"},
		line: "/dev/shm", verdict: Note, words: []string{"2 files of 16 B", "none of them"},
	},

	{name: "socket absent", options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Note, words: []string{"--socket: not there"}},
	{name: "socket folder absent", options: sockets("/run/none/s"), line: "socket /run/none/s", verdict: Note, words: []string{"neither is /run/none", "orbitkv serve makes both"}},
	{name: "socket below a file", options: sockets("/proc/meminfo/s"), line: "socket /proc/meminfo/s", verdict: Bad, words: []string{"no folder"}},
	{name: "socket path too long", options: sockets("/" + strings.Repeat("a", 107)), line: "socket /" + strings.Repeat("a", 107), verdict: Bad, words: []string{"108 bytes"}},
	{
		name: "socket live", nodes: fstest.MapFS{"run/orbitkv/s": socketAt(0o600, me)},
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Good, words: []string{"live, mode 0600, user 1000"},
	},
	{
		name: "socket open to others", nodes: fstest.MapFS{"run/orbitkv/s": socketAt(0o666, me)},
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Bad, words: []string{"chmod 0600"},
	},
	{
		name: "socket of another user", nodes: fstest.MapFS{"run/orbitkv/s": socketAt(0o600, 0)},
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Bad, words: []string{"user 0, another user than 1000"},
	},
	{
		name: "socket dead", nodes: fstest.MapFS{"run/orbitkv/s": socketAt(0o600, me)},
		probe:   func(p *Probe) { p.Dial = func(string) error { return syscall.ECONNREFUSED } },
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Note, words: []string{"nobody listens", "orbitkv serve replaces it"},
	},
	{
		name: "socket stuck", nodes: fstest.MapFS{"run/orbitkv/s": socketAt(0o600, me)},
		probe:   func(p *Probe) { p.Dial = func(string) error { return syscall.EAGAIN } },
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Bad, words: []string{"EAGAIN", "queue of connections is full", "kill -CONT"},
	},
	{
		name: "file in the socket's place", files: map[string]string{"run/orbitkv/s": ""},
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Bad, words: []string{"is no socket", "move it if it is yours"}, never: "remove",
	},
	{
		name: "folder in the socket's place", options: sockets("/run/orbitkv"), line: "socket /run/orbitkv", verdict: Bad,
		words: []string{"is no socket", "name a path in this folder"}, never: "remove",
	},
	{
		name: "device in the socket's place", nodes: fstest.MapFS{"dev/null": {Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666}},
		options: sockets("/dev/null"), line: "socket /dev/null", verdict: Bad, words: []string{"is no socket", "choose another path"}, never: "remove",
	},
	{
		name: "link to nothing", nodes: fstest.MapFS{"run/orbitkv/s": linkTo("gone")},
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Bad, words: []string{"leads to no file", "remove the link"},
	},
	{
		name: "link to a dead socket", nodes: fstest.MapFS{"run/orbitkv/s": linkTo("old"), "run/orbitkv/old": socketAt(0o600, me)},
		probe:   func(p *Probe) { p.Dial = func(string) error { return syscall.ECONNREFUSED } },
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Bad, words: []string{"nobody listens", "remove the link"},
	},
	{
		name: "link to a live socket", nodes: fstest.MapFS{"run/orbitkv/s": linkTo("other"), "run/orbitkv/other": socketAt(0o600, me)},
		options: sockets("/run/orbitkv/s"), line: "socket /run/orbitkv/s", verdict: Good, words: []string{"live"},
	},
}

// TestRun shows the doctor each machine and asks for the line that speaks of what is special there.
func TestRun(t *testing.T) {
	for _, c := range slices.Concat(machines, diskMachines) {
		t.Run(c.name, func(t *testing.T) {
			machine, kernel := soundMachine(), soundKernel()
			for path, text := range c.files {
				machine[path] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
			}
			maps.Copy(machine, c.nodes)
			delete(machine, c.drop)
			if c.probe != nil {
				c.probe(kernel)
			}
			o := c.options
			o.FS, o.Probe, o.UID = machine, kernel, me

			l := lineNamed(t, Run(o), c.line)
			if l.Verdict != c.verdict {
				t.Errorf("verdict %s, want %s: %+v", l.Verdict, c.verdict, l)
			}
			for _, word := range c.words {
				if !strings.Contains(l.Found+" -> "+l.Fix, word) {
					t.Errorf("%q is not in %+v", word, l)
				}
			}
			if c.never != "" && strings.Contains(l.Found+l.Fix, c.never) {
				t.Errorf("%q is in %+v", c.never, l)
			}
			if l.Verdict == Bad && l.Fix == "" {
				t.Errorf("a bad line without a fix: %+v", l)
			}
		})
	}
}

// gpu is one device of the PCI bus.
func gpu(address, vendor, class, node string) fstest.MapFS {
	files := fstest.MapFS{}
	for name, text := range map[string]string{"vendor": vendor, "class": class, "numa_node": node} {
		files[pciDevices+"/"+address+"/"+name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return files
}

func driver(release string) map[string]string {
	return map[string]string{driverVersion: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + release + "  Sun Jul 27 07:16:56 UTC 2025\n"}
}

// twoNodes is a machine with two nodes, of which the process may use some.
func twoNodes(allowed string) map[string]string {
	return map[string]string{
		nodes + "online": "0-1\n", nodes + "has_memory": "0-1\n",
		"proc/self/status": "CapEff:\t0000000000000000\nMems_allowed:\t3\nMems_allowed_list:\t" + allowed + "\n",
	}
}

func sockets(path string) Options {
	return Options{Sockets: []Socket{{Source: "--socket", Path: path}}}
}

func failing(errno syscall.Errno) func() error {
	return func() error { return fmt.Errorf("call: %w", errno) }
}

func lineNamed(t *testing.T, lines []Line, name string) Line {
	t.Helper()
	for _, l := range lines {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no line %q in %+v", name, lines)
	return Line{}
}

// TestEmptyMachine shows that a machine where nothing can be read still gives lines and no panic.
func TestEmptyMachine(t *testing.T) {
	lines := Run(Options{FS: fstest.MapFS{}, Probe: soundKernel(), HugePages: true})
	if !AnyBad(lines) {
		t.Fatalf("nothing is bad on an empty machine: %+v", lines)
	}
}

// TestRealProbes runs each probe on this machine: it either works or names an errno, and a socket is told live from dead.
func TestRealProbes(t *testing.T) {
	p := RealProbe()
	for name, try := range map[string]func() error{
		"seals": p.MemfdSeals, "pidfd": p.PidfdOpen, "peer pidfd": p.PeerPidfd, "populate": p.PopulateWrite, "ring": p.IOUring,
	} {
		var errno syscall.Errno
		if err := try(); err != nil && !errors.As(err, &errno) {
			t.Errorf("%s: %v has no errno", name, err)
		}
	}

	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	o := sockets(path)
	o.UID = os.Getuid()
	if l := lineNamed(t, Run(o), "socket "+path); l.Verdict != Good {
		t.Errorf("a live socket: %+v", l)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if l := lineNamed(t, Run(o), "socket "+path); l.Verdict != Note || !strings.Contains(l.Found, "nobody listens") {
		t.Errorf("a dead socket: %+v", l)
	}
}

// TestPrint checks both forms of output against the same lines.
func TestPrint(t *testing.T) {
	lines := []Line{good("a", "fine"), bad("b", "mend < it", "broken"), note("c", "", "so so")}
	var table bytes.Buffer
	if err := Print(&table, lines); err != nil {
		t.Fatal(err)
	}
	want := "good  a  fine\nbad   b  broken\n         -> mend < it\nnote  c  so so\n\n1 good, 1 bad, 1 notes\n"
	if table.String() != want {
		t.Errorf("table\n%s\nwant\n%s", table.String(), want)
	}

	var text bytes.Buffer
	if err := PrintJSON(&text, lines); err != nil {
		t.Fatal(err)
	}
	var back []Line
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || len(back) != len(lines) || back[1] != lines[1] {
		t.Errorf("JSON %s gives %+v, %v", text.String(), back, err)
	}
}
