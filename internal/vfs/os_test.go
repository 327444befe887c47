package vfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func folderIn(t *testing.T, path string) *OS {
	t.Helper()
	folder, err := NewOS(path)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestAFolderIsMadeForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "above", "volume")
	folder := folderIn(t, path)
	f, err := folder.Open("payload", Buffered)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: os.ModeDir | 0o700, filepath.Dir(path): os.ModeDir | 0o700, filepath.Join(path, "payload"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if again := folderIn(t, path); again.Name() != path {
		t.Errorf("the folder calls itself %s", again.Name())
	}
}

func TestWhatIsNoFolderOrNoFileIsRefusedWithARemedy(t *testing.T) {
	path := t.TempDir()
	file := filepath.Join(path, "file")
	for _, err := range []error{os.WriteFile(file, []byte("theirs"), 0o600), os.Symlink(file, filepath.Join(path, "link")), os.Mkdir(filepath.Join(path, "folder"), 0o700), unix.Mkfifo(filepath.Join(path, "pipe"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{file, filepath.Join(file, "below")} {
		if _, err := NewOS(bad); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	folder := folderIn(t, path)
	for _, name := range []string{"link", "folder", "pipe", "", ".", "..", "../file", "folder/x", "/etc"} {
		f, err := folder.Open(name, Buffered)
		if err == nil {
			t.Errorf("%q was opened: %v", name, f.Close())
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "theirs" {
		t.Errorf("the file behind the link holds %q, %v", text, err)
	}
	for name, err := range map[string]error{
		"rename from": folder.Rename("../x", "y"), "rename to": folder.Rename("file", "folder/y"), "remove": folder.Remove("../x"),
		"exists": func() error { _, err := folder.Exists("../x"); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "no name of a file") {
			t.Errorf("%s with another folder: %v", name, err)
		}
	}
}

func TestADescriptorIsDirectAndEndsWithTheFile(t *testing.T) {
	folder := folderIn(t, t.TempDir())
	f, err := folder.Open("payload", Direct)
	if errors.Is(err, unix.EINVAL) {
		t.Skipf("the temporary folder takes no direct I/O: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	descriptor, ok := f.Descriptor()
	if !ok {
		t.Fatal("an open file has no descriptor")
	}
	if flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFL, 0); err != nil || flags&unix.O_DIRECT == 0 {
		t.Errorf("flags %#x, %v; want O_DIRECT", flags, err)
	}
	if flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v; want close-on-exec", flags, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.Descriptor(); ok {
		t.Error("a closed file has a descriptor")
	}
	if err := f.Sync(); !errors.Is(err, unix.EBADF) {
		t.Errorf("a closed file syncs: %v", err)
	}
}

// kernel is a preadv or pwritev that stops where it is told to.
type kernel struct {
	t      *testing.T
	answer []int // bytes that a call moves, or less than zero for an errno
	calls  []int64
	bytes  []byte
}

func (k *kernel) move(_ int, buffers [][]byte, offset int64) (int, error) {
	k.calls = append(k.calls, offset)
	n := k.answer[0]
	k.answer = k.answer[1:]
	if n < 0 {
		return -1, unix.Errno(-n)
	}
	if n > bytesOf(buffers) {
		k.t.Fatalf("call %d was to move %d bytes of %d", len(k.calls), n, bytesOf(buffers))
	}
	for left := n; left > 0; buffers = buffers[1:] {
		part := min(left, len(buffers[0]))
		k.bytes = append(k.bytes, buffers[0][:part]...)
		left -= part
	}
	return n, nil
}

func TestATransferGoesOnWhereTheKernelStopped(t *testing.T) {
	eintr, eio, einval := -int(unix.EINTR), -int(unix.EIO), -int(unix.EINVAL)
	for name, c := range map[string]struct {
		direct bool
		answer []int
		calls  []int64
		want   error
	}{
		"whole":                        {true, []int{3 * Align}, []int64{0}, nil},
		"interrupted":                  {true, []int{eintr, eintr, 3 * Align}, []int64{0, 0, 0}, nil},
		"short inside a buffer":        {true, []int{Align / 2, 2*Align + Align/2}, []int64{0, Align / 2}, nil},
		"short at the end of a buffer": {true, []int{Align, eintr, 2 * Align}, []int64{0, Align, Align}, nil},
		"byte by byte":                 {false, []int{1, 1, 1, 3*Align - 3}, []int64{0, 1, 2, 3}, nil},
		"bad block behind the first":   {true, []int{Align, eio}, []int64{0, Align}, unix.EIO},
		"nothing more":                 {true, []int{Align, 0}, []int64{0, Align}, io.ErrShortWrite},
		"the end inside a block":       {true, []int{700, einval}, []int64{0, 700}, io.ErrShortWrite},
		"not direct at all":            {true, []int{einval}, []int64{0}, unix.EINVAL},
		"bad block inside a block":     {true, []int{512, eio}, []int64{0, 512}, unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			whole := bytes.Repeat([]byte("orbitkv"), 3*Align)[:3*Align]
			k := &kernel{t: t, answer: c.answer}
			f := &osFile{path: "payload", direct: c.direct}
			err := f.whole("write", k.move, io.ErrShortWrite, [][]byte{nil, whole[:Align], whole[Align : Align+100], nil, whole[Align+100:]}, 0)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if !bytes.Equal(k.bytes, whole[:len(k.bytes)]) || err == nil && len(k.bytes) != len(whole) {
				t.Error("bytes were lost, moved twice or out of order")
			}
			for i, at := range c.calls {
				if k.calls[i] != at {
					t.Fatalf("calls at %v, want %v", k.calls, c.calls)
				}
			}
			if err != nil && !strings.Contains(err.Error(), "payload") {
				t.Errorf("the error does not name the file: %v", err)
			}
		})
	}
}

func TestAnAlignedBufferIsAlignedAndNoLonger(t *testing.T) {
	for _, n := range []int{0, 1, 100, Align - 1, Align, Align + 1, 3*Align + 8, 1 << 20} {
		b := AlignedBuffer(n)
		if address(b)%Align != 0 || len(b) != n || cap(b) != n {
			t.Errorf("a buffer of %d bytes has %d, room for %d, and lies at %#x", n, len(b), cap(b), address(b))
		}
	}
}
