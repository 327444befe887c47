package ssd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

func TestAnIndexIsMadeAnewFromThePages(t *testing.T) {
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk})
	s := r.namespace(1, 3, small)
	r.mustWrite(s, 1, 2, 3, 4)
	if _, _, err := RebuildIndex(context.Background(), disk, func(_, _ uint64) {}); err == nil || !strings.Contains(err.Error(), "another process has the folder") {
		t.Errorf("%v, want that the store has the folder", err)
	}
	r.close()
	if err := disk.Remove(format.IndexName); err != nil {
		t.Fatal(err)
	}
	var done, total uint64
	pages, problems, err := RebuildIndex(context.Background(), disk, func(d, of uint64) { done, total = d, of })
	if err != nil || pages != 4 || len(problems) != 0 || done != total || total == 0 {
		t.Fatalf("%d pages, %v, %v; %d of %d bytes", pages, problems, err, done, total)
	}
	again := openRigIn(t, r.arena, r.disks)
	again.mustRead(again.namespace(1, 3, small), 1, 2, 3, 4)
	again.close()
}

func TestARepairThatIsGivenUpLeavesTheFolderAsItWas(t *testing.T) {
	disk := twin.New(1)
	r := openRig(t, []*twin.Disk{disk})
	r.mustWrite(r.namespace(1, 0, small), 1, 2)
	r.close()
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, _, err := RebuildIndex(ctx, disk, func(_, _ uint64) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was given up", err)
	}
	again := openRigIn(t, r.arena, r.disks)
	again.mustRead(again.namespace(1, 0, small), 1, 2)
	again.close()
	if _, _, err := RebuildIndex(context.Background(), twin.New(2), func(_, _ uint64) {}); err == nil || !strings.Contains(err.Error(), "no volume of OrbitKV") {
		t.Errorf("%v, want that an empty folder is none", err)
	}
}
