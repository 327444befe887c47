package twin

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

func TestRulesFailTheNthMatchAndNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		rule Rule
		want string // of six writes to payload, f for one that fails
	}{
		"first":          {Rule{Operation: Write, Err: unix.EIO}, "f....."},
		"third":          {Rule{Operation: Write, Name: "payload", Nth: 3, Err: unix.EIO}, "..f..."},
		"from the third": {Rule{Operation: Write, Name: "pay", Nth: 3, Onward: true, Err: unix.EIO}, "..ffff"},
		"other file":     {Rule{Operation: Write, Name: "index", Err: unix.EIO}, "......"},
		"other way":      {Rule{Operation: Read, Name: "payload", Err: unix.EIO}, "......"},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(1)
			f, other := create(t, d, "payload"), create(t, d, "superblock")
			d.Fail(c.rule)
			got := ""
			for range 6 {
				switch err := f.WriteAt([][]byte{[]byte("x")}, 0); {
				case err == nil:
					got += "."
				case errors.Is(err, unix.EIO) && strings.Contains(err.Error(), "payload"):
					got += "f"
				default:
					t.Fatal(err)
				}
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			d.Heal()
			write(t, f, 0, []byte("x"))
			write(t, other, 0, []byte("x"))
		})
	}
}

func TestEveryOperationCanFail(t *testing.T) {
	d := New(1)
	f := durable(t, d, "file")
	write(t, f, 0, []byte("before"))
	makeDurable(t, f)
	acts := map[Operation]func() error{
		Read:       func() error { return f.ReadAt([][]byte{make([]byte, 6)}, 0) },
		Write:      func() error { return f.WriteAt([][]byte{[]byte("after!")}, 0) },
		Sync:       f.Sync,
		Allocate:   func() error { return f.Allocate(1 << 20) },
		Truncate:   func() error { return f.Truncate(1) },
		Lock:       f.Lock,
		Open:       func() error { _, err := d.Open("new", vfs.Direct); return err },
		Exists:     func() error { _, err := d.Exists("file"); return err },
		Rename:     func() error { return d.Rename("file", "new") },
		Remove:     func() error { return d.Remove("file") },
		SyncFolder: d.SyncFolder,
		FreeBytes:  func() error { _, err := d.FreeBytes(); return err },
	}
	for o := range operations {
		d.Fail(Rule{Operation: o, Onward: true, Err: unix.EROFS})
	}
	for o := range operations {
		if err := acts[o](); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), o.String()) {
			t.Errorf("%v: %v", o, err)
		}
		if begun, _ := d.Count(o); begun == 0 {
			t.Errorf("%v was not counted", o)
		}
	}
	d.Heal()
	if names, got := d.Names(), whole(t, d, "file"); !slices.Equal(names, []string{"file"}) || string(got) != "before" {
		t.Errorf("operations that failed left %v and %q", names, got)
	}
	d.PowerOff()
	for o := range operations {
		if err := acts[o](); !errors.Is(err, ErrPowerOff) {
			t.Errorf("%v without power: %v", o, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Errorf("a file of a disk without power: %v", err)
	}
	if got := whole(t, d.Crash(), "file"); string(got) != "before" {
		t.Errorf("a disk without power holds %q", got)
	}
}

func TestATransferCanBeShort(t *testing.T) {
	d := New(1)
	f := create(t, d, "file")
	write(t, f, 0, []byte("--------"))
	d.Fail(Rule{Operation: Write, Moved: 3})
	d.Fail(Rule{Operation: Write, Nth: 2, Err: unix.EIO, Moved: 5})
	d.Fail(Rule{Operation: Read, Moved: 2})
	if err := f.WriteAt([][]byte{[]byte("ab"), []byte("cd")}, 1); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a short write: %v", err)
	}
	if err := f.WriteAt([][]byte{[]byte("wxyz")}, 4); !errors.Is(err, unix.EIO) {
		t.Errorf("a write that fails: %v", err)
	}
	got := []byte("........")
	if err := f.ReadAt([][]byte{got}, 0); !errors.Is(err, io.ErrUnexpectedEOF) || string(got) != "-a......" {
		t.Errorf("a short read: %q, %v", got, err)
	}
	if got := whole(t, d, "file"); string(got) != "-abcwxyz" {
		t.Errorf("the file holds %q", got)
	}
	if _, bytes := d.Count(Write); bytes != 8+4+4 {
		t.Errorf("%d bytes were asked to be written", bytes)
	}
}

func TestCapacityIsNeverPassed(t *testing.T) {
	d := New(1)
	d.Capacity(4 * blockBytes)
	f := durable(t, d, "a")
	if err := f.Allocate(5 * blockBytes); !errors.Is(err, unix.ENOSPC) || d.Used() != 0 {
		t.Fatalf("more than the disk has: %v, %d bytes used", err, d.Used())
	}
	if err := f.Allocate(2*blockBytes + 1); err != nil || d.Used() != 3*blockBytes {
		t.Fatalf("room: %v, %d bytes used", err, d.Used())
	}
	b := create(t, d, "b")
	if err := b.WriteAt([][]byte{fill('x', 3*blockBytes)}, blockBytes/2); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a write without room: %v", err)
	}
	if got := whole(t, d, "b"); len(got) != blockBytes || got[blockBytes-1] != 'x' || d.Used() != 4*blockBytes {
		t.Errorf("%d bytes were written, %d are used", len(got), d.Used())
	}
	write(t, f, 0, fill('y', 3*blockBytes))
	if free, err := d.FreeBytes(); err != nil || free != 0 {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	if err := d.Remove("b"); err != nil || d.Used() != 4*blockBytes {
		t.Errorf("a file that is open lost its name: %v, %d bytes used", err, d.Used())
	}
	if err := b.Close(); err != nil || d.Used() != 3*blockBytes {
		t.Errorf("it was closed: %v, %d bytes used", err, d.Used())
	}
	if err := f.Truncate(1); err != nil || d.Used() != blockBytes || d.Peak() != 4*blockBytes {
		t.Errorf("a cut: %v, %d bytes used, %d at most", err, d.Used(), d.Peak())
	}
	if err := d.Rename("a", "c"); err != nil || d.Used() != blockBytes {
		t.Errorf("a rename: %v, %d bytes used", err, d.Used())
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	g := create(t, d, "d")
	write(t, g, 0, []byte("x"))
	if err := d.Rename("d", "c"); err != nil || d.Used() != blockBytes {
		t.Errorf("a file was replaced: %v, %d bytes used", err, d.Used())
	}
	if left := d.Crash(); left.capacity != d.capacity {
		t.Error("a crash changed the capacity")
	}
}

func TestAGateHoldsOperationsInTheirOrder(t *testing.T) {
	d := New(1)
	f, other := create(t, d, "payload"), create(t, d, "index")
	write(t, f, 0, []byte("ab"))
	gate := d.Gate(Read, "payload")
	ended := make(chan int)
	begin := func(i int) {
		go func() {
			if err := f.ReadAt([][]byte{make([]byte, 2)}, 0); err != nil {
				t.Error(err)
			}
			ended <- i
		}()
		gate.Wait(i)
	}
	begin(1)
	begin(2)
	begin(3)
	write(t, f, 0, []byte("cd"))
	write(t, other, 0, []byte("ab"))
	if err := other.ReadAt([][]byte{make([]byte, 2)}, 0); err != nil {
		t.Fatal(err)
	}
	gate.Pass(1)
	if i := <-ended; i != 1 || gate.Held() != 2 {
		t.Fatalf("read %d went by, %d are held", i, gate.Held())
	}
	gate.Open()
	if a, b := <-ended, <-ended; a+b != 5 {
		t.Fatalf("reads %d and %d went by", a, b)
	}
	if got := whole(t, d, "payload"); string(got) != "cd" {
		t.Errorf("behind an open gate is %q", got)
	}
}

func TestAGateCanBePassedBeforehand(t *testing.T) {
	d := New(1)
	f := create(t, d, "payload")
	gate := d.Gate(Write, "")
	gate.Pass(2)
	write(t, f, 0, []byte("a"))
	write(t, f, 1, []byte("b"))
	ended := make(chan error)
	go func() { ended <- f.WriteAt([][]byte{[]byte("c")}, 2) }()
	gate.Wait(1)
	d.PowerOff()
	gate.Open()
	if err := <-ended; !errors.Is(err, ErrPowerOff) {
		t.Errorf("a write that was held while the power went: %v", err)
	}
}

func TestDamageOutlivesEverything(t *testing.T) {
	d := New(1)
	f := durable(t, d, "file")
	write(t, f, 0, fill('a', 3*sectorBytes))
	makeDurable(t, f)
	write(t, f, 2*sectorBytes, fill('b', 2*sectorBytes))
	d.Damage("file", 2*sectorBytes+5, 1)
	read := func(left *Disk) string {
		got := whole(t, left, "file")
		return string([]byte{got[0], got[2*sectorBytes], got[2*sectorBytes+5] ^ 0xff})
	}
	if got := read(d); got != "abb" {
		t.Errorf("the disk reads %q", got)
	}
	wantOutcomes(t, outcomes(t, d, read), "aaa", "abb")
	makeDurable(t, f)
	wantOutcomes(t, outcomes(t, d, read), "abb")
}

// TestAHookCanCrashAtEveryWrite is what tests of recovery are made of: one run, and at each step what a power cut there could leave.
func TestAHookCanCrashAtEveryWrite(t *testing.T) {
	d := New(9)
	var events []string
	d.Hook(func(e Event) {
		events = append(events, e.Operation.String()+" "+e.Name)
		if got := whole(t, d.Crash(), "log"); string(got) != "" && string(got) != "one" && string(got) != "two" {
			t.Errorf("a crash before %v of %s left %q", e.Operation, e.Name, got)
		}
	})
	for _, text := range []string{"one", "two"} {
		f := create(t, d, "log.new")
		write(t, f, 0, []byte(text))
		makeDurable(t, f)
		if err := d.Rename("log.new", "log"); err != nil {
			t.Fatal(err)
		}
		if err := d.SyncFolder(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	d.Hook(nil)
	once := []string{"open log.new", "write log.new", "sync log.new", "rename log.new", "sync folder "}
	if want := slices.Concat(once, once); !slices.Equal(events, want) {
		t.Errorf("events %v, want %v", events, want)
	}
	if got := whole(t, d.Crash(), "log"); string(got) != "two" {
		t.Errorf("after all is %q", got)
	}
}
