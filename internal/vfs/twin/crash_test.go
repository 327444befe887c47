package twin

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"orbitkv/internal/vfs"
)

func create(t *testing.T, d *Disk, name string) vfs.File {
	t.Helper()
	f, err := d.Open(name, vfs.Buffered)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// durable makes a file whose name a crash cannot take.
func durable(t *testing.T, d *Disk, name string) vfs.File {
	t.Helper()
	f := create(t, d, name)
	if err := d.SyncFolder(); err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f vfs.File, offset int64, p []byte) {
	t.Helper()
	if err := f.WriteAt([][]byte{p}, offset); err != nil {
		t.Fatal(err)
	}
}

func makeDurable(t *testing.T, f vfs.File) {
	t.Helper()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// whole reads a file of a disk; nil when there is none.
func whole(t *testing.T, d *Disk, name string) []byte {
	t.Helper()
	if there, err := d.Exists(name); err != nil || !there {
		return nil
	}
	f := create(t, d, name)
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	if err := f.ReadAt([][]byte{p}, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

func fill(value byte, n int) []byte { return bytes.Repeat([]byte{value}, n) }

// past is what one file held since its last Sync, oldest first: the only contents that a crash may leave of each sector, and its only sizes.
type past struct {
	file     vfs.File
	versions [][]byte
}

func (p *past) now() []byte { return p.versions[len(p.versions)-1] }

// step does something to the file and notes what it holds then.
func (p *past) step(t *testing.T, draw *rand.Rand) {
	t.Helper()
	const sizeMax = 24 * sectorBytes
	next := slices.Clone(p.now())
	var err error
	switch draw.IntN(9) {
	case 0:
		makeDurable(t, p.file)
		p.versions = p.versions[len(p.versions)-1:]
		return
	case 1, 2:
		bytes := draw.IntN(sizeMax)
		if draw.IntN(2) == 0 {
			err = p.file.Allocate(int64(bytes))
		} else {
			err = p.file.Truncate(int64(bytes))
		}
		next = append(next[:min(bytes, len(next))], make([]byte, max(0, bytes-len(next)))...)
	default:
		offset, written := draw.IntN(sizeMax), make([]byte, 1+draw.IntN([]int{4, 20}[draw.IntN(2)]*sectorBytes))
		for i := range written {
			written[i] = byte(draw.Uint32())
		}
		err = p.file.WriteAt([][]byte{written[:len(written)/2], written[len(written)/2:]}, int64(offset))
		next = append(next, make([]byte, max(0, offset+len(written)-len(next)))...)
		copy(next[offset:], written)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.versions = append(p.versions, next)
}

// check says what of a crash's content cannot have come about.
func (p *past) check(got []byte) error {
	if !slices.ContainsFunc(p.versions, func(v []byte) bool { return len(v) == len(got) }) {
		return fmt.Errorf("a size of %d bytes that the file never had", len(got))
	}
	for at := 0; at < len(got); at += sectorBytes {
		sector := got[at:min(at+sectorBytes, len(got))]
		if !slices.ContainsFunc(p.versions, func(v []byte) bool { return bytes.Equal(sector, padded(v, at, len(sector))) }) {
			return fmt.Errorf("sector %d holds what it never held since the last Sync", at/sectorBytes)
		}
	}
	return nil
}

// padded is a range of a version, with zeros behind its end.
func padded(version []byte, at, n int) []byte {
	p := make([]byte, n)
	if at < len(version) {
		copy(p, version[at:])
	}
	return p
}

// TestACrashKeepsWhatWasSyncedAndAnyPartOfTheRest runs random scripts and crashes after each step. What is left must be made of what the
// file held since its last Sync, and so all of it where nothing was changed after.
func TestACrashKeepsWhatWasSyncedAndAnyPartOfTheRest(t *testing.T) {
	lost, kept, partly := 0, 0, 0
	for seed := range uint64(60) {
		d, draw := New(seed), rand.New(rand.NewPCG(seed, 1))
		p := &past{file: durable(t, d, "file"), versions: [][]byte{{}}}
		for step := range 40 {
			p.step(t, draw)
			left := d.Crash()
			got := whole(t, left, "file")
			if err := p.check(got); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			f := create(t, left, "file")
			occupied, err := f.AllocatedBytes()
			if err != nil || left.Used() != occupied || left.Peak() != occupied {
				t.Fatalf("seed %d, step %d: the disk says that %d bytes are used, its file occupies %d, %v", seed, step, left.Used(), occupied, err)
			}
			if err := f.Truncate(int64(len(got) + blockBytes)); err != nil {
				t.Fatal(err)
			}
			if grown := whole(t, left, "file"); !bytes.Equal(grown[len(got):], make([]byte, blockBytes)) {
				t.Fatalf("seed %d, step %d: behind the end of the file lay bytes", seed, step)
			}
			switch {
			case len(p.versions) == 1:
			case bytes.Equal(got, p.now()):
				kept++
			case bytes.Equal(got, p.versions[0]):
				lost++
			default:
				partly++
			}
			if now := whole(t, d, "file"); !bytes.Equal(now, p.now()) {
				t.Fatalf("seed %d, step %d: a crash changed the disk that it is of", seed, step)
			}
		}
	}
	if lost < 50 || kept < 50 || partly < 50 {
		t.Errorf("crashes lost all that was not durable %d times, kept it %d times and a part of it %d times", lost, kept, partly)
	}
}

// outcomes counts what many crashes leave.
func outcomes(t *testing.T, d *Disk, describe func(left *Disk) string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range 300 {
		seen[describe(d.Crash())]++
	}
	return seen
}

func wantOutcomes(t *testing.T, seen map[string]int, want ...string) {
	t.Helper()
	for _, w := range want {
		if seen[w] == 0 {
			t.Errorf("no crash left %q: %v", w, seen)
		}
	}
	for s := range seen {
		if !slices.Contains(want, s) {
			t.Errorf("a crash left %q: %v", s, seen)
		}
	}
}

func TestWritesAreLostTornAndReordered(t *testing.T) {
	d := New(3)
	f := durable(t, d, "file")
	write(t, f, 0, fill('-', 6*sectorBytes))
	makeDurable(t, f)
	write(t, f, 0, fill('a', 2*sectorBytes))
	write(t, f, 4*sectorBytes, fill('b', 2*sectorBytes))
	var want []string
	for mask := range 16 {
		want = append(want, string([]byte{"-a"[mask&1], "-a"[mask>>1&1], '-', '-', "-b"[mask>>2&1], "-b"[mask>>3&1]}))
	}
	wantOutcomes(t, outcomes(t, d, func(left *Disk) string {
		got := whole(t, left, "file")
		return string([]byte{got[0], got[sectorBytes], got[2*sectorBytes], got[3*sectorBytes], got[4*sectorBytes], got[5*sectorBytes]})
	}), want...)
}

func TestASectorHoldsOneOfItsContents(t *testing.T) {
	d := New(4)
	f := durable(t, d, "file")
	write(t, f, 0, []byte("----"))
	makeDurable(t, f)
	write(t, f, 1, []byte("a"))
	write(t, f, 3, []byte("b"))
	wantOutcomes(t, outcomes(t, d, func(left *Disk) string { return string(whole(t, left, "file")) }), "----", "-a--", "-a-b")
}

func TestACutIsLostOrKeptLikeAWriteOfItsSector(t *testing.T) {
	d := New(8)
	f := durable(t, d, "file")
	write(t, f, 0, fill('x', sectorBytes))
	makeDurable(t, f)
	for _, size := range []int64{100, sectorBytes - 1} {
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
	}
	describe := func(left *Disk) string {
		got := whole(t, left, "file")
		return fmt.Sprintf("%d bytes, %d of them written", len(got), bytes.Count(got, []byte("x")))
	}
	wantOutcomes(t, outcomes(t, d, describe), "512 bytes, 512 of them written", "512 bytes, 100 of them written",
		"100 bytes, 100 of them written", "511 bytes, 100 of them written", "511 bytes, 511 of them written")
	makeDurable(t, f)
	wantOutcomes(t, outcomes(t, d, describe), "511 bytes, 100 of them written")
}

func TestNamesAreLostEachAlone(t *testing.T) {
	d := New(5)
	for _, name := range []string{"removed", "replaced", "renamed"} {
		f := create(t, d, name)
		write(t, f, 0, []byte(name))
		makeDurable(t, f)
	}
	if err := d.SyncFolder(); err != nil {
		t.Fatal(err)
	}
	f := create(t, d, "made")
	write(t, f, 0, []byte("made"))
	makeDurable(t, f)
	for _, err := range []error{d.Remove("removed"), d.Rename("renamed", "replaced")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	describe := func(left *Disk) string {
		text := ""
		for _, name := range left.Names() {
			text += fmt.Sprintf("%s=%s ", name, whole(t, left, name))
		}
		return text
	}
	var want []string
	for mask := range 8 {
		text := ""
		if mask&1 != 0 {
			text += "made=made "
		}
		if mask&2 == 0 {
			text += "removed=removed "
		}
		if mask&4 != 0 {
			text += "replaced=renamed "
		} else {
			text += "renamed=renamed replaced=replaced "
		}
		want = append(want, text)
	}
	wantOutcomes(t, outcomes(t, d, describe), want...)
	if err := d.SyncFolder(); err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, outcomes(t, d, describe), "made=made replaced=renamed ")
}

func TestAnUnsyncedFileBehindADurableNameIsEmptyOrLess(t *testing.T) {
	d := New(6)
	f := create(t, d, "file.new")
	write(t, f, 0, fill('x', sectorBytes))
	if err := d.Rename("file.new", "file"); err != nil {
		t.Fatal(err)
	}
	if err := d.SyncFolder(); err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, outcomes(t, d, func(left *Disk) string {
		got := whole(t, left, "file")
		return fmt.Sprintf("%d bytes, %d of them written", len(got), bytes.Count(got, []byte("x")))
	}), "0 bytes, 0 of them written", "512 bytes, 0 of them written", "512 bytes, 512 of them written")
}

func TestASyncCoversWhatCameBeforeItsCall(t *testing.T) {
	d := New(7)
	f := durable(t, d, "file")
	write(t, f, 0, []byte("ab"))
	makeDurable(t, f)
	gate := d.Gate(Sync, "file")
	write(t, f, 0, []byte("A"))
	done := make(chan error)
	go func() { done <- f.Sync() }()
	gate.Wait(1)
	write(t, f, 1, []byte("B"))
	gate.Open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	read := func(left *Disk) string { return string(whole(t, left, "file")) }
	wantOutcomes(t, outcomes(t, d, read), "Ab", "AB")
	makeDurable(t, f)
	wantOutcomes(t, outcomes(t, d, read), "AB")
}

func TestASyncOfTheFolderCoversWhatCameBeforeItsCall(t *testing.T) {
	d := New(7)
	create(t, d, "before")
	gate := d.Gate(SyncFolder, "")
	done := make(chan error)
	go func() { done <- d.SyncFolder() }()
	gate.Wait(1)
	create(t, d, "during")
	gate.Open()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	names := func(left *Disk) string { return fmt.Sprint(left.Names()) }
	wantOutcomes(t, outcomes(t, d, names), "[before]", "[before during]")
	if err := d.SyncFolder(); err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, outcomes(t, d, names), "[before during]")
}

func TestAFailedSyncLosesForGood(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(100) {
		d := New(seed)
		f := durable(t, d, "file")
		write(t, f, 0, fill('-', 2*sectorBytes))
		makeDurable(t, f)
		write(t, f, 0, []byte("a"))
		d.Fail(Rule{Operation: Sync, Err: ErrPowerOff})
		if f.Sync() == nil {
			t.Fatal("the rule was not followed")
		}
		write(t, f, sectorBytes, []byte("b"))
		makeDurable(t, f)
		if now := whole(t, d, "file"); now[0] != 'a' || now[sectorBytes] != 'b' {
			t.Fatalf("seed %d: reads see %c%c", seed, now[0], now[sectorBytes])
		}
		got := whole(t, d.Crash(), "file")
		seen[string([]byte{got[0], got[sectorBytes]})]++
		if again := whole(t, d.Crash(), "file"); !bytes.Equal(got, again) {
			t.Fatalf("seed %d: bytes that are lost came back", seed)
		}
	}
	wantOutcomes(t, seen, "-b", "ab")
}

func TestEqualSeedsCrashAlike(t *testing.T) {
	left := func(seed uint64) string {
		d := New(seed)
		f := durable(t, d, "file")
		for i := range 20 {
			write(t, f, int64(i*sectorBytes), fill(byte('a'+i), sectorBytes))
		}
		return string(whole(t, d.Crash().Crash(), "file")) + string(whole(t, d.Crash(), "file"))
	}
	first, again := left(1), left(1)
	if first != again {
		t.Error("one seed has two outcomes")
	}
	if first == left(2) {
		t.Error("two seeds have one outcome")
	}
}
