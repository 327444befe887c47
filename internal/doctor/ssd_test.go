package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// onDisk is a machine with the folder /data of a file system, on a device with a place in the kernel's tree.
func onDisk(kind, options, target string) fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	disk := filepath.Base(target)
	return fstest.MapFS{
		"data": {Mode: fs.ModeDir | 0o700},
		"proc/self/mountinfo": file("30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n" +
			"20 1 254:0 / / rw - ext4 /dev/root rw\n" +
			"21 20 259:1 / /data " + options + " - " + kind + " /dev/x rw\n" +
			"22 20 0:99 / /dat rw - tmpfs none rw\n"),
		"sys/dev/block/259:1":                     linkTo("../../devices/" + target),
		"sys/block/" + disk + "/queue/rotational": file("0\n"),
	}
}

// rotating lets a disk of a machine rotate.
func rotating(machine fstest.MapFS, disk string) fstest.MapFS {
	machine["sys/block/"+disk+"/queue/rotational"] = &fstest.MapFile{Data: []byte("1\n")}
	return machine
}

func on(path string, share uint64) Options {
	return Options{SSD: SSD{Paths: []string{path}, CapacityBytes: share}}
}

const nvme = "pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1"

var diskMachines = []machine{
	{name: "NVMe", nodes: onDisk("ext4", "rw", nvme), options: on("/data", gib), line: "SSD /data", verdict: Good, words: []string{"ext4 on NVMe disk nvme0n1"}},
	{name: "virtual disk", nodes: onDisk("xfs", "rw,noatime", "platform/virtio1/block/vdb"), options: on("/data", gib), line: "SSD /data", verdict: Good, words: []string{"xfs on virtual disk vdb"}},
	{name: "device mapper", nodes: onDisk("xfs", "rw", "virtual/block/dm-0"), options: on("/data", gib), line: "SSD /data", verdict: Good, words: []string{"virtual device dm-0"}},
	{name: "read-only", nodes: onDisk("ext4", "ro,noatime", nvme), options: on("/data", gib), line: "SSD /data", verdict: Bad, words: []string{"read-only", "mount -o remount,rw /data"}},
	{name: "tmpfs", nodes: onDisk("tmpfs", "rw", nvme), options: on("/data", gib), line: "SSD /data", verdict: Note, words: []string{"memory twice"}},
	{name: "overlay", nodes: onDisk("overlay", "rw", nvme), options: on("/data", gib), line: "SSD /data", verdict: Note, words: []string{"volume of the host"}},
	{name: "network", nodes: onDisk("nfs4", "rw", nvme), options: on("/data", gib), line: "SSD /data", verdict: Note, words: []string{"local disk"}},
	{
		name: "rotating disk", nodes: rotating(onDisk("ext4", "rw", "pci0000:00/ata1/host0/block/sda"), "sda"),
		options: on("/data", gib), line: "SSD /data", verdict: Note, words: []string{"disk sda, which rotates"},
	},
	{
		name: "partition", nodes: rotating(onDisk("ext4", "rw", "pci0000:00/ata1/host0/block/sda/sda2"), "sda"),
		files:   map[string]string{"sys/devices/pci0000:00/ata1/host0/block/sda/sda2/partition": "2\n"},
		options: on("/data", gib), line: "SSD /data", verdict: Note, words: []string{"disk sda, which rotates"},
	},
	{name: "below the mount", nodes: onDisk("ext4", "rw", nvme), files: map[string]string{"data/deep/x": ""}, options: on("/data/deep", gib), line: "SSD /data/deep", verdict: Good, words: []string{"nvme0n1"}},
	{name: "beside the mount", nodes: onDisk("ext4", "rw", nvme), files: map[string]string{"database/x": ""}, options: on("/database", gib), line: "SSD /database", verdict: Good, words: []string{"ext4 on device 254:0"}},
	{name: "folder to be made", nodes: onDisk("ext4", "rw", nvme), options: on("/data/new", gib), line: "SSD /data/new", verdict: Good, words: []string{"nvme0n1", "orbitkv serve makes the folder"}},
	{
		name: "folder to be made on a disk that rotates", nodes: rotating(onDisk("ext4", "rw", "virtual/block/loop0"), "loop0"), options: on("/data/new", gib),
		line: "SSD /data/new", verdict: Note, words: []string{"loop0, which rotates; orbitkv serve makes the folder"},
	},
	{name: "the kernel's own", nodes: onDisk("proc", "rw", nvme), options: on("/data/new", gib), line: "SSD /data/new", verdict: Bad, words: []string{"proc", "on a disk"}},
	{
		name: "a Manager has it", nodes: onDisk("ext4", "rw", nvme), probe: func(p *Probe) {
			p.Folder = func(path string) (Folder, error) { return Folder{Path: path, FreeBytes: gib, InUse: true}, nil }
		},
		options: on("/data", gib), line: "SSD /data", verdict: Note, words: []string{"a process, such as a running Manager, has it", "another folder"},
	},
	{
		name: "no capacity given", nodes: onDisk("ext4", "rw", nvme), options: Options{SSD: SSD{Paths: []string{"/data"}, CapacityBytes: 101 * gib, DefaultCapacity: "512gb"}},
		line: "SSD /data space", verdict: Bad, words: []string{"101 GiB of the default capacity, 512gb", "give a lower --ssd-cache-capacity"},
	},
	{name: "folder above missing", options: on("/none/new", gib), line: "SSD /none/new", verdict: Bad, words: []string{"neither it nor /none is there", "mkdir -p /none"}},
	{name: "file in the folder's place", files: map[string]string{"data": ""}, options: on("/data", gib), line: "SSD /data", verdict: Bad, words: []string{"/data is no folder"}},
	{
		name: "unreachable", nodes: onDisk("ext4", "rw", nvme), probe: func(p *Probe) { p.Folder = func(string) (Folder, error) { return Folder{}, syscall.EACCES } },
		options: on("/data", gib), line: "SSD /data", verdict: Bad, words: []string{"EACCES", "let the Manager's user reach it"},
	},

	{name: "enough space", nodes: onDisk("ext4", "rw", nvme), options: on("/data", 100*gib), line: "SSD /data space", verdict: Good, words: []string{"100 GiB free for the 100 GiB"}},
	{name: "too little space", nodes: onDisk("ext4", "rw", nvme), options: on("/data", 101*gib), line: "SSD /data space", verdict: Bad, words: []string{"lower --ssd-cache-capacity, or free 1 GiB"}},
	{
		name: "two folders share", nodes: onDisk("ext4", "rw", nvme), options: Options{SSD: SSD{Paths: []string{"/data", "/"}, CapacityBytes: 200 * gib}},
		line: "SSD / space", verdict: Good, words: []string{"for the 100 GiB"},
	},
	{
		name: "space that is ours already", nodes: fstest.MapFS{"data/payload": {Sys: &syscall.Stat_t{Blocks: 2 * gib / 512}}}, options: on("/data", 102*gib),
		line: "SSD /data space", verdict: Good, words: []string{"2 GiB of it reserved already"},
	},

	{name: "direct I/O", nodes: onDisk("ext4", "rw", nvme), options: on("/data", gib), line: "SSD /data direct I/O", verdict: Good, words: []string{"came back"}},
	{name: "no direct I/O", nodes: onDisk("ext4", "rw", nvme), probe: direct(syscall.EINVAL), options: on("/data", gib), line: "SSD /data direct I/O", verdict: Bad, words: []string{"EINVAL", "ext4 or XFS"}},
	{name: "not writable", nodes: onDisk("ext4", "rw", nvme), probe: direct(syscall.EACCES), options: on("/data", gib), line: "SSD /data direct I/O", verdict: Bad, words: []string{"EACCES", "chown"}},
	{name: "read-only underneath", nodes: onDisk("ext4", "rw", nvme), probe: direct(syscall.EROFS), options: on("/data", gib), line: "SSD /data direct I/O", verdict: Bad, words: []string{"EROFS"}},
	{name: "full", nodes: onDisk("ext4", "rw", nvme), probe: direct(syscall.ENOSPC), options: on("/data", gib), line: "SSD /data direct I/O", verdict: Bad, words: []string{"ENOSPC", "free some space"}},
	{name: "broken disk", nodes: onDisk("ext4", "rw", nvme), probe: direct(syscall.EIO), options: on("/data", gib), line: "SSD /data direct I/O", verdict: Bad, words: []string{"EIO", "dmesg"}},

	{
		name: "ring demanded and forbidden", probe: func(p *Probe) { p.IOUring = failing(syscall.EPERM) }, options: Options{SSD: SSD{RingOnly: true}},
		line: "io_uring", verdict: Bad, words: []string{"--ssd-backend auto", "kernel.io_uring_disabled"},
	},
	{
		name: "ring neither wanted nor allowed", probe: func(p *Probe) { p.IOUring = failing(syscall.EPERM) }, options: Options{SSD: SSD{NoRing: true}},
		line: "io_uring", verdict: Good, words: []string{"not asked for", "EPERM"},
	},
	{
		name: "locked memory of the ring", files: map[string]string{"proc/self/limits": "Max locked memory         8388608              8388608              bytes\n"},
		options: on("/data", gib), line: "locked memory", verdict: Note, words: []string{"io_uring would lock the pool", "more processor time"},
	},
}

func direct(errno syscall.Errno) func(*Probe) {
	return func(p *Probe) { p.DirectIO = func(string) error { return fmt.Errorf("call: %w", errno) } }
}

func TestNoFolderMeansNoLineOfTheSSD(t *testing.T) {
	for _, l := range Run(Options{FS: soundMachine(), Probe: soundKernel()}) {
		if strings.HasPrefix(l.Name, "SSD") {
			t.Errorf("%+v", l)
		}
	}
}

// TestTheDiskProbesLeaveNothing writes and reads for real in a folder of this machine, which may refuse direct I/O by an errno and nothing else.
func TestTheDiskProbesLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	p := RealProbe()
	known, err := p.Folder(link)
	if err != nil || known.Path != dir || known.FreeBytes == 0 {
		t.Errorf("%+v, %v; want %s", known, err, dir)
	}
	if known.InUse {
		t.Error("an empty folder is in use")
	}
	payload, err := os.Create(filepath.Join(dir, payloadFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, held := range []bool{true, false} {
		if err := syscall.Flock(int(payload.Fd()), map[bool]int{true: syscall.LOCK_EX, false: syscall.LOCK_UN}[held]); err != nil {
			t.Fatal(err)
		}
		if known, err := p.Folder(dir); err != nil || known.InUse != held {
			t.Errorf("%+v, %v; the lock is held: %v", known, err, held)
		}
	}
	if err := errors.Join(payload.Close(), os.Remove(payload.Name())); err != nil {
		t.Fatal(err)
	}
	if err := p.DirectIO(dir); err != nil && !strings.Contains(reason(err), "EINVAL") {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v are left, %v", entries, err)
	}
	if err := p.DirectIO(filepath.Join(dir, "absent")); err == nil {
		t.Error("a folder that is not there was written to")
	}
	var out bytes.Buffer
	if err := Print(&out, Run(Options{SSD: SSD{Paths: []string{link}, CapacityBytes: 1 << 20}})); err != nil || !strings.Contains(out.String(), "SSD "+link+" direct I/O") {
		t.Errorf("%v, %s", err, &out)
	}
}
