package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// SSD is the tier below the pool that would be used; without a path there is none.
type SSD struct {
	Paths           []string // absolute
	CapacityBytes   uint64   // of all paths together
	DefaultCapacity string   // as a user would write it, where nobody gave a capacity; else empty
	RingOnly        bool     // io_uring is asked for by name: nothing else will do
	NoRing          bool     // threads are asked for by name
}

// payloadFile is the file that the owner of a folder has locked.
const payloadFile = "payload"

// volumeFiles are what a store keeps in its folder. What they occupy is no loss of room: it is reserved for the store already.
var volumeFiles = []string{payloadFile, "index", "index.new", "superblock"}

// ssdLines look at each folder of the SSD tier.
func ssdLines(o Options) (lines []Line) {
	for _, p := range o.SSD.Paths {
		lines = append(lines, folderLines(o, p, o.SSD.CapacityBytes/uint64(len(o.SSD.Paths)))...)
	}
	return lines
}

// folderLines look at one folder, or at the one above it where it will be made.
func folderLines(o Options, folder string, share uint64) []Line {
	name := "SSD " + folder
	at, made := folder, false
	info, err := fs.Stat(o.FS, inside(folder))
	if errors.Is(err, fs.ErrNotExist) {
		at, made = path.Dir(folder), true
		info, err = fs.Stat(o.FS, inside(at))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Line{bad(name, "mount the device, or make the folder: mkdir -p "+at, "neither it nor %s is there", at)}
	case err != nil:
		return []Line{bad(name, "let the Manager's user reach it, or name another folder", "cannot be looked at: %s", cause(err))}
	case !info.IsDir():
		return []Line{bad(name, "name a folder", "%s is no folder", at)}
	}
	known, err := o.Probe.Folder(at)
	if err != nil {
		return []Line{bad(name, "let the Manager's user reach it, or name another folder", "%s", cause(err))}
	}
	device := deviceLine(o.FS, name, known.Path, made)
	switch {
	case device.Verdict == Bad:
		return []Line{device}
	case known.InUse && !made:
		device = note(name, "for a second Manager name another folder: each needs one of its own", "%s; a process, such as a running Manager, has it", device.Found)
	}
	return []Line{device, spaceLine(o, name, folder, known.FreeBytes, share), directLine(name, o.Probe.DirectIO(at))}
}

// deviceLine names file system and device.
func deviceLine(fsys fs.FS, name, resolved string, made bool) Line {
	found := "the kernel names no file system for it"
	mounts, err := fs.ReadFile(fsys, "proc/self/mountinfo")
	m, ok := MountOf(string(mounts), resolved)
	if err != nil || !ok {
		return note(name, "mount /proc", "%s", found)
	}
	disk, rotating := diskOf(fsys, m.Number)
	found = m.Filesystem + " on " + disk
	if rotating {
		found += ", which rotates"
	}
	if made {
		found += "; orbitkv serve makes the folder"
	}
	switch {
	case slices.Contains(kernelKinds, m.Filesystem):
		return bad(name, "name a folder on a disk", "%s: the kernel's own, which holds no files", m.Filesystem)
	case hasWord(m.Options, "ro"):
		return bad(name, "mount it for writing, then restart the Manager: mount -o remount,rw "+m.Point, "%s, mounted read-only", found)
	case m.Filesystem == "tmpfs", m.Filesystem == "ramfs":
		return note(name, "name a folder on a disk: here pages are in memory twice", "%s: memory, not a disk", m.Filesystem)
	case m.Filesystem == "overlay":
		return note(name, "mount a volume of the host there: a container's own layer goes with the container and is slower", "%s", found)
	case strings.HasPrefix(m.Filesystem, "nfs"), m.Filesystem == "cifs", m.Filesystem == "smb3":
		return note(name, "name a folder on a local disk: reads over a network are rarely faster than recomputing", "%s", found)
	case rotating:
		return note(name, "name a folder on a solid-state disk: reads here are slower than recomputing", "%s", found)
	}
	return good(name, "%s", found)
}

// kernelKinds are file systems in which nobody can keep a file.
var kernelKinds = []string{"proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs", "mqueue", "bpf"}

// spaceLine compares what a folder's share of the capacity needs with what its file system gives.
func spaceLine(o Options, name, folder string, free, share uint64) Line {
	name += " space"
	var own uint64
	for _, file := range volumeFiles {
		if info, err := fs.Stat(o.FS, inside(folder)+"/"+file); err == nil {
			own += allocated(info)
		}
	}
	wanted, lower := size(share)+" of --ssd-cache-capacity", "lower"
	if o.SSD.DefaultCapacity != "" {
		wanted, lower = size(share)+" of the default capacity, "+o.SSD.DefaultCapacity, "give a lower"
	}
	found := fmt.Sprintf("%s free for the %s", size(free), wanted)
	if own > 0 {
		found = fmt.Sprintf("%s free, and %s of it reserved already, for the %s", size(free), size(own), wanted)
	}
	if free+own < share {
		return bad(name, fmt.Sprintf("%s --ssd-cache-capacity, or free %s: the Manager reserves it at its start", lower, size(share-free-own)), "%s", found)
	}
	return good(name, "%s", found)
}

func allocated(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Blocks) * 512
	}
	return uint64(info.Size())
}

// directLine tells what an aligned write and read around the page cache said.
func directLine(name string, err error) Line {
	name += " direct I/O"
	switch {
	case err == nil:
		return good(name, "8 KiB were written and came back")
	case errors.Is(err, syscall.EINVAL):
		return bad(name, "name a folder on ext4 or XFS: this file system does not read and write around the page cache", "%s", reason(err))
	case errors.Is(err, fs.ErrPermission):
		return bad(name, "chown it to the Manager's user, or name another folder", "%s", reason(err))
	case errors.Is(err, syscall.EROFS):
		return bad(name, "mount it for writing", "%s", reason(err))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return bad(name, "free some space", "%s", reason(err))
	}
	return bad(name, "look at the disk: dmesg names its faults", "%s", reason(err))
}

// inside is an absolute path as fs.FS wants it.
func inside(absolute string) string {
	if p := strings.TrimPrefix(path.Clean(absolute), "/"); p != "" {
		return p
	}
	return "."
}

// diskOf names a block device by its number, and says whether it rotates.
func diskOf(fsys fs.FS, device string) (text string, rotating bool) {
	if strings.HasPrefix(device, "0:") {
		return "no block device of its own", false
	}
	target, err := fs.ReadLink(fsys, "sys/dev/block/"+device)
	if err != nil {
		return "device " + device, false
	}
	disk := path.Base(target)
	if _, err := fs.Stat(fsys, "sys/dev/block/"+device+"/partition"); err == nil {
		disk = path.Base(path.Dir(target))
	}
	word, err := readWord(fsys, "sys/block/"+disk+"/queue/rotational")
	rotating = err == nil && word == "1"
	switch {
	case strings.Contains(target, "/nvme"):
		return "NVMe disk " + disk, false
	case strings.Contains(target, "/virtio"):
		return "virtual disk " + disk, false // its host knows whether it rotates
	case strings.Contains(target, "/virtual/"):
		return "virtual device " + disk, rotating
	}
	return "disk " + disk, rotating
}
