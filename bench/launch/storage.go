package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
	s, ok := mountOf(string(mounts), whole)
	if !ok {
		return record.Storage{}, fmt.Errorf("launch: /proc/self/mountinfo names no mount that holds %s", whole)
	}
	s.Use, s.Path, s.Direct = use, path, "not used"
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
