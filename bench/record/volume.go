package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// volumesMax bounds the starts that storage.json tells of: two passes in every attempt.
const volumesMax = 2 * AttemptsMax

// Volume is what the SSD tier of one start writes to: one entry of storage.json.
type Volume struct {
	Backend       string   `json:"backend"`
	Pass          int      `json:"pass"`
	Attempt       int      `json:"attempt"`
	File          string   `json:"file"` // of the payload, in the output directory; it goes with the start
	FileBytes     int64    `json:"file_bytes"`
	CapacityBytes int64    `json:"capacity_bytes"`
	Flags         []string `json:"flags"`  // of each descriptor that the Manager has of the file, octal, as /proc/PID/fdinfo tells them
	Direct        bool     `json:"direct"` // all of them have O_DIRECT
	Findmnt       Mount    `json:"findmnt"`
	Lsblk         []Device `json:"lsblk"` // from the device of the file system down to the disks; empty where it has none
}

// Mount is the mount that holds a path, by the names that findmnt has for its facts.
type Mount struct {
	Target  string `json:"target"`
	Source  string `json:"source"`
	FSType  string `json:"fstype"`
	Options string `json:"options"`
}

// Device is one block device, by the names that lsblk has for its facts.
type Device struct {
	Name           string `json:"name"`
	Bytes          int64  `json:"size"`
	Model          string `json:"model,omitempty"`
	Rotational     bool   `json:"rota"`
	LogicalSector  int    `json:"log_sec,omitempty"` // bytes of a logical sector
	PhysicalSector int    `json:"phy_sec,omitempty"` // of a physical one
	Scheduler      string `json:"sched,omitempty"`
}

// volumes is storage.json.
type volumes struct {
	Format  int      `json:"format"`
	Volumes []Volume `json:"volumes"`
}

// Volume keeps what the SSD tier of a start writes to. Whoever reads storage.json sees it whole.
func (d *Dir) Volume(v Volume) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s: %w", d.path, ErrClosed)
	}
	kept, err := readVolumes(d.path)
	if err != nil {
		return err
	}
	if len(kept) >= volumesMax {
		return fmt.Errorf("%s tells of %d starts, which is the bound; begin a new run", d.Path(storageFile), len(kept))
	}
	text, err := json.MarshalIndent(volumes{Format, append(slices.Clone(kept), v)}, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", storageFile, err)
	}
	return replace(d.Path(storageFile), append(text, '\n'))
}

// readVolumes reads storage.json of an output directory; a run without an SSD tier has none.
func readVolumes(folder string) ([]Volume, error) {
	path := filepath.Join(folder, storageFile)
	text, err := readBounded(path, ManifestBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what the SSD tier wrote to: %w", err)
	}
	var kept volumes
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w: take the folder from a copy, or begin a new run", path, err)
	}
	return kept.Volumes, nil
}
