package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Ready says whether a folder could be taken now by Create, or by Reopen where resume is set, as far as that can be told without the manifest to come. It
// neither writes nor keeps anything: Create and Reopen look again. The error is theirs.
func Ready(path string, resume bool) error {
	d, err := open(path)
	if errors.Is(err, fs.ErrNotExist) && !resume {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no run in %s: leave --resume out to begin one, or name the folder of a run", path)
	}
	if err != nil {
		return err
	}
	if resume {
		_, err = readManifest(path)
	} else {
		err = vacant(path)
	}
	return errors.Join(err, d.lock.Close())
}

// vacant refuses a folder that has something in it.
func vacant(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("reading the output directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: it holds %s; name a new folder, or go on with the run that is there by --resume", path, listed(entries))
	}
	return nil
}
