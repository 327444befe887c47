package record_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"orbitkv/bench/record"
)

func TestWhatAnSSDTierWritesToIsKeptForEveryStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	d := create(t, path)
	first := record.Volume{
		Backend: "orbitkv", Attempt: 1, File: "ssd/a/payload", FileBytes: 4096, CapacityBytes: 8192, Flags: []string{"02140002"}, Direct: true,
		Findmnt: record.Mount{Target: "/", Source: "/dev/vda", FSType: "ext4", Options: "rw"}, Lsblk: []record.Device{{Name: "vda", Bytes: 1 << 30, Scheduler: "none"}},
	}
	must(t, d.Volume(first), d.Close("part"))
	again, err := record.Reopen(path, manifest(), nil)
	must(t, err)
	second := record.Volume{Backend: "orbitkv", Pass: 1, Attempt: 2, File: "ssd/b/payload"}
	must(t, again.Volume(second), again.Close("complete"))
	if got := load(t, path).Volumes; !reflect.DeepEqual(got, []record.Volume{first, second}) {
		t.Errorf("storage.json has %+v", got)
	}
	refused(t, again.Volume(second), "was closed")
	must(t, os.WriteFile(filepath.Join(path, "storage.json"), []byte("{"), 0o600))
	_, err = record.Load(path)
	refused(t, err, "storage.json is damaged")
	if other := filepath.Join(t.TempDir(), "plain"); len(load(t, create(t, other).Path()).Volumes) != 0 {
		t.Error("a run without an SSD tier tells of volumes")
	}
}
