package doctor

import "testing"

func TestMountOf(t *testing.T) {
	const mounts = `20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:5 / /dev/shm rw - tmpfs shm rw
22 20 8:2 / /mnt/two\040words rw,noatime shared:1 - xfs /dev/sdb rw
23 20 8:3 / /mnt rw - btrfs /dev/sdc rw
24 20 8:4 / /mnt rw - ext4 /dev/sdd rw
`
	for path, want := range map[string]Mount{
		"/home/x":            {"/", "ext4", "/dev/sda1", "rw", "8:1"},
		"/dev/shm/a":         {"/dev/shm", "tmpfs", "shm", "rw", "0:5"},
		"/mnt/two words/dir": {"/mnt/two words", "xfs", "/dev/sdb", "rw,noatime", "8:2"},
		"/mnt":               {"/mnt", "ext4", "/dev/sdd", "rw", "8:4"},
		"/mntx":              {"/", "ext4", "/dev/sda1", "rw", "8:1"},
	} {
		if got, ok := MountOf(mounts, path); !ok || got != want {
			t.Errorf("%s lies on %+v; want %+v", path, got, want)
		}
	}
}
