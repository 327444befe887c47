package launch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

// tieredStack starts a stack whose Manager has an SSD tier in a folder of the test.
func tieredStack(t *testing.T, mode string) *Stack {
	t.Helper()
	folder, _ := setMode(t, mode)
	s := testSpec(folder, record.OrbitKV)
	s.Options.SSDGiB, s.SSDFolder = 2, filepath.Join(folder, "ssd")
	if err := takesDirect(folder); err != nil {
		t.Skipf("%s refuses O_DIRECT: %v", folder, err)
	}
	stack, err := Start(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.Stop(); err != nil {
			t.Error(err)
		}
	})
	return stack
}

// takesDirect says why no file of a folder can be opened around the page cache.
func takesDirect(folder string) error {
	path := filepath.Join(folder, "probe")
	descriptor, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(descriptor)
}

func TestTheKernelTellsHowTheManagerOpenedItsPayload(t *testing.T) {
	for mode, direct := range map[string]bool{modeServe: true, modeBuffered: false} {
		t.Run(mode, func(t *testing.T) {
			v, err := tieredStack(t, mode).Volume()
			if err != nil {
				t.Fatal(err)
			}
			if v.Direct != direct || len(v.Flags) != 1 || filepath.Base(v.File) != payloadFile || v.CapacityBytes != 2<<30 {
				t.Errorf("the volume is %+v; want O_DIRECT %v", v, direct)
			}
			if v.Backend != record.OrbitKV || v.Pass != 1 || v.Attempt != 2 || v.Findmnt.Target == "" || v.Findmnt.FSType == "" || v.Findmnt.Options == "" {
				t.Errorf("the volume is %+v", v)
			}
		})
	}
}

func TestAStackWithoutAPayloadHasNoVolume(t *testing.T) {
	folder, _ := setMode(t, modeServe)
	stack, err := Start(t.Context(), testSpec(folder, record.OrbitKV), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Stop()
	stack.spec.SSDFolder = folder
	if _, err := stack.Volume(); err == nil || !strings.Contains(err.Error(), "payload") {
		t.Errorf("a folder without a payload: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, payloadFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := stack.Volume(); err == nil || !strings.Contains(err.Error(), "it has the file not open") {
		t.Errorf("a payload that the Manager does not have open: %v", err)
	}
	if _, err := (&Stack{}).Volume(); err == nil || !strings.Contains(err.Error(), "no Manager") {
		t.Errorf("a stack without a Manager: %v", err)
	}
}

func TestTheManagersMemoryIsEmptiedByItsVerb(t *testing.T) {
	stack := tieredStack(t, modeServe)
	evicted, leased, err := stack.CleanMemory(t.Context())
	if err != nil || evicted != 7 || leased != 2 {
		t.Errorf("%d pages evicted, %d of them leased, %v; want 7 and 2", evicted, leased, err)
	}
	if err := os.WriteFile(stack.at.socket()+".token", []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := stack.CleanMemory(t.Context()); err == nil || !strings.Contains(err.Error(), "401") || !strings.Contains(err.Error(), "this needs the token") {
		t.Errorf("with another token: %v", err)
	}
	if err := os.Remove(stack.at.socket() + ".token"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := stack.CleanMemory(t.Context()); err == nil || !strings.Contains(err.Error(), "the Manager's token") {
		t.Errorf("without a token: %v", err)
	}
}

// TestDevicesBelow has a partition of a disk, and a volume of two disks.
func TestDevicesBelow(t *testing.T) {
	sys := fstest.MapFS{
		"dev/block/259:1":                               {Data: []byte("../../devices/pci/nvme0n1/nvme0n1p1"), Mode: fs.ModeSymlink},
		"dev/block/253:0":                               {Data: []byte("../../devices/virtual/dm-0"), Mode: fs.ModeSymlink},
		"devices/virtual/dm-0/size":                     {Data: []byte("8\n")},
		"devices/virtual/dm-0/slaves/nvme0n1":           {Data: []byte("../../../pci/nvme0n1"), Mode: fs.ModeSymlink},
		"devices/virtual/dm-0/slaves/sda":               {Data: []byte("../../../pci/sda"), Mode: fs.ModeSymlink},
		"devices/virtual/dm-0/queue/scheduler":          {Data: []byte("none\n")},
		"devices/pci/nvme0n1/nvme0n1p1/partition":       {Data: []byte("1\n")},
		"devices/pci/nvme0n1/nvme0n1p1/size":            {Data: []byte("1000\n")},
		"devices/pci/nvme0n1/size":                      {Data: []byte("2000\n")},
		"devices/pci/nvme0n1/device/model":              {Data: []byte("FAST DISK   \n")},
		"devices/pci/nvme0n1/queue/rotational":          {Data: []byte("0\n")},
		"devices/pci/nvme0n1/queue/scheduler":           {Data: []byte("mq-deadline [kyber] none\n")},
		"devices/pci/nvme0n1/queue/logical_block_size":  {Data: []byte("512\n")},
		"devices/pci/nvme0n1/queue/physical_block_size": {Data: []byte("4096\n")},
		"devices/pci/sda/size":                          {Data: []byte("64\n")},
		"devices/pci/sda/queue/rotational":              {Data: []byte("1\n")},
	}
	partition := record.Device{Name: "nvme0n1p1", Bytes: 512000, Model: "FAST DISK", LogicalSector: 512, PhysicalSector: 4096, Scheduler: "kyber"}
	disk := partition
	disk.Name, disk.Bytes = "nvme0n1", 1024000
	for number, want := range map[string][]record.Device{
		"259:1": {partition, disk},
		"253:0": {{Name: "dm-0", Bytes: 4096}, disk, {Name: "sda", Bytes: 32768, Rotational: true}},
		"0:45":  nil, // overlay
	} {
		if got := devicesBelow(sys, number); !slices.Equal(got, want) {
			t.Errorf("below %s are\n%s\nwant\n%s", number, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
}
