package session

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheSocketIsTheOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "s")
	s, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v; want a socket with 0600", info.Mode(), err)
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("folder %v, %v", dir, err)
	}
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("a live socket was taken over: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestADeadSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

func TestALockThatStaysIsNamedAndNotWaitedForLong(t *testing.T) {
	open := func(dir string) *os.File {
		folder, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { folder.Close() })
		return folder
	}
	dir := t.TempDir()
	holder := open(dir)
	if err := lock(holder, 0); err != nil {
		t.Fatal(err)
	}
	if err := lock(open(dir), lockLook); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("the error of a held lock: %v", err)
	}
	holder.Close()
	if err := lock(open(dir), lockWait); err != nil {
		t.Errorf("a lock that was given back: %v", err)
	}
}

func TestWhatIsNoSocketIsNeverRemoved(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, dir} {
		if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "left alone") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	if _, err := listen(filepath.Join(file, "s")); err == nil {
		t.Error("a folder that cannot be made was accepted")
	}
	if _, err := listen(filepath.Join(dir, strings.Repeat("x", socketPathMax))); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("a path over the kernel's limit: %v", err)
	}
}

func TestOnlyTheOwnSocketIsRemovedAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err != nil {
		t.Errorf("a socket that is where it was bound: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err == nil || !strings.Contains(err.Error(), "no engine can attach") {
		t.Errorf("a socket that is gone: %v", err)
	}
	next, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("a socket that was replaced: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the next owner's socket was removed: %v", err)
	}
	if err := next.close(); err != nil {
		t.Fatal(err)
	}
}
