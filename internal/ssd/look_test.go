package ssd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

// look opens a store that only looks, verifies it and closes it. It returns what was told, sorted.
func look(disk *twin.Disk) (told []string, found VerifyReport, err error) {
	store, err := Open(Config{Volumes: []VolumeConfig{{FS: disk}}, Memory: func(uint64, uint64) []byte { panic("nothing is read into memory") }})
	if err != nil {
		return nil, found, err
	}
	for reason, count := range store.Stats().RecoveryProblems {
		told = append(told, fmt.Sprint(reason, count))
	}
	found, err = store.Verify(context.Background(), 0, func(p Problem) { told = append(told, fmt.Sprint(p.Offset, p.Reason)) }, func(VerifyReport) {})
	slices.Sort(told)
	if closed := store.Close(); err == nil {
		err = closed
	}
	return told, found, err
}

// contents is what every file of a disk holds.
func contents(t *testing.T, disk *twin.Disk) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range disk.Names() {
		files[name] = string(contentOf(t, disk, name))
	}
	return files
}

// written is a disk with four pages, closed. Its log is told of by again.
func written(t *testing.T) (*twin.Disk, *rig, space) {
	t.Helper()
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk})
	s := r.namespace(1, 0, small)
	r.mustWrite(s, 1, 2, 3, 4)
	return disk, r, s
}

func TestAFolderWithoutAnIndexIsNoGoodNews(t *testing.T) {
	for loss, lose := range map[string]func(*twin.Disk) error{
		"missing": func(d *twin.Disk) error { return d.Remove(format.IndexName) },
		"damaged": func(d *twin.Disk) error { d.Damage(format.IndexName, 0, 64); return nil },
	} {
		t.Run(loss, func(t *testing.T) {
			disk, r, _ := written(t)
			r.close()
			if err := lose(disk); err != nil {
				t.Fatal(err)
			}
			before := contents(t, disk)
			for range 2 {
				if _, _, err := look(disk); err == nil || !strings.Contains(err.Error(), "it may hold pages; `orbitkv verify --ssd-cache-path twin-1 --rebuild-index` finds them; a Manager that serves it begins empty") {
					t.Errorf("%v, want what to do", err)
				}
			}
			if !maps.Equal(before, contents(t, disk)) {
				t.Error("the folder was changed")
			}
			var log bytes.Buffer
			openRigIn(t, r.arena, r.disks, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }).close()
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "--rebuild-index") {
				t.Errorf("a full payload began empty, and the log says %s", &log)
			}
		})
	}
}

func TestAFreshFolderWarnsOfNothing(t *testing.T) {
	var log bytes.Buffer
	openRig(t, oneDisk(1), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }).close()
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("a fresh folder was opened: %s", &log)
	}
}

func TestALookMakesNothing(t *testing.T) {
	for _, name := range []string{format.PayloadName, format.SuperblockName} {
		disk, r, _ := written(t)
		r.close()
		if err := disk.Remove(name); err != nil {
			t.Fatal(err)
		}
		before := contents(t, disk)
		if _, _, err := look(disk); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want that %s is missing", err, name)
		}
		if _, _, err := RebuildIndex(context.Background(), disk, func(_, _ uint64) {}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want that %s is missing", err, name)
		}
		if !maps.Equal(before, contents(t, disk)) {
			t.Errorf("the folder without %s was changed", name)
		}
	}
}

// A log that ends in bytes nobody understands tells so each time it is looked at, and a payload that was cut is not made longer.
func TestALookKeepsTheEvidence(t *testing.T) {
	disk, r, _ := written(t)
	crashed := disk.Crash()
	r.close()
	records := bytes.TrimRight(contentOf(t, crashed, format.IndexName), "\x00") // room follows
	crashed.Damage(format.IndexName, int64(len(records)-1)/format.RecordBytes*format.RecordBytes, 8)
	file, err := crashed.Open(format.PayloadName, vfs.Direct)
	if err == nil {
		err = file.Truncate(4 << 20)
	}
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	before := contents(t, crashed)
	told, found, err := look(crashed)
	if err != nil || len(told) != 1 || found.Pages != 3 {
		t.Fatalf("%v, %+v, %v; want a torn log and three pages", told, found, err)
	}
	if again, _, _ := look(crashed); !slices.Equal(told, again) {
		t.Errorf("a second look tells %v, the first told %v", again, told)
	}
	if !maps.Equal(before, contents(t, crashed)) {
		t.Error("the folder was changed")
	}
}

// What is damaged is forgotten, and said to be.
func TestALookForgetsDamagedPages(t *testing.T) {
	disk, r, s := written(t)
	disk.Damage(format.PayloadName, int64(r.offset(s, 2)), 1)
	r.close()
	if told, found, err := look(disk); err != nil || len(told) != 1 || found.Dropped != 1 || found.Pages != 4 {
		t.Errorf("%v, %+v, %v", told, found, err)
	}
	if told, found, err := look(disk); err != nil || len(told) != 0 || found.Pages != 3 {
		t.Errorf("%v, %+v, %v", told, found, err)
	}
}

func TestAVolumeThatIsOffIsNotVerified(t *testing.T) {
	disks := []*twin.Disk{twin.New(1), twin.New(2)}
	r := openRig(t, disks)
	s := r.namespace(1, 0, small)
	r.mustWrite(s, numbers(0, 16)...)
	disks[0].Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Onward: true, Err: unix.EIO})
	for number := 0; r.store.Status()[0].State == "on"; number++ {
		r.read(s, number)
	}
	found, err := r.store.Verify(t.Context(), 0, func(p Problem) { t.Error(p) }, func(VerifyReport) {})
	if err == nil || !strings.Contains(err.Error(), "folder volume 0 is off: not verified") || found.Pages < 4 {
		t.Errorf("%v, %+v; want the other volume's pages and that one is off", err, found)
	}
	r.close()
}
