package vfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

// everywhere runs a test on the disk in memory and on each file system that this machine has or can mount.
func everywhere(t *testing.T, test func(t *testing.T, folder vfs.FS)) {
	t.Run("twin", func(t *testing.T) { test(t, twin.New(1)) })
	t.Run("temporary folder", func(t *testing.T) { test(t, openFolder(t, t.TempDir())) })
	t.Run("tmpfs", func(t *testing.T) { test(t, openFolder(t, mount(t, "tmpfs", "size=64m"))) })
	t.Run("overlay", func(t *testing.T) { test(t, openFolder(t, mountOverlay(t))) })
	t.Run("ext4 on a loop device", func(t *testing.T) { test(t, openFolder(t, mountImage(t, "mkfs.ext4", "-q"))) })
}

func openFolder(t *testing.T, path string) vfs.FS {
	t.Helper()
	folder, err := vfs.NewOS(path)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func mount(t *testing.T, kind, options string) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount(kind, at, kind, 0, options); err != nil {
		t.Skipf("no %s can be mounted here: %v", kind, err)
	}
	unmountAfter(t, at)
	return at
}

func unmountAfter(t *testing.T, at string) {
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// mountImage mounts a file system of its own, made by a program, that lies in a file.
func mountImage(t *testing.T, program ...string) string {
	t.Helper()
	image, at := filepath.Join(t.TempDir(), "image"), t.TempDir()
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 64<<20))
	for _, command := range [][]string{append(program, image), {"mount", "-o", "loop", image, at}} {
		if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no image can be mounted here: %s: %v: %s", command[0], err, bytes.TrimSpace(output))
		}
	}
	unmountAfter(t, at)
	return at
}

func mountOverlay(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return mount(t, "overlay", fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", base, base, base))
}

func open(t *testing.T, folder vfs.FS, name string, mode vfs.Mode) vfs.File {
	t.Helper()
	f, err := folder.Open(name, mode)
	if mode == vfs.Direct && errors.Is(err, unix.EINVAL) {
		t.Skipf("the file system takes no direct I/O: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBytesAreThoseOfAFlatFile compares a file with a slice of bytes over a random script.
func TestBytesAreThoseOfAFlatFile(t *testing.T) {
	for _, mode := range []struct {
		name string
		mode vfs.Mode
		unit int
	}{{"buffered", vfs.Buffered, 1}, {"direct", vfs.Direct, vfs.Align}} {
		t.Run(mode.name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, folder vfs.FS) {
				for seed := range uint64(4) {
					script{t, rand.New(rand.NewPCG(seed, 7)), open(t, folder, fmt.Sprint(seed), mode.mode), mode.unit, nil}.run(seed)
				}
			})
		})
	}
}

type script struct {
	t    *testing.T
	draw *rand.Rand
	file vfs.File
	unit int
	want []byte
}

func (s script) run(seed uint64) {
	for step := range 80 {
		switch s.draw.IntN(8) {
		case 0:
			must(s.t, s.file.Sync())
		case 1:
			s.resize(s.draw.IntN(64) * s.unit)
		case 2, 3:
			s.read(seed, step)
		default:
			s.write()
		}
		if size, err := s.file.Size(); err != nil || size != int64(len(s.want)) {
			s.t.Fatalf("seed %d, step %d: %d bytes, %v; want %d", seed, step, size, err, len(s.want))
		}
	}
}

// buffers cuts one aligned piece of memory into some, of which one may be empty.
func (s *script) buffers(units int) (whole []byte, parts [][]byte) {
	whole = vfs.AlignedBuffer(units * s.unit)
	rest := whole
	for len(rest) > 0 {
		n := s.draw.IntN(len(rest)/s.unit+1) * s.unit
		parts, rest = append(parts, rest[:n]), rest[n:]
	}
	return whole, parts
}

func (s *script) write() {
	offset := s.draw.IntN(64) * s.unit
	whole, parts := s.buffers(s.draw.IntN(40))
	for i := range whole {
		whole[i] = byte(s.draw.Uint32())
	}
	must(s.t, s.file.WriteAt(parts, int64(offset)))
	if len(whole) == 0 {
		return
	}
	if grown := offset + len(whole) - len(s.want); grown > 0 {
		s.want = append(s.want, make([]byte, grown)...)
	}
	copy(s.want[offset:], whole)
}

func (s *script) resize(bytes int) {
	must(s.t, s.file.Truncate(int64(bytes)))
	if bytes < len(s.want) {
		s.want = slices.Clone(s.want[:bytes])
	}
	s.want = append(s.want, make([]byte, bytes-len(s.want))...)
}

func (s *script) read(seed uint64, step int) {
	offset := s.draw.IntN(64) * s.unit
	whole, parts := s.buffers(1 + s.draw.IntN(40))
	err := s.file.ReadAt(parts, int64(offset))
	there := min(len(whole), max(0, len(s.want)-offset))
	if all := there == len(whole); all && err != nil || !all && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.t.Fatalf("seed %d, step %d: a read of %d bytes at %d of %d: %v", seed, step, len(whole), offset, len(s.want), err)
	}
	if there > 0 && !bytes.Equal(whole[:there], s.want[offset:][:there]) {
		s.t.Fatalf("seed %d, step %d: wrong bytes at %d", seed, step, offset)
	}
}

func TestMoreBuffersThanOneCallTakes(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		const count = 2500
		f := open(t, folder, "payload", vfs.Direct)
		from, into := make([][]byte, count), make([][]byte, count)
		for i := range from {
			from[i], into[i] = vfs.AlignedBuffer(vfs.Align), vfs.AlignedBuffer(vfs.Align)
			from[i][i%vfs.Align] = byte(i)
			from[i][0]++
		}
		must(t, f.WriteAt(from, vfs.Align))
		must(t, f.ReadAt(into, vfs.Align))
		for i := range from {
			if !bytes.Equal(from[i], into[i]) {
				t.Fatalf("buffer %d came back with other bytes", i)
			}
		}
	})
}

func TestADirectReadBehindTheEndIsShort(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		f := open(t, folder, "payload", vfs.Direct)
		for _, size := range []int64{0, 700, vfs.Align, vfs.Align + 512, vfs.Align + 700} {
			must(t, f.Truncate(size))
			err := f.ReadAt([][]byte{vfs.AlignedBuffer(vfs.Align), vfs.AlignedBuffer(vfs.Align)}, 0)
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("a file of %d bytes: %v", size, err)
			}
		}
	})
}

func TestDirectRefusesWhatIsNotAligned(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		f := open(t, folder, "payload", vfs.Direct)
		memory := vfs.AlignedBuffer(4 * vfs.Align)
		must(t, f.WriteAt([][]byte{memory}, 0))
		if f.WriteAt([][]byte{memory[:100]}, 0) == nil {
			t.Skip("the file system takes direct I/O of any alignment")
		}
		for name, c := range map[string]struct {
			buffer []byte
			offset int64
		}{"length": {memory[:100], 0}, "offset": {memory[:vfs.Align], 100}, "address": {memory[100:][:vfs.Align], 0}} {
			if vfs.Aligned([][]byte{memory[:vfs.Align], c.buffer}, c.offset) {
				t.Errorf("%s: counts as aligned", name)
			}
			for way, move := range map[string]func([][]byte, int64) error{"read": f.ReadAt, "write": f.WriteAt} {
				if err := move([][]byte{c.buffer}, c.offset); !errors.Is(err, unix.EINVAL) {
					t.Errorf("%s of a bad %s: %v", way, name, err)
				}
			}
		}
		if !vfs.Aligned([][]byte{memory[:vfs.Align], nil, memory[vfs.Align:]}, 4*vfs.Align) {
			t.Error("aligned buffers count as others")
		}
	})
}

func TestNamesComeGoAndReplaceEachOther(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		exists := func(name string, want bool) {
			t.Helper()
			if got, err := folder.Exists(name); err != nil || got != want {
				t.Fatalf("%s exists: %v, %v", name, got, err)
			}
		}
		exists("a", false)
		a, b := open(t, folder, "a", vfs.Buffered), open(t, folder, "b", vfs.Buffered)
		must(t, a.WriteAt([][]byte{[]byte("first")}, 0))
		must(t, b.WriteAt([][]byte{[]byte("other")}, 0))
		must(t, folder.Rename("a", "b"))
		exists("a", false)
		exists("b", true)
		got := make([]byte, 5)
		must(t, open(t, folder, "b", vfs.Buffered).ReadAt([][]byte{got}, 0))
		if string(got) != "first" {
			t.Errorf("b holds %q", got)
		}
		must(t, b.ReadAt([][]byte{got}, 0))
		if string(got) != "other" {
			t.Errorf("the file without a name holds %q", got)
		}
		must(t, folder.SyncFolder())
		must(t, folder.Remove("b"))
		must(t, folder.Remove("b"))
		exists("b", false)
		if err := folder.Rename("a", "b"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a rename of nothing: %v", err)
		}
	})
}

func TestALockHasOneOwnerUntilItCloses(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		owner, other := open(t, folder, "payload", vfs.Direct), open(t, folder, "payload", vfs.Buffered)
		must(t, owner.Lock())
		must(t, owner.Lock())
		if err := other.Lock(); !errors.Is(err, vfs.ErrLocked) {
			t.Fatalf("a second lock: %v", err)
		}
		must(t, owner.Close())
		must(t, other.Lock())
		if err := owner.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a second close: %v", err)
		}
	})
}

func TestAFileKnowsWhetherItHasAName(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		file, err := folder.Open("a", vfs.Buffered)
		must(t, err)
		defer file.Close()
		must(t, folder.Rename("a", "b"))
		if named, err := file.Named(); err != nil || !named {
			t.Errorf("%v, %v: the file is named b", named, err)
		}
		must(t, folder.Remove("b"))
		if named, err := file.Named(); err != nil || named {
			t.Errorf("%v, %v: the file was removed", named, err)
		}
	})
}

func TestAllocateGivesSizeAndRoom(t *testing.T) {
	everywhere(t, func(t *testing.T, folder vfs.FS) {
		f := open(t, folder, "payload", vfs.Direct)
		occupies := func(want int64) {
			t.Helper()
			size, err := f.Size()
			must(t, err)
			allocated, err := f.AllocatedBytes()
			must(t, err)
			if size != want || allocated < want || allocated > want+want/8+64<<10 {
				t.Fatalf("%d bytes that occupy %d, want %d", size, allocated, want)
			}
		}
		before, err := folder.FreeBytes()
		must(t, err)
		written := vfs.AlignedBuffer(vfs.Align)
		written[17] = 1
		must(t, f.WriteAt([][]byte{written}, 8*vfs.Align))
		must(t, f.Allocate(4<<20))
		occupies(4 << 20)
		must(t, f.Allocate(1<<20))
		occupies(1 << 20)
		must(t, f.Truncate(16*vfs.Align))
		occupies(16 * vfs.Align)
		got := vfs.AlignedBuffer(16 * vfs.Align)
		must(t, f.ReadAt([][]byte{got}, 0))
		want := make([]byte, 16*vfs.Align)
		want[8*vfs.Align+17] = 1
		if !bytes.Equal(got, want) {
			t.Error("room was given with other bytes than zeros, or what was written is gone")
		}
		// A file with a hole: what is refused must not fill it.
		must(t, f.Truncate(8<<20))
		if err := f.Allocate(int64(before) + 1<<40); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("more than the disk has: %v", err)
		}
		allocated, err := f.AllocatedBytes()
		must(t, err)
		if allocated > 16*vfs.Align+64<<10 {
			t.Errorf("what was refused left %d bytes taken", allocated)
		}
	})
}
