package blockio

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

const benchFileBytes = 1 << 30

// BenchmarkEngines compares the engines on the disk of the temporary folder (TMPDIR): MB/s, and seconds of processor time for each GB moved. Memory in huge
// pages takes 32 reserved ones (vm.nr_hugepages).
func BenchmarkEngines(b *testing.B) {
	memory, err := mapShared(b, 64<<20, 0)
	if err != nil {
		b.Fatal(err)
	}
	huge, noHuge := mapShared(b, 64<<20, unix.MFD_HUGETLB)
	f := openDirect(b, 1)
	if err := layFile(f, memory); err != nil {
		b.Fatal(err)
	}
	for _, write := range []bool{false, true} {
		for _, shape := range []struct{ bytes, depth int }{{64 << 10, 32}, {256 << 10, 16}, {9 << 20, 4}} {
			for _, engine := range []struct {
				name   string
				memory []byte
				make   func() Engine
			}{
				{"pool", memory, func() Engine { return NewPool(shape.depth) }},
				{"pool, huge pages", huge, func() Engine { return NewPool(shape.depth) }},
				{"uring", memory, func() Engine { return newTestRing(b, RingConfig{Depth: shape.depth}) }},
				{"uring registered", memory, func() Engine { return newTestRing(b, RingConfig{Depth: shape.depth, Memory: [][]byte{memory}}) }},
				{"uring registered, huge pages", huge, func() Engine { return newTestRing(b, RingConfig{Depth: shape.depth, Memory: [][]byte{huge}}) }},
			} {
				name := map[bool]string{false: "read", true: "write"}[write]
				b.Run(fmt.Sprintf("%s %d KiB x%d/%s", name, shape.bytes>>10, shape.depth, engine.name), func(b *testing.B) {
					if engine.memory == nil {
						b.Skipf("needs 64 MiB of reserved huge pages: %v", noHuge)
					}
					e := engine.make()
					defer e.Close()
					moveAtRandom(b, e, &Transfer{File: f, Write: write}, engine.memory, shape.bytes, shape.depth)
				})
			}
		}
	}
}

// moveAtRandom runs b.N transfers like one, so many at a time, each in its own place of memory.
func moveAtRandom(b *testing.B, e Engine, like *Transfer, memory []byte, bytes, depth int) {
	random := rand.New(rand.NewPCG(7, 7))
	free := make(chan int, depth)
	for i := range depth {
		free <- i
	}
	b.SetBytes(int64(bytes))
	before := processorTime(b)
	for b.Loop() {
		i := <-free
		t := *like
		t.Offset = int64(random.IntN(benchFileBytes/bytes)) * int64(bytes)
		t.Buffers = [][]byte{memory[i*bytes:][:bytes]}
		t.Done = func(err error) {
			if err != nil {
				b.Error(err)
			}
			free <- i
		}
		e.Submit(&t)
	}
	for range depth {
		<-free
	}
	b.ReportMetric((processorTime(b)-before).Seconds()/(float64(b.N)*float64(bytes)/1e9), "cpu-s/GB")
}

// processorTime is what this process has used, the kernel's threads for its io_uring included.
func processorTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// mapShared maps memory as an arena is: shared, of a memfd, and populated. The flags are those of the memfd.
func mapShared(b *testing.B, bytes, flags int) ([]byte, error) {
	descriptor, err := unix.MemfdCreate("orbitkv-bench", unix.MFD_CLOEXEC|flags)
	if err != nil {
		return nil, err
	}
	err = unix.Ftruncate(descriptor, int64(bytes))
	var view []byte
	if err == nil {
		view, err = unix.Mmap(descriptor, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err = errors.Join(err, unix.Close(descriptor)); err != nil {
		return nil, err
	}
	b.Cleanup(func() {
		if err := unix.Munmap(view); err != nil {
			b.Error(err)
		}
	})
	return view, nil
}

// layFile writes every block of the file once: one that was only reserved would be read without the disk.
func layFile(f vfs.File, memory []byte) error {
	if err := f.Allocate(benchFileBytes); err != nil {
		return err
	}
	fillBlocks(memory, 0)
	for at := int64(0); at < benchFileBytes; at += int64(len(memory)) {
		if err := f.WriteAt([][]byte{memory}, at); err != nil {
			return err
		}
	}
	return f.Sync()
}
