package launch

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
	"orbitkv/internal/doctor"
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
	m, err := mountHolding(whole)
	if err != nil {
		return record.Storage{}, err
	}
	return record.Storage{Use: use, Path: path, Mount: m.Point, Filesystem: m.Filesystem, Device: m.Source, Direct: "not used"}, nil
}

// mountHolding finds the mount that holds a path without symbolic links.
func mountHolding(path string) (doctor.Mount, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return doctor.Mount{}, fmt.Errorf("launch: is /proc mounted: %w", err)
	}
	m, ok := doctor.MountOf(string(mounts), path)
	if !ok {
		return doctor.Mount{}, fmt.Errorf("launch: /proc/self/mountinfo names no mount that holds %s", path)
	}
	return m, nil
}

// DiskFree returns how many bytes the file system of a path can still give to this user.
func DiskFree(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("launch: what is free in %s: %w", path, err)
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}
