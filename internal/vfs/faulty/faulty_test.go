package faulty

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

func parse(t *testing.T, spec string) Rules {
	t.Helper()
	rules, err := Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func open(t *testing.T, fs vfs.FS, name string, mode vfs.Mode) vfs.File {
	t.Helper()
	f, err := fs.Open(name, mode)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// blocks are aligned buffers of so many blocks each.
func blocks(counts ...int) (buffers [][]byte) {
	for i, n := range counts {
		b := vfs.AlignedBuffer(n * vfs.Align)
		for j := range b {
			b[j] = byte(1 + i + j)
		}
		buffers = append(buffers, b)
	}
	return buffers
}

func TestABadSpecSaysWhatIsWrongAndWhatIsPossible(t *testing.T) {
	for spec, want := range map[string]string{
		"read-rat=50mb":               `"read-rat" is no fault`,
		"read-rate":                   "read-rate needs a value",
		"read-rate=0":                 "a rate of 0",
		"read-rate=50xb":              `"xb"`,
		"read-eio=0":                  `"0" is no number from 1`,
		"read-eio=-1":                 `"-1" is no number from 1`,
		"read-flip=often":             `"often" is no number`,
		"write-einval=1":              "write-einval takes no value",
		"stall-reads=1":               "stall-reads takes no value",
		"write-enospc-after=":         "size",
		":read-eio=1":                 "no file is named",
		"read-eio=1,":                 `"" is no fault`,
		"read-eio=1,write-eio=2,Read": `"Read" is no fault`,
		"read-eio=1, read-eio=2":      "stands there twice",
	} {
		_, err := Parse(spec)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "fault injection") {
			t.Errorf("%q: %v; want %q in it", spec, err, want)
			continue
		}
		for _, k := range kinds {
			if !strings.Contains(err.Error(), k.name) {
				t.Errorf("%q: the error does not say that %s is possible", spec, k.name)
			}
		}
	}
}

func TestASpecIsKeptAndNoSpecIsNoFault(t *testing.T) {
	const all = "read-rate=50mb, write-rate=1.5gib,payload:read-eio=3,read-eio=5,write-eio=1,read-flip=7,write-enospc-after=0,write-einval,index:stall-reads"
	if got := parse(t, all).String(); got != all {
		t.Errorf("the rules call themselves %q", got)
	}
	disk := twin.New(1)
	if Wrap(disk, parse(t, "")) != vfs.FS(disk) {
		t.Error("a folder without faults is wrapped")
	}
	f := open(t, Wrap(disk, parse(t, "read-eio=1000")), "payload", vfs.Direct)
	if _, ok := f.Descriptor(); ok {
		t.Error("transfers can go round the faults by a descriptor")
	}
}

func TestEveryNthReadOrWriteFails(t *testing.T) {
	fs := Wrap(twin.New(1), parse(t, "read-eio=4,write-eio=2,log:read-eio=3"))
	payload, superblock, log := open(t, fs, "payload", vfs.Direct), open(t, fs, "superblock", vfs.Buffered), open(t, fs, "log", vfs.Buffered)
	mark := func(act func() error) string {
		switch err := act(); {
		case err == nil:
			return "."
		case errors.Is(err, unix.EIO) && strings.Contains(err.Error(), "fault injection"):
			return "f"
		default:
			t.Fatal(err)
			return ""
		}
	}
	got := ""
	for range 3 {
		for _, f := range []vfs.File{payload, superblock, log} {
			got += mark(func() error { return f.WriteAt(blocks(1), 0) })
		}
	}
	if want := ".f.f.f.f."; got != want {
		t.Errorf("writes of the folder: %s, want %s", got, want)
	}
	got = ""
	for range 8 {
		got += mark(func() error { return payload.ReadAt(blocks(1), 0) })
	}
	if want := "...f...f"; got != want {
		t.Errorf("reads of the payload: %s, want %s", got, want)
	}
	got = ""
	for range 6 {
		got += mark(func() error { return log.ReadAt(blocks(1), 0) })
	}
	if want := "..f..f"; got != want {
		t.Errorf("reads of the log: %s, want %s", got, want)
	}
}

func TestAFailedWriteWritesNothing(t *testing.T) {
	for spec, want := range map[string]error{"write-eio=1": unix.EIO, "write-einval": unix.EINVAL, "write-enospc-after=4095": unix.ENOSPC} {
		disk := twin.New(1)
		f := open(t, Wrap(disk, parse(t, spec)), "payload", vfs.Direct)
		if err := f.WriteAt(blocks(1), 0); !errors.Is(err, want) || !strings.Contains(err.Error(), "payload") {
			t.Errorf("%s: %v", spec, err)
		}
		if size, err := f.Size(); err != nil || size != 0 {
			t.Errorf("%s: %d bytes were written, %v", spec, size, err)
		}
	}
}

func TestEinvalIsOfDirectFilesAlone(t *testing.T) {
	fs := Wrap(twin.New(1), parse(t, "write-einval"))
	if err := open(t, fs, "index", vfs.Buffered).WriteAt(blocks(1), 0); err != nil {
		t.Error(err)
	}
}

func TestADiskIsFullAfterSoManyBytes(t *testing.T) {
	fs := Wrap(twin.New(1), parse(t, "write-enospc-after=20kib"))
	a, b := open(t, fs, "a", vfs.Direct), open(t, fs, "b", vfs.Direct)
	for i, c := range []struct {
		file   vfs.File
		blocks int
		fits   bool
	}{{a, 2, true}, {b, 2, true}, {a, 2, false}, {b, 1, true}, {b, 1, false}} {
		err := c.file.WriteAt(blocks(c.blocks), 0)
		if c.fits && err != nil || !c.fits && !errors.Is(err, unix.ENOSPC) {
			t.Errorf("write %d: %v", i, err)
		}
	}
}

func TestEveryNthReadHasOneWrongByte(t *testing.T) {
	f := open(t, Wrap(twin.New(1), parse(t, "read-flip=2")), "payload", vfs.Direct)
	want := blocks(1, 2)
	if err := f.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		got := [][]byte{vfs.AlignedBuffer(vfs.Align), vfs.AlignedBuffer(2 * vfs.Align)}
		if err := f.ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		wrong := 0
		for j := range got {
			for k := range got[j] {
				if got[j][k] != want[j][k] {
					wrong++
				}
			}
		}
		if wrong != i%2 {
			t.Errorf("read %d has %d wrong bytes", i, wrong)
		}
	}
	if again := open(t, Wrap(twin.New(1), parse(t, "read-flip=1")), "empty", vfs.Direct); again.ReadAt(nil, 0) != nil {
		t.Error("nothing could not be read")
	}
}

// TestRatesAreThoseOfOneDisk moves bytes by several goroutines in the bubble's own time.
func TestRatesAreThoseOfOneDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := Wrap(twin.New(1), parse(t, "read-rate=4mib,write-rate=1mib,slow:write-rate=512kib"))
		a, b, slow := open(t, fs, "a", vfs.Direct), open(t, fs, "b", vfs.Direct), open(t, fs, "slow", vfs.Direct)
		took := func(acts ...func() error) time.Duration {
			began, ended := time.Now(), make(chan error)
			for _, act := range acts {
				go func() { ended <- act() }()
			}
			for range acts {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			return time.Since(began)
		}
		write := func(f vfs.File, n int) func() error { return func() error { return f.WriteAt(blocks(n), 0) } }
		read := func(f vfs.File, n int) func() error { return func() error { return f.ReadAt(blocks(n), 0) } }
		for _, c := range []struct {
			name      string
			got, want time.Duration
		}{
			{"one write of 1 MiB", took(write(a, 256)), time.Second},
			{"two writes of two files", took(write(a, 128), write(b, 256)), 3 * time.Second / 2},
			{"a write of the slower file", took(write(slow, 128)), time.Second},
			{"reads beside writes", took(read(a, 128), read(b, 256), write(a, 64)), 3 * time.Second / 8},
			{"after a pause nothing is due", took(func() error { <-time.After(time.Hour); return nil }, write(a, 256)), time.Hour},
			{"but no more is allowed", took(write(a, 256)), time.Second},
		} {
			if c.got < c.want-time.Microsecond || c.got > c.want+time.Microsecond {
				t.Errorf("%s took %v, want %v", c.name, c.got, c.want)
			}
		}
	})
}

func TestReadsStallAsLongAsTheFileIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := twin.New(1)
		fs := Wrap(disk, parse(t, "payload:stall-reads"))
		payload, index := open(t, fs, "payload", vfs.Direct), open(t, fs, "index", vfs.Buffered)
		want := blocks(1)
		if err := payload.WriteAt(want, 0); err != nil {
			t.Fatal(err)
		}
		if err := payload.ReadAt(blocks(1), 0); err != nil {
			t.Fatal(err)
		}
		if err := open(t, disk, StallName, vfs.Buffered).Close(); err != nil {
			t.Fatal(err)
		}
		got, ended := blocks(1), make(chan error, 1)
		clear(got[0])
		go func() { ended <- payload.ReadAt(got, 0) }()
		<-time.After(time.Hour) // of the bubble's own time
		if len(ended) != 0 {
			t.Fatal("a read went by")
		}
		if err := errors.Join(payload.WriteAt(want, vfs.Align), index.WriteAt(want, 0), index.ReadAt(blocks(1), 0)); err != nil {
			t.Error(err)
		}
		if err := disk.Remove(StallName); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil || !bytes.Equal(got[0], want[0]) {
			t.Errorf("the read that was held: %v", err)
		}
	})
}
