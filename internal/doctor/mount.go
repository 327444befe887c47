package doctor

import (
	"strconv"
	"strings"
)

// Mount is one line of mountinfo.
type Mount struct {
	Point, Filesystem, Source, Options string
	Number                             string // of the device, major:minor
}

// MountOf finds the mount that holds a path, which has no symbolic links: the longest mount point above it, and of equal ones the last, which covers the
// others.
func MountOf(mountinfo, path string) (found Mount, ok bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, both := strings.Cut(strings.TrimSpace(line), " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !both || len(fields) < 6 || len(source) < 2 {
			continue
		}
		point := unescape(fields[4])
		if !holds(point, path) || len(point) < len(found.Point) {
			continue
		}
		found, ok = Mount{point, source[0], unescape(source[1]), fields[5], fields[2]}, true
	}
	return found, ok
}

func holds(point, path string) bool {
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
