package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"orbitkv/internal/wire"
)

// BenchmarkQuery is a query and its release: what the mutex is held for when a prefix of so many keys is asked for.
func BenchmarkQuery(b *testing.B) {
	for _, count := range []int{512, 8192, 65536} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			r := newRig(b, Config{PoolBytes: 4 << 30, QueryBudgetBytes: 4 << 30})
			e := r.engine("a", 100, one(4*kib))
			const pages = 1 << 19
			for from := 0; from < pages; from += wire.OperationKeysMax {
				r.publish(e, keysOf(from, wire.OperationKeysMax))
			}
			keys := keysOf(0, pages)
			b.ReportAllocs()
			at := 0
			for b.Loop() {
				if at += count; at+count > pages {
					at = 0
				}
				got := r.query(e, keys[at:at+count])
				if int(got.Pages) != count {
					b.Fatalf("%d pages", got.Pages)
				}
				r.must(r.Release(e.scheduler.id, got.Lease, wire.AllRanks))
			}
		})
	}
}

// BenchmarkMiss is a query of 512 keys of which none is there.
func BenchmarkMiss(b *testing.B) {
	r := newRig(b, Config{PoolBytes: 1 << 30})
	e := r.engine("a", 100, one(4*kib))
	keys := keysOf(0, 512)
	b.ReportAllocs()
	for b.Loop() {
		r.query(e, keys)
	}
}

// BenchmarkPublish is reserve and commit of 128 pages of 9 MiB in a pool that is full, so that as much is reclaimed: 1.125 GiB.
func BenchmarkPublish(b *testing.B) {
	r := newRig(b, Config{PoolBytes: 16 << 30})
	e := r.engine("a", 100, one(9*mib))
	at := 0
	b.ReportAllocs()
	for b.Loop() {
		if got := r.publish(e, keysOf(at, 128)); got.Pages != 128 {
			b.Fatalf("%d pages", got.Pages)
		}
		at += 128
		e.scheduler.queue.notices = e.scheduler.queue.notices[:0]
	}
}

// BenchmarkReserve is one reserve in a pool that is full of pages that were used in another order than they lie in, so that each page is evicted
// and placed alone.
func BenchmarkReserve(b *testing.B) {
	for _, count := range []int{128, 512, 4096, 65536} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			const pages = 1 << 18
			r := newRig(b, Config{PoolBytes: pages * 4 * kib})
			e := r.engine("a", 100, one(4*kib))
			for from := 0; from < pages; from += wire.OperationKeysMax {
				r.publish(e, keysOf(from, wire.OperationKeysMax))
			}
			for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(pages) {
				r.found(e, keysOf(i, 1))
			}
			at, inside := pages, time.Duration(0)
			for b.Loop() {
				keys := keysOf(at, count)
				start := time.Now()
				got := r.reserve(e, keys)
				inside += time.Since(start)
				if int(got.Pages) != count {
					b.Fatalf("%d pages", got.Pages)
				}
				at += count
				r.commit(e, got)
				e.scheduler.queue.notices = e.scheduler.queue.notices[:0]
			}
			b.ReportMetric(float64(inside.Microseconds())/float64(b.N), "us/reserve")
		})
	}
}
