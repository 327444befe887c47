package micro

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

const indexWarmUp = 50 // calls of each client that are not counted

// indexKeys are the keys of each kind of query in process.
var indexKeys = []int{512, 8192}

// leastBytesName is the ceiling of the index's memory: what must be kept of a page, its key and where it lies.
const (
	leastBytesName = "a key and a location"
	locationBytes  = 8
)

func linesName(keys, pages int) string {
	return fmt.Sprintf("read a line of memory for %d of %d pages", keys, pages)
}

// bareIndex reads one cache line of plain memory for each key, at places that nobody can guess: what any table of so many pages pays.
func (o PoolOptions) bareIndex(ctx context.Context, r *report) error {
	r.add(figure{Name: leastBytesName, Unit: "bytes", N: o.IndexPages, P50: wire.KeyBytes + locationBytes})
	table := newLines(o.IndexPages)
	for _, keys := range indexKeys {
		for _, clients := range clientCounts {
			all, err := together(ctx, load{clients: clients, warmUp: indexWarmUp, time: o.RowTime, once: func(context.Context, int) (time.Duration, error) {
				places := table.places(keys)
				begun := time.Now()
				runtime.KeepAlive(table.read(places))
				return time.Since(begun), nil
			}})
			if err != nil {
				return err
			}
			r.times(linesName(keys, o.IndexPages), clients, "", all.samples)
		}
	}
	return nil
}

// index fills a cache with millions of pages and asks for windows of them, alone and while the garbage collector runs without end.
func (o PoolOptions) index(ctx context.Context, r *report) error {
	heap, resident := memoryInUse()
	h, err := newHost(cache.Config{}, uint64(o.IndexPages)*sliceBytes, sliceBytes, clientCounts[len(clientCounts)-1])
	if err != nil {
		return err
	}
	if err := h.fill(ctx, 0, o.IndexPages); err != nil {
		return err
	}
	heapNow, residentNow := memoryInUse()
	perPage := func(name string, now, before uint64) {
		bytes := (float64(now) - float64(before)) / float64(o.IndexPages)
		r.add(figure{Name: name, Unit: "bytes", N: o.IndexPages, P50: bytes, Ceiling: leastBytesName})
	}
	perPage("memory of the cache for each page, heap", heapNow, heap)
	perPage("memory of the cache for each page, resident", residentNow, resident)

	for _, keys := range indexKeys {
		for _, clients := range clientCounts {
			if err := o.queryHost(ctx, r, h, clients, keys, ""); err != nil {
				return err
			}
		}
	}
	pauses := collectGarbage()
	err = o.queryHost(ctx, r, h, 1, indexKeys[0], ", garbage collector running")
	r.times("garbage collection, pause of all threads", 0, "", pauses())
	runtime.KeepAlive(h)
	return err
}

func (o PoolOptions) queryHost(ctx context.Context, r *report, h *host, clients, keys int, how string) error {
	all, err := together(ctx, load{clients: clients, warmUp: indexWarmUp, time: o.RowTime, once: func(_ context.Context, i int) (time.Duration, error) {
		return h.query(i, keysOf(rand.IntN(o.IndexPages-keys+1), keys))
	}})
	if err != nil {
		return err
	}
	r.times(fmt.Sprintf("query %d keys of %d pages, in process%s", keys, o.IndexPages, how), clients, linesName(keys, o.IndexPages), all.samples)
	return nil
}

// collectGarbage collects once at least and without end until the returned function is called, which gives the pauses of the last collections.
func collectGarbage() (pauses func() []time.Duration) {
	stop, done := make(chan struct{}), make(chan struct{})
	var before debug.GCStats
	debug.ReadGCStats(&before)
	go func() {
		defer close(done)
		for { // the first collection comes before any look at stop, so that there is a pause to tell of
			runtime.GC()
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return func() []time.Duration {
		close(stop)
		<-done
		var after debug.GCStats
		debug.ReadGCStats(&after)
		return after.Pause[:min(int64(len(after.Pause)), after.NumGC-before.NumGC)]
	}
}

// memoryInUse returns the live heap and the resident memory of this process in bytes, after a collection that gives free memory back.
func memoryInUse() (heap, resident uint64) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			pages, _ := strconv.ParseUint(fields[1], 10, 64) // zero when the kernel writes no number
			resident = pages * uint64(os.Getpagesize())
		}
	}
	return m.HeapAlloc, resident
}
