package blockio_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/blockio"
	"orbitkv/internal/blockio/blockiotest"
	"orbitkv/internal/vfs"
)

// TestRing runs the suite with rings that hold far less than it submits, on memory that is registered and on memory that is not.
func TestRing(t *testing.T) {
	for _, c := range []struct {
		depth      int
		registered bool
	}{{1, false}, {7, true}, {64, true}} {
		t.Run(fmt.Sprintf("depth %d, registered %v", c.depth, c.registered), func(t *testing.T) {
			blockiotest.Run(t, blockiotest.Suite{
				Engine: func(t *testing.T, memory [][]byte) blockio.Engine { return openRing(t, c.depth, memory, c.registered) },
				File: func(t *testing.T) vfs.File {
					folder, err := vfs.NewOS(t.TempDir())
					if err != nil {
						t.Fatal(err)
					}
					return openDirectFile(t, folder, "payload")
				},
			})
		})
	}
}

func openRing(t *testing.T, depth int, memory [][]byte, registered bool) blockio.Engine {
	t.Helper()
	if !registered {
		memory = nil
	}
	r, err := blockio.NewRing(blockio.RingConfig{Depth: depth, Memory: memory})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("needs io_uring, which this machine forbids: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if refused := r.Stats().NotRegistered; registered && refused != "" {
		r.Close()
		t.Skipf("needs memory to register: %s", refused)
	}
	return r
}
