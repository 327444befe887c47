package ssd

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"orbitkv/internal/blockio"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

const benchCapacity = 3 << 30

var benchPages = []uint64{64 << 10, 256 << 10, 9 << 20}

// inTurn runs n operations, at most so many at a time. begin calls its argument at the end of the operation.
func inTurn(n, most int, begin func(i int, ended func())) {
	free := make(chan struct{}, most)
	for i := range n {
		free <- struct{}{}
		begin(i, func() { <-free })
	}
	for range most {
		free <- struct{}{}
	}
}

func benchFolder(b *testing.B) vfs.FS {
	folder, err := vfs.NewOS(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	return folder
}

// BenchmarkEngine is the ceiling of the two below: the same engine on a file of its own, without order, barriers or digests.
func BenchmarkEngine(b *testing.B) {
	for _, write := range []bool{true, false} {
		for _, bytes := range benchPages {
			depth, name := DefaultReadInflight, "read"
			if write {
				depth, name = DefaultWriteInflight, "write"
			}
			b.Run(fmt.Sprintf("%s/%dKiB", name, bytes>>10), func(b *testing.B) { benchEngine(b, write, bytes, depth) })
		}
	}
}

func benchEngine(b *testing.B, write bool, bytes uint64, depth int) {
	file, err := benchFolder(b).Open("file", vfs.Direct)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	if err := file.Allocate(benchCapacity); err != nil {
		b.Fatal(err)
	}
	memory := vfs.AlignedBuffer(depth * int(bytes))
	engine, _, err := blockio.Choose(blockio.Config{Want: "auto", File: file, Depth: 2 * depth, Memory: [][]byte{memory}})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	pages := int(benchCapacity / bytes)
	slots := make(chan []byte, depth)
	for i := range depth {
		slots <- memory[i*int(bytes):][:bytes]
	}
	transfer := func(n int, write bool) {
		inTurn(n, depth, func(i int, ended func()) {
			slot := <-slots
			engine.Submit(&blockio.Transfer{
				File: file, Write: write, Offset: int64(i%pages) * int64(bytes), Buffers: [][]byte{slot}, Done: func(err error) {
					if err != nil {
						b.Error(err)
					}
					slots <- slot
					ended()
				},
			})
		})
	}
	if !write {
		transfer(min(b.N, pages), true) // unwritten extents would be read from nowhere
	}
	b.SetBytes(int64(bytes))
	b.ResetTimer()
	transfer(b.N, write)
}

// benchStore opens a store in a folder of its own, with memory for so many pages.
func benchStore(b *testing.B, bytes uint64, slots int) (*Store, *arena, uint32) {
	a := newArena(slots, bytes)
	config := configOf(a, nil)
	config.Volumes, config.CapacityBytes, config.Backend, config.MemoryRegions = []VolumeConfig{{FS: benchFolder(b)}}, benchCapacity, "auto", [][]byte{a.memory}
	store, err := Open(config)
	if err != nil {
		b.Fatal(err)
	}
	return store, a, store.Namespace(identityOf(1), 0, bytes)
}

// writeAll writes pages with the numbers from..to-1; each waits for room in the queue.
func writeAll(b *testing.B, store *Store, a *arena, space uint32, from, to int) {
	inTurn(to-from, cap(a.free), func(i int, ended func()) {
		location := <-a.free
		taken := store.Write(Write{
			Namespace: space, Key: *keyOf(from + i), Parts: []Part{{location, a.slot}}, Done: func(result WriteResult) {
				if !result.OK {
					b.Error(result.Reason)
				}
				a.free <- location
				ended()
			},
		})
		if !taken {
			b.Fatalf("page %d was not taken: %v", from+i, store.Stats().WriteSkipsTotal)
		}
	})
}

// BenchmarkWrite is pages that become durable and visible, with barriers and records, into a volume that is full after a while.
func BenchmarkWrite(b *testing.B) {
	for _, bytes := range benchPages {
		b.Run(fmt.Sprintf("%dKiB", bytes>>10), func(b *testing.B) {
			store, a, space := benchStore(b, bytes, int(4*BatchBytes/bytes))
			b.SetBytes(int64(bytes))
			b.ResetTimer()
			writeAll(b, store, a, space, 0, b.N)
			b.StopTimer()
			stats := store.Stats()
			b.ReportMetric(float64(stats.DeviceBytesTotal)/float64(stats.WriteBytesTotal), "device-bytes/byte")
			b.ReportMetric(float64(stats.WritePagesTotal)/float64(stats.CommitsTotal), "pages/commit")
			if err := store.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkRead is random pages of a volume on demand, with their digests.
func BenchmarkRead(b *testing.B) {
	for _, bytes := range benchPages {
		b.Run(fmt.Sprintf("%dKiB", bytes>>10), func(b *testing.B) {
			store, a, space := benchStore(b, bytes, int(min(4*DefaultReadInflight, 4*BatchBytes/bytes)))
			pages := min(b.N, int((1<<30)/bytes))
			writeAll(b, store, a, space, 0, pages)
			draw := rand.New(rand.NewPCG(1, 1))
			b.SetBytes(int64(bytes))
			b.ResetTimer()
			inTurn(b.N, cap(a.free), func(_ int, ended func()) {
				location := <-a.free
				read := Read{Namespace: space, Key: *keyOf(draw.IntN(pages)), Parts: []Part{{location, bytes}}, Done: func(result ReadResult) {
					if !result.OK {
						b.Error(result.Reason)
					}
					a.free <- location
					ended()
				}}
				for !store.Read(read) { // a full queue of 9 MiB pages; the end of any makes room
					other := <-a.free
					a.free <- other
				}
			})
			b.StopTimer()
			if err := store.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkOpen is the recovery of a volume with a million pages, from an index log in memory.
func BenchmarkOpen(b *testing.B) {
	const pages, bytes = 1_000_000, 64 << 10
	disk := twin.New(1)
	large := func(c *Config) { c.CapacityBytes = uint64(pages)*format.ExtentBytes(bytes)*11/10 + 2<<30 }
	r := openRig(b, []*twin.Disk{disk}, large)
	r.logPages(pages, bytes)
	for b.Loop() {
		r := openRigIn(b, r.arena, []*twin.Disk{disk}, large)
		b.StopTimer()
		stats := r.store.Stats()
		if stats.RecoveredPages != pages {
			b.Fatalf("%d pages were recovered", stats.RecoveredPages)
		}
		b.ReportMetric(stats.RecoverySeconds, "s/Mpages")
		b.ReportMetric(float64(stats.IndexBytes)/pages, "B/page")
		r.close()
		b.StartTimer()
	}
}
