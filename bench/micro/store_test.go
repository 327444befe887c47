package micro

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/faulty"
)

// diskFolder returns a folder on a disk that takes O_DIRECT, or skips.
func diskFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	descriptor, err := unix.Open(filepath.Join(folder, "probe"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600)
	if err == nil {
		err = errors.Join(unix.Close(descriptor), os.Remove(filepath.Join(folder, "probe")))
	}
	if err != nil {
		t.Skipf("no file here can be opened around the page cache: %v", err)
	}
	return folder
}

const (
	testPage     = 64 << 10
	testCapacity = 32 << 20
)

func testTier(t *testing.T, engine, rules string) *tier {
	t.Helper()
	parsed, err := faulty.Parse(rules)
	if err != nil {
		t.Fatal(err)
	}
	made, err := openTier(tierOptions{folder: diskFolder(t), engine: engine, page: testPage, capacity: testCapacity, slots: 4, rules: parsed})
	if err != nil && engine == "uring" {
		t.Skipf("io_uring cannot be used here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(made.folder); err != nil || len(left) != 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	})
	return made
}

func TestAFullStoreGivesBackEveryByte(t *testing.T) {
	for _, engine := range storeEngines {
		t.Run(engine, func(t *testing.T) {
			tier := testTier(t, engine, "")
			if err := tier.fillUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			pages, err := tier.check(t.Context())
			if err != nil || pages == 0 || uint64(pages) == tier.next.Load() {
				t.Errorf("%d pages of %d are right, %v: want some, and others that left", pages, tier.next.Load(), err)
			}
			if found, err := tier.cached(); found || err != nil {
				t.Errorf("in the page cache: %v, %v", found, err)
			}
			if _, err := os.Stat(filepath.Join(tier.dir, "payload")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the payload has a name: %v", err)
			}
		})
	}
}

// TestAWrongByteIsFound changes one byte of a page that came back, in the stamp of its first block, in its midst and at its end.
func TestAWrongByteIsFound(t *testing.T) {
	tier := testTier(t, "pool", "")
	if _, err := tier.write(1); err != nil {
		t.Fatal(err)
	}
	if _, err := tier.read(2, 0); err != nil {
		t.Fatal(err)
	}
	if err := tier.whole(2, 0); err != nil {
		t.Errorf("a page as it was written: %v", err)
	}
	for _, at := range []int{0, 9, testPage/2 + stampBytes, testPage - 1} {
		tier.of(2)[at] ^= 1
		if err := tier.whole(2, 0); err == nil || !strings.Contains(err.Error(), "wrong bytes") {
			t.Errorf("byte %d is wrong: %v", at, err)
		}
		tier.of(2)[at] ^= 1
	}
	if tier.stamped(2, 1) {
		t.Error("page 0 passes for page 1")
	}
	tier.stamp(3, 3)
	ends := make(chan ssd.WriteResult)
	if !tier.store.Write(ssd.Write{Namespace: tier.namespace, Key: key(9), Parts: tier.parts(3), Done: func(r ssd.WriteResult) { ends <- r }}) || !(<-ends).OK {
		t.Fatal("a page under another's key was not written")
	}
	if _, err := tier.read(2, 9); err == nil || !strings.Contains(err.Error(), "another page came back for page 9") {
		t.Errorf("a page that is another's: %v", err)
	}
	if _, err := tier.read(2, 7); err == nil || !strings.Contains(err.Error(), "did not take the read of page 7") {
		t.Errorf("a page that is not stored: %v", err)
	}
}

func TestADiskThatFlipsBytesIsNoMeasurement(t *testing.T) {
	tier := testTier(t, "pool", "payload:read-flip=2") // the first read is the trial of the folder
	if _, err := tier.write(0); err != nil {
		t.Fatal(err)
	}
	if _, err := tier.read(0, 0); err == nil || !strings.Contains(err.Error(), "page 0 was not read: digest") {
		t.Errorf("a flipped byte: %v", err)
	}
	if _, err := tier.check(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing is stored") {
		t.Errorf("without a page: %v", err)
	}
}

func TestPagesThatAreNotRecoveredAreNoRecovery(t *testing.T) {
	disk, err := vfs.NewOS(diskFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	o := SSDOptions{RecoveryPages: recoveryPagesMin}
	if _, err := o.reopen(disk, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := o.reopen(disk, 5); err == nil || !strings.Contains(err.Error(), "0 pages were recovered of 5") {
		t.Errorf("an empty store in the place of one with 5 pages: %v", err)
	}
}

// TestTheSectionsOfTheStore runs each of them as shortly as they can be, in both orders.
func TestTheSectionsOfTheStore(t *testing.T) {
	folder, path := diskFolder(t), filepath.Join(t.TempDir(), "figures.jsonl")
	o := SSDOptions{
		Options: Options{Rounds: 2, RowTime: 1, Only: regexp.MustCompile("store|backlog|recovery"), JSONPath: path, Progress: io.Discard},
		Path:    folder, FileBytes: testCapacity, Blocks: []uint64{diskAlign}, Depths: []int{1}, Pages: []uint64{testPage}, Engines: []string{"pool"},
		Throttle: 64 << 20, RecoveryPages: 2000,
	}
	var out strings.Builder
	if err := SSD(context.Background(), o, &out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &report{round: 2}
	for line := range strings.Lines(string(text)) {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatal(err)
		}
		r.figures = append(r.figures, f)
	}
	firsts := map[int]string{}
	for _, f := range r.figures {
		if strings.Contains(f.Name, "64 KiB") && firsts[f.Round] == "" && !strings.Contains(f.Name, "demand") && !strings.Contains(f.Name, "written") {
			firsts[f.Round] = f.Name
		}
	}
	if firsts[1] != "raw write 64 KiB" || firsts[2] != "store write 64 KiB, pool" {
		t.Errorf("the rounds begin with %v: the second one is to be in the opposite order", firsts)
	}
	joined := r.medians()
	for name, wantCeiling := range map[string]string{
		"raw write 64 KiB": "", "raw read 64 KiB": "", "raw read 64 KiB: processor time": "",
		"store write 64 KiB, pool": "raw write 64 KiB", "store read 64 KiB, pool": "raw read 64 KiB", "store read 64 KiB, pool: processor time": "raw read 64 KiB: processor time",
		"store write 64 KiB, pool: bytes on the device for the pages'": "",
		"store 64 KiB, pool: growth of the machine's page cache":       "",
		"demand read 64 KiB, disk of 64 MiB/s, behind a write backlog": "demand read 64 KiB, disk of 64 MiB/s, no writes",
		"written meanwhile in pages of 64 KiB":                         "",
		"recovery of 2000 pages after a crash, from the log":           "",
		"recovery of 2000 pages after a stop, from its snapshot":       "",
	} {
		found := false
		for _, f := range joined {
			if f.Name != name {
				continue
			}
			found = true
			ceiling, share := of(f, joined)
			if f.N == 0 && !strings.HasPrefix(name, "written") || !strings.HasPrefix(ceiling, wantCeiling) || (wantCeiling != "") != (share != "-") {
				t.Errorf("%s: n %d, ceiling %q, share %q; want %q", name, f.N, ceiling, share, wantCeiling)
			}
		}
		if !found {
			t.Errorf("there is no figure %s:\n%s", name, out.String())
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
