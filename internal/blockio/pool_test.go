package blockio_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"orbitkv/internal/blockio"
	"orbitkv/internal/blockio/blockiotest"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

func openDirectFile(t *testing.T, folder vfs.FS, name string) vfs.File {
	t.Helper()
	f, err := folder.Open(name, vfs.Direct)
	if errors.Is(err, unix.EINVAL) {
		t.Skipf("needs a temporary folder that takes direct I/O: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPool(t *testing.T) {
	for _, threads := range []int{1, 8} {
		engine := func(*testing.T, [][]byte) blockio.Engine { return blockio.NewPool(threads) }
		t.Run(fmt.Sprint(threads, " threads on a disk in memory"), func(t *testing.T) {
			blockiotest.Run(t, blockiotest.Suite{Engine: engine, File: func(t *testing.T) vfs.File { return openDirectFile(t, twin.New(1), "payload") }})
		})
	}
	t.Run("temporary folder", func(t *testing.T) {
		blockiotest.Run(t, blockiotest.Suite{
			Engine: func(*testing.T, [][]byte) blockio.Engine { return blockio.NewPool(16) },
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

// gated is a pool on a file whose reads are held, and the number of reads that have ended.
type gated struct {
	t     *testing.T
	pool  *blockio.Pool
	file  vfs.File
	gate  *twin.Gate
	ended []int
}

func newGated(t *testing.T, threads int) *gated {
	disk := twin.New(1)
	file := openDirectFile(t, disk, "payload")
	if err := file.Allocate(vfs.Align); err != nil {
		t.Fatal(err)
	}
	return &gated{t: t, pool: blockio.NewPool(threads), file: file, gate: disk.Gate(twin.Read, "payload")}
}

func (g *gated) submit(reads int) {
	for i := range reads {
		g.pool.Submit(&blockio.Transfer{File: g.file, Buffers: [][]byte{vfs.AlignedBuffer(vfs.Align)}, Done: func(err error) {
			if err != nil {
				g.t.Error(err)
			}
			g.ended = append(g.ended, i)
		}})
	}
}

func TestAPoolRunsAsManyAsItHasThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, 3)
		g.submit(5)
		for i, held := range []int{3, 3, 3, 2, 1, 0} {
			synctest.Wait()
			if g.gate.Held() != held || len(g.ended) != i {
				t.Fatalf("%d reads run and %v have ended, want %d and %d", g.gate.Held(), g.ended, held, i)
			}
			g.gate.Pass(1)
		}
		g.pool.Close()
	})
}

func TestCloseOfAPoolWaitsForWhatIsQueuedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(t, 1)
		g.submit(3)
		closed := false
		go func() {
			g.pool.Close()
			closed = true
		}()
		for i := range 3 {
			synctest.Wait()
			if closed || len(g.ended) != i {
				t.Fatalf("closed: %v, with %d reads ended", closed, len(g.ended))
			}
			g.gate.Pass(1)
		}
		synctest.Wait()
		if !closed || !slices.Equal(g.ended, []int{0, 1, 2}) {
			t.Fatalf("closed: %v, reads ended in the order %v", closed, g.ended)
		}
		defer func() {
			if recover() == nil {
				t.Error("a closed pool took a transfer")
			}
		}()
		g.submit(1)
	})
}

func TestAPoolNeedsAThread(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a pool without a thread was made")
		}
	}()
	blockio.NewPool(0)
}
