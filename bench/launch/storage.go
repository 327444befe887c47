package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

// UseSSD is the use of a path whose file system is asked whether it reads and writes past the page cache.
const UseSSD = "ssd"

// StorageOf says where a path lies. Of a path for the SSD tier it also says whether O_DIRECT holds there, by a file that is made and removed.
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
	s, ok := mountOf(string(mounts), whole)
	if !ok {
		return record.Storage{}, fmt.Errorf("launch: /proc/self/mountinfo names no mount that holds %s", whole)
	}
	s.Use, s.Path, s.Direct = use, path, "not used"
	if use == UseSSD {
		s.Direct = "held"
		if err := directIn(whole); err != nil {
			s.Direct = "refused: " + err.Error()
		}
	}
	return s, nil
}

// mountOf finds the mount that holds a path: the longest mount point above it, and of equal ones the last, which covers the others.
func mountOf(mountinfo, path string) (found record.Storage, ok bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, both := strings.Cut(strings.TrimSpace(line), " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !both || len(fields) < 5 || len(source) < 2 {
			continue
		}
		point := unescape(fields[4])
		if !below(path, point) || len(point) < len(found.Mount) {
			continue
		}
		found, ok = record.Storage{Mount: point, Filesystem: source[0], Device: unescape(source[1])}, true
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

// directIn opens a new file with O_DIRECT in a folder, or in that of a file, and lets the kernel confirm the flag.
func directIn(path string) error {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	name := filepath.Join(path, fmt.Sprintf(".orbitkv-direct-%d", os.Getpid()))
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_DIRECT, 0o600)
	if err != nil {
		return errors.Join(err, removeIfThere(name))
	}
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_DIRECT == 0 {
		err = errors.New("the file system takes the flag and does without it")
	}
	return errors.Join(err, file.Close(), os.Remove(name))
}

// removeIfThere removes what an open that failed may have made: some file systems refuse the flag after they have made the file.
func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
