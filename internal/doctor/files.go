package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// leftoversLine reports what lies in /dev/shm. A Manager keeps nothing there, so none of it is OrbitKV's; it counts against
// the memory of the machine all the same, and removing it is the owner's business.
func leftoversLine(fsys fs.FS) Line {
	const name = "/dev/shm"
	entries, err := fs.ReadDir(fsys, "dev/shm")
	if err != nil {
		return note(name, "", "unreadable: %v", err)
	}
	files, bytes := 0, uint64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() {
			files++
			bytes += uint64(info.Size())
		}
	}
	if files == 0 {
		return good(name, "no files")
	}
	return note(name, "look who owns them; OrbitKV keeps no files there and removes none",
		"%d files of %s, none of them OrbitKV's", files, size(bytes))
}

// socketPathBytesMax is what the kernel's socket address holds, without its ending zero.
const socketPathBytesMax = 107

// socketMode is the mode that a Manager gives its socket.
const socketMode fs.FileMode = 0o600

func socketLines(o Options) []Line {
	var lines []Line
	for _, s := range o.Sockets {
		l := socketLine(o, s)
		l.Name = "socket " + s.Path
		l.Found = s.Source + ": " + l.Found
		lines = append(lines, l)
	}
	return lines
}

func socketLine(o Options, s Socket) Line {
	if n := len(s.Path); n > socketPathBytesMax {
		return bad("", "choose a shorter path", "the path has %d bytes, the kernel takes %d", n, socketPathBytesMax)
	}
	inside := strings.TrimPrefix(path.Clean(s.Path), "/")
	link := isLink(o.FS, inside)
	info, err := fs.Stat(o.FS, inside)
	switch {
	case link && err != nil && !errors.Is(err, fs.ErrPermission):
		return bad("", linkFix, "a symbolic link that leads to no file: %s", cause(err))
	case errors.Is(err, fs.ErrNotExist):
		return absentSocket(o, inside)
	case err != nil:
		return bad("", "let the user of engine and Manager reach the path, or choose another", "cannot be looked at: %s", cause(err))
	case info.Mode().Type() != fs.ModeSocket:
		return bad("", otherFix(info.Mode()), "exists and is no socket (%s)", info.Mode())
	}
	facts := "mode " + fmt.Sprintf("%04o", info.Mode().Perm())
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		facts += fmt.Sprintf(", user %d", stat.Uid)
		if int(stat.Uid) != o.UID {
			return bad("", "run engine and Manager as one user, or choose another path", "%s, another user than %d", facts, o.UID)
		}
	}
	if err := o.Probe.Dial(s.Path); err != nil {
		return deadSocket(err, link, facts)
	}
	if info.Mode().Perm() != socketMode {
		return bad("", fmt.Sprintf("chmod %04o: other users could connect", socketMode), "live, %s", facts)
	}
	return good("", "live, %s", facts)
}

// cause leaves out the path of a file system's error: the line names it, and the error has it without the leading slash.
func cause(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return reason(at.Err)
	}
	return reason(err)
}

// linkFix is for links that no client can follow to a Manager: orbitkv serve neither follows nor replaces one.
const linkFix = "remove the link, which orbitkv serve leaves alone, or choose another path"

func isLink(fsys fs.FS, inside string) bool {
	info, err := fs.Lstat(fsys, inside)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// otherFix is what to do about something that is no socket. Only a file may be in the way by mistake; whatever else is there has its use.
func otherFix(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "name a path in this folder, such as orbitkv.sock, or choose another"
	case mode.IsRegular():
		return "move it if it is yours, or choose another path: orbitkv serve leaves it alone"
	}
	return "choose another path: something else uses this one"
}

func deadSocket(err error, link bool, facts string) Line {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) && link:
		return bad("", linkFix, "a symbolic link to a socket that nobody listens on, %s", facts)
	case errors.Is(err, syscall.ECONNREFUSED):
		return note("", "orbitkv serve replaces it", "nobody listens, %s", facts)
	case errors.Is(err, syscall.EAGAIN):
		return bad("", "find its process with `ss -xlp`; let it go on with `kill -CONT` if it is stopped, else end it and start it again",
			"its queue of connections is full and nobody takes one: %s, %s", reason(err), facts)
	}
	return bad("", "see what listens there: a Manager that is stopped or not one at all", "%s, %s", reason(err), facts)
}

func absentSocket(o Options, inside string) Line {
	dir := path.Dir(inside)
	info, err := fs.Stat(o.FS, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return note("", "orbitkv serve makes both, if its user may", "not there, and neither is /%s", dir)
	case err != nil:
		return note("", "", "not there: %s", cause(err))
	case !info.IsDir():
		return bad("", "choose another path", "/%s is no folder", dir)
	}
	return note("", "orbitkv serve makes it", "not there")
}
