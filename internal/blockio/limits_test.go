package blockio

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// useEngine writes and reads by an engine and closes it.
func useEngine(t *testing.T, e Engine, f vfs.File) {
	t.Helper()
	defer e.Close()
	wrote := vfs.AlignedBuffer(2 * block)
	fillBlocks(wrote, 50*block)
	if err := <-submit(e, Transfer{File: f, Write: true, Offset: block, Buffers: [][]byte{wrote}}); err != nil {
		t.Fatal(err)
	}
	clear(wrote)
	if err := <-submit(e, Transfer{File: f, Offset: block, Buffers: [][]byte{wrote}}); err != nil {
		t.Fatal(err)
	}
	checkBlocks(t, wrote, 50*block)
}

// checkFallsBack wants the pool where it is not forbidden, an error where io_uring is insisted on, the reason in both, and nothing left open.
func checkFallsBack(t *testing.T, cfg Config, texts ...string) {
	t.Helper()
	open := descriptors(t)
	cfg.Want = WantRing
	engine, _, err := Choose(cfg)
	if engine != nil || err == nil {
		t.Fatalf("io_uring was asked for and Choose answered %v, %v", engine, err)
	}
	cfg.Want = WantAuto
	engine, reason, fallbackErr := Choose(cfg)
	if fallbackErr != nil || engine.Name() != WantPool {
		t.Fatalf("Choose answered %v, %q, %v", engine, reason, fallbackErr)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) || !strings.Contains(reason, text) {
			t.Errorf("%q is missing from the error %q or from the reason %q", text, err, reason)
		}
	}
	useEngine(t, engine, cfg.File)
	if n := descriptors(t); n != open {
		t.Errorf("%d descriptors are open, %d were", n, open)
	}
}

// TestForbiddenRing: a filter answers one of the calls as Docker's does, or as a kernel without io_uring.
func TestForbiddenRing(t *testing.T) {
	for _, c := range []struct {
		name  string
		call  uint32
		errno unix.Errno
		texts []string
	}{
		{"setup EPERM", unix.SYS_IO_URING_SETUP, unix.EPERM, []string{"io_uring_setup", "(EPERM)", "a seccomp filter forbids it", "allow io_uring_setup"}},
		{"setup ENOSYS", unix.SYS_IO_URING_SETUP, unix.ENOSYS, []string{"io_uring_setup", "(ENOSYS)", "Linux 5.6"}},
		{"enter EPERM", unix.SYS_IO_URING_ENTER, unix.EPERM, []string{"io_uring_enter", "(EPERM)", "a seccomp filter forbids it"}},
		{"enter ENOSYS", unix.SYS_IO_URING_ENTER, unix.ENOSYS, []string{"io_uring_enter", "(ENOSYS)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inChild(t, func() error { return forbid(c.call, c.errno) }, func(t *testing.T) {
				if value := disabled(); value != "" && value != "0" {
					t.Skipf("needs the sysctl kernel.io_uring_disabled to be 0, and it is %s", value)
				}
				checkFallsBack(t, Config{File: openDirect(t, 4), Depth: 8}, c.texts...)
			})
		})
	}
}

// TestForbiddenRegistering: memory is then used as it is.
func TestForbiddenRegistering(t *testing.T) {
	inChild(t, func() error { return forbid(unix.SYS_IO_URING_REGISTER, unix.EPERM) }, func(t *testing.T) {
		checkPlain(t, 8*block, "io_uring_register: operation not permitted")
	})
}

// checkPlain wants a ring that reads into memory without having registered any of it, and that says why.
func checkPlain(t *testing.T, bytes int, text string) {
	t.Helper()
	f, memory := openDirect(t, 4), mapMemory(t, bytes)
	engine, reason, err := Choose(Config{Want: WantAuto, File: f, Depth: 8, Memory: [][]byte{memory}})
	if err != nil || engine.Name() != WantRing || !strings.Contains(reason, text) {
		t.Fatalf("Choose answered %v, %q, %v", engine, reason, err)
	}
	defer engine.Close()
	if err := <-submit(engine, Transfer{File: f, Offset: 2 * block, Buffers: [][]byte{memory[:2*block]}}); err != nil {
		t.Fatal(err)
	}
	checkBlocks(t, memory[:2*block], 2*block)
	if s := engine.(*Ring).Stats(); s.RegisteredBytes != 0 || !strings.Contains(s.NotRegistered, text) {
		t.Errorf("%+v", s)
	}
}

func TestLimitOfLockedMemory(t *testing.T) {
	inChild(t, loseLockCapability, func(t *testing.T) {
		limit(t, unix.RLIMIT_MEMLOCK, 7*block)
		checkPlain(t, 8*block, fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes and the memory has %d: raise", 7*block, 8*block))
	})
}

// TestLimitOfLockedMemoryOfAUser: the limit holds for all of a user's rings together, which the kernel alone knows. The first ring keeps what it has.
func TestLimitOfLockedMemoryOfAUser(t *testing.T) {
	inChild(t, loseLockCapability, func(t *testing.T) {
		const bytes = 4 << 20
		limit(t, unix.RLIMIT_MEMLOCK, bytes+bytes/2)
		f := openDirect(t, 4)
		var rings []*Ring
		for i, want := range []string{"", "after 0 registered bytes io_uring_register: cannot allocate memory: raise the limit of locked memory"} {
			memory := mapMemory(t, bytes)
			r := newTestRing(t, RingConfig{Depth: 4, Memory: [][]byte{memory}})
			rings = append(rings, r)
			for range 2 {
				clear(memory[:block])
				if err := <-submit(r, Transfer{File: f, Offset: 3 * block, Buffers: [][]byte{memory[:block]}}); err != nil {
					t.Fatal(err)
				}
				checkBlocks(t, memory[:block], 3*block)
			}
			if s := r.Stats(); i == 0 && s.NotRegistered != "" {
				t.Skipf("needs a user whose other processes lock little memory: %s", s.NotRegistered)
			} else if !strings.HasPrefix(s.NotRegistered, want) || (s.NotRegistered == "") != (want == "") || (s.RegisteredBytes == bytes) != (want == "") {
				t.Errorf("ring %d: %+v", i, s)
			}
		}
		rings[0].Close()
		memory := mapMemory(t, bytes)
		r := newTestRing(t, RingConfig{Depth: 4, Memory: [][]byte{memory}})
		if err := <-submit(r, Transfer{File: f, Buffers: [][]byte{memory[:block]}}); err != nil {
			t.Fatal(err)
		}
		if s := r.Stats(); s.RegisteredBytes != bytes {
			t.Errorf("what a closed ring had registered is still locked: %+v", s)
		}
	})
}

// TestLimitOfOpenFiles: a ring takes two descriptors, and either may be the one that is not to be had.
func TestLimitOfOpenFiles(t *testing.T) {
	for _, free := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d left", free), func(t *testing.T) {
			inChild(t, nothing, func(t *testing.T) {
				cfg := Config{File: openDirect(t, 4), Depth: 8}
				first, err := unix.Dup(0) // the lowest number that is free
				if err == nil {
					err = unix.Close(first)
				}
				if err != nil {
					t.Fatal(err)
				}
				wanted := []string{"eventfd2", "io_uring_setup"}[free]
				var before unix.Rlimit
				if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
					t.Fatal(err)
				}
				if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first + free), Max: before.Max}); err != nil {
					t.Fatal(err)
				}
				cfg.Want = WantRing
				engine, _, refused := Choose(cfg)
				cfg.Want = WantAuto
				fallback, reason, err := Choose(cfg)
				if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
					t.Fatal(err)
				}
				if engine != nil || !errors.Is(refused, unix.EMFILE) || err != nil || fallback.Name() != WantPool {
					t.Fatalf("Choose answered %v, %v and then %v, %q, %v", engine, refused, fallback, reason, err)
				}
				for _, text := range []string{wanted, "(EMFILE)", "raise the limit of open files"} {
					if !strings.Contains(reason, text) {
						t.Errorf("%q is missing from the reason %q", text, reason)
					}
				}
				useEngine(t, fallback, cfg.File)
				again, err := unix.Dup(0)
				if err == nil {
					err = unix.Close(again)
				}
				if again != first || err != nil {
					t.Errorf("the lowest free descriptor was %d and is %d: %v", first, again, err)
				}
			})
		})
	}
}
