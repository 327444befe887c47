package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

// StorageOf says where a path lies that is used for something.
func StorageOf(use, path string) (record.Storage, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return record.Storage{}, fmt.Errorf("launch: where is %s: %w", path, err)
	}
	whole, err = filepath.EvalSymlinks(whole)
	if err != nil {
		return record.Storage{}, fmt.Errorf("launch: where is %s: %w", path, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return record.Storage{}, fmt.Errorf("launch: is /proc mounted: %w", err)
	}
	m, ok := mountOf(string(mounts), whole)
	if !ok {
		return record.Storage{}, fmt.Errorf("launch: /proc/self/mountinfo names no mount that holds %s", whole)
	}
	return record.Storage{Use: use, Path: path, Mount: m.point, Filesystem: m.filesystem, Device: m.source, Direct: "not used"}, nil
}

// mount is one line of mountinfo.
type mount struct{ point, filesystem, source, options, number string }

// facts are what findmnt tells of it.
func (m mount) facts() record.Mount {
	return record.Mount{Target: m.point, Source: m.source, FSType: m.filesystem, Options: m.options}
}

// mountOf finds the mount that holds a path: the longest mount point above it, and of equal ones the last, which covers the others.
func mountOf(mountinfo, path string) (found mount, ok bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, both := strings.Cut(strings.TrimSpace(line), " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !both || len(fields) < 6 || len(source) < 2 {
			continue
		}
		point := unescape(fields[4])
		if !below(path, point) || len(point) < len(found.point) {
			continue
		}
		found, ok = mount{point, source[0], unescape(source[1]), fields[5], fields[2]}, true
	}
	return found, ok
}

func below(path, point string) bool {
	return point == "/" || path == point || strings.HasPrefix(path, point+"/")
}

// unescape turns the octal numbers back that mountinfo writes for blanks and backslashes.
func unescape(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// DiskFree returns how many bytes the file system of a path can still give to this user.
func DiskFree(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("launch: what is free in %s: %w", path, err)
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}
