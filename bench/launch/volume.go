package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

// payloadFile is the file of a Manager's SSD folder that holds the pages.
const payloadFile = "payload"

// devicesMax bounds the devices below a file system that are told of: a partition, its disk, and what a stack of volumes may have.
const devicesMax = 16

// Volume tells what the Manager's SSD tier writes to, as the kernel tells it of the running Manager: the flags of each of its descriptors of the payload, its
// mount and the disks below. The error says that there is no Manager, or that it has no such file open.
func (k *Stack) Volume() (record.Volume, error) {
	v := record.Volume{Backend: k.spec.Backend, Pass: k.spec.Pass, Attempt: k.spec.Attempt, CapacityBytes: ssdBytes(&k.spec)}
	manager := k.part(record.PartManager)
	if manager == nil {
		return v, errors.New("launch: there is no Manager that could have an SSD tier")
	}
	path, err := filepath.EvalSymlinks(filepath.Join(k.spec.SSDFolder, payloadFile))
	if err != nil {
		return v, fmt.Errorf("launch: the payload of the SSD tier: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return v, fmt.Errorf("launch: the payload of the SSD tier: %w", err)
	}
	v.File, v.FileBytes = path, info.Size()
	if v.Flags, err = flagsOf(filepath.Join("/proc", strconv.FormatInt(manager.pid.Load(), 10)), path); err != nil {
		return v, fmt.Errorf("launch: how the Manager opened %s: %w", path, err)
	}
	v.Direct, err = allDirect(v.Flags)
	if err != nil {
		return v, fmt.Errorf("launch: how the Manager opened %s: %w", path, err)
	}
	m, err := mountHolding(path)
	if err != nil {
		return v, err
	}
	v.Findmnt = record.Mount{Target: m.Point, Source: m.Source, FSType: m.Filesystem, Options: m.Options}
	v.Lsblk = devicesBelow(os.DirFS("/sys"), m.Number)
	return v, nil
}

// part returns the process of a part; nil without one.
func (k *Stack) part(name string) *child {
	for _, c := range k.children {
		if c.part == name {
			return c
		}
	}
	return nil
}

// flagsOf returns the flags of every descriptor that a process has of a file, as its fdinfo gives them.
func flagsOf(process, path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(process, "fd"))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(process, "fd", entry.Name()))
		if err != nil || target != path {
			continue // closed meanwhile, or another file
		}
		text, err := os.ReadFile(filepath.Join(process, "fdinfo", entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if value, found := strings.CutPrefix(line, "flags:"); found {
				all = append(all, strings.TrimSpace(value))
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("it has the file not open")
	}
	slices.Sort(all)
	return all, nil
}

// allDirect says whether every one of some octal flags has O_DIRECT.
func allDirect(flags []string) (bool, error) {
	direct := true
	for _, text := range flags {
		value, err := strconv.ParseInt(text, 8, 64)
		if err != nil {
			return false, err
		}
		direct = direct && value&unix.O_DIRECT != 0
	}
	return direct, nil
}

// devicesBelow tells of a block device and of what lies below it: the disk of a partition, and the parts of a volume. A file system without a block device has
// none, and a fact that the kernel does not tell stays empty.
func devicesBelow(sys fs.FS, number string) []record.Device {
	var all []record.Device
	next := []string{}
	if target, err := fs.ReadLink(sys, "dev/block/"+number); err == nil {
		next = append(next, filepath.Join("dev/block", target))
	}
	for len(next) > 0 && len(all) < devicesMax {
		at := next[0]
		next = next[1:]
		disk := at
		if _, err := fs.Stat(sys, at+"/partition"); err == nil {
			disk = filepath.Dir(at)
			next = append(next, disk)
		}
		d := record.Device{Name: filepath.Base(at), Bytes: 512 * int64(numberIn(sys, at+"/size")), Model: wordsIn(sys, disk+"/device/model")}
		d.Rotational = numberIn(sys, disk+"/queue/rotational") == 1
		d.LogicalSector, d.PhysicalSector = numberIn(sys, disk+"/queue/logical_block_size"), numberIn(sys, disk+"/queue/physical_block_size")
		if _, rest, found := strings.Cut(wordsIn(sys, disk+"/queue/scheduler"), "["); found {
			d.Scheduler, _, _ = strings.Cut(rest, "]")
		}
		all = append(all, d)
		slaves, _ := fs.ReadDir(sys, at+"/slaves") // absent where the device is no volume
		for _, slave := range slaves {
			if target, err := fs.ReadLink(sys, at+"/slaves/"+slave.Name()); err == nil {
				next = append(next, filepath.Join(at, "slaves", target))
			}
		}
	}
	return all
}

func wordsIn(sys fs.FS, path string) string {
	text, _ := fs.ReadFile(sys, path) // a fact that the kernel does not tell
	return strings.TrimSpace(string(text))
}

func numberIn(sys fs.FS, path string) int {
	n, _ := strconv.Atoi(wordsIn(sys, path))
	return n
}
