package journal

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

// benchPages is how many pages the volumes of the benchmarks hold.
const benchPages = 1_000_000

var benchLimits = Limits{PayloadBytes: format.ScratchBytes + benchPages*extentBytes}

// filled is a volume on a real folder with benchPages pages in its index, and as many again that were replaced.
func filled(b *testing.B, replaced bool) (vfs.FS, int64) {
	b.Helper()
	fs, err := vfs.NewOS(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	j, _, err := Open(fs, volume, benchLimits)
	if err != nil {
		b.Fatal(err)
	}
	j.Namespace(namespaceOf(1))
	puts := make([]Put, benchPages)
	for i := range puts {
		puts[i] = pageOf(j, 1, i, i)
		for at := 8; at < 32; at += 8 {
			binary.LittleEndian.PutUint64(puts[i].Key[at:], puts[i].Sequence*0x9E3779B97F4A7C15)
		}
	}
	if err := j.Compact(slices.Values(puts)); err != nil {
		b.Fatal(err)
	}
	for i := range puts {
		if replaced {
			j.Drop(puts[i].Offset)
			puts[i].Sequence = j.NextSequence()
			binary.LittleEndian.PutUint64(puts[i].Key[:], puts[i].Sequence)
			j.Put(puts[i])
		}
		if i%1000 == 999 {
			if err := j.Commit(); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	return fs, j.Bytes()
}

// processorSeconds is what this process used of processors, which others on the machine disturb less than the time that went by.
func processorSeconds(b *testing.B) float64 {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

// BenchmarkRecovery opens an index of a million pages: as a stop leaves it, and as long as it may grow before a compaction.
func BenchmarkRecovery(b *testing.B) {
	for name, replaced := range map[string]bool{"compacted": false, "replaced": true} {
		b.Run(name, func(b *testing.B) {
			fs, bytes := filled(b, replaced)
			b.SetBytes(bytes)
			b.ReportAllocs()
			before := processorSeconds(b)
			for b.Loop() {
				j, state, err := Open(fs, volume, benchLimits)
				if err != nil || len(state.Puts) != benchPages || len(state.Problems) > 0 {
					b.Fatalf("%d pages, problems %v, %v", len(state.Puts), state.Problems, err)
				}
				if err := j.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bytes), "log-bytes")
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/recovery")
			b.ReportMetric((processorSeconds(b)-before)/float64(b.N), "cpu-s/recovery")
		})
	}
}
