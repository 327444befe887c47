package main

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

// host is a cache without sockets: one engine of one rank whose calls are method calls. Its arena is a number, not memory.
type host struct {
	cache     *cache.Cache
	worker    cache.SessionID
	namespace uint32
	schedules []cache.SessionID
	operation []uint64
}

// deaf drops every notice: nobody waits for one here.
type deaf struct{}

func (deaf) Push(cache.Notice) bool { return true }

const hostArena = 0

// newHost makes a cache with a pool of poolBytes whose pages have pageBytes, and as many scheduler sessions as asked, each of its
// own instance.
func newHost(poolBytes, pageBytes uint64, schedulers int) (*host, error) {
	h := &host{cache: cache.New(cache.Config{PoolBytes: poolBytes, Seed: 1})}
	h.cache.AddArena(hostArena, -1, poolBytes)
	process := h.cache.OpenProcess(cache.Process{PID: os.Getpid()})
	for i := range schedulers {
		instance := h.instance(i)
		worker, _, err := h.cache.OpenSession(process, wire.RoleWorker, "bench", deaf{})
		if err != nil {
			return nil, err
		}
		_, err = h.cache.Attach(worker, cache.Attach{
			Instance: instance, World: 1, Storage: true, SliceBytes: pageBytes, NUMA: -1, Writer: wire.WriterHost, Backend: "host",
			Facts: map[string]string{"model": "bench"},
		})
		if err != nil {
			return nil, err
		}
		if err := h.cache.Mapped(worker, hostArena, true, ""); err != nil {
			return nil, err
		}
		scheduler, _, err := h.cache.OpenSession(process, wire.RoleScheduler, "bench", deaf{})
		if err != nil {
			return nil, err
		}
		registered, err := h.cache.Register(scheduler, instance, wire.AllRanks)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			h.worker, h.namespace = worker, registered.Namespace
		}
		h.schedules, h.operation = append(h.schedules, scheduler), append(h.operation, 0)
	}
	return h, nil
}

func (h *host) instance(i int) string { return "bench-" + strconv.Itoa(i) }

// reserve returns how long the call took; all keys must be granted.
func (h *host) reserve(keys []wire.Key) (cache.Reserved, time.Duration, error) {
	h.operation[0]++
	begun := time.Now()
	reserved, err := h.cache.Reserve(h.schedules[0], cache.Reserve{Operation: h.operation[0], Revision: 1, Namespace: h.namespace, Instance: h.instance(0), Keys: keys})
	took := time.Since(begun)
	if err == nil && int(reserved.Pages) != len(keys) {
		err = fmt.Errorf("%d of %d pages were granted", reserved.Pages, len(keys))
	}
	return reserved, took, err
}

func (h *host) commit(r cache.Reserved) error {
	return h.cache.Committed(h.worker, r.Reservation, 0, []wire.Range{{Count: r.Pages}})
}

func (h *host) publish(keys []wire.Key) error {
	reserved, _, err := h.reserve(keys)
	if err != nil {
		return err
	}
	return h.commit(reserved)
}

// fill publishes pages first to first+count-1.
func (h *host) fill(ctx context.Context, first, count int) error {
	for done := 0; done < count && ctx.Err() == nil; done += queryKeysMax {
		if err := h.publish(keysOf(first+done, min(queryKeysMax, count-done))); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// query asks as client i and gives the lease back; only the query is timed.
func (h *host) query(i int, keys []wire.Key) (time.Duration, error) {
	h.operation[i]++
	begun := time.Now()
	result, err := h.cache.SubmitQuery(h.schedules[i], cache.Query{Operation: h.operation[i], Revision: 1, Namespace: h.namespace, Instance: h.instance(i), Keys: keys})
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	if int(result.Pages) != len(keys) {
		return 0, fmt.Errorf("%d of %d pages were found", result.Pages, len(keys))
	}
	return took, h.cache.Release(h.schedules[i], result.Lease, wire.AllRanks)
}

// The reclaim section.
const (
	reclaimBytes     = 1 << 30
	reclaimPoolBytes = 8 * reclaimBytes
	reclaimTimes     = 7
)

// reclaimPages are page sizes: 16 tokens of a small model, 16 tokens of an 8B model, 64 tokens of it in whole MiB.
var reclaimPages = []uint64{64 << 10, 2 << 20, 8 << 20}

// measureReclaim asks for 1 GiB in a full pool and, as the ceiling, in an empty one.
func measureReclaim(ctx context.Context, _ options, r *report) error {
	for _, pageBytes := range reclaimPages {
		h, err := newHost(reclaimPoolBytes, pageBytes, 1)
		if err != nil {
			return err
		}
		pages, next := reclaimBytes/int(pageBytes), 0
		var empty, full []time.Duration
		for range reclaimTimes {
			h.cache.Cleanup()
			took, err := h.reserveAndSeal(keysOf(next, pages))
			if err != nil {
				return err
			}
			empty, next = append(empty, took), next+pages
		}
		if err := h.fill(ctx, next, reclaimPoolBytes/int(pageBytes)-pages); err != nil {
			return err
		}
		next += reclaimPoolBytes/int(pageBytes) - pages
		for range reclaimTimes {
			took, err := h.reserveAndSeal(keysOf(next, pages))
			if err != nil {
				return err
			}
			full, next = append(full, took), next+pages
		}
		name := fmt.Sprintf("reserve 1 GiB as %d pages, in process", pages)
		r.times(name+", empty pool", 1, "", empty)
		r.times(name+", reclaiming it", 1, name+", empty pool", full)
	}
	return nil
}

// reserveAndSeal times the reserve alone.
func (h *host) reserveAndSeal(keys []wire.Key) (time.Duration, error) {
	reserved, took, err := h.reserve(keys)
	if err != nil {
		return 0, err
	}
	return took, h.commit(reserved)
}

// measureIndex fills a cache with millions of pages and asks for windows of them, alone and while the garbage collector runs without end.
func measureIndex(ctx context.Context, o options, r *report) error {
	heap, resident := memoryInUse()
	h, err := newHost(uint64(o.indexPages)*sliceBytes, sliceBytes, clientCounts[len(clientCounts)-1])
	if err != nil {
		return err
	}
	if err := h.fill(ctx, 0, o.indexPages); err != nil {
		return err
	}
	heapNow, residentNow := memoryInUse()
	perPage := func(name string, now, before uint64) {
		r.add(figure{Name: name, Clients: 0, Unit: "bytes", N: o.indexPages, P50: (float64(now) - float64(before)) / float64(o.indexPages)})
	}
	perPage("memory of the cache for each page, heap", heapNow, heap)
	perPage("memory of the cache for each page, resident", residentNow, resident)

	for _, keys := range queryKeys[:2] {
		for _, clients := range clientCounts {
			if err := h.measure(ctx, o, r, clients, keys, "in process"); err != nil {
				return err
			}
		}
	}
	pauses := collectGarbage()
	err = h.measure(ctx, o, r, 1, queryKeys[0], "in process, garbage collector running")
	r.times("garbage collection, pause of all threads", 0, "", pauses())
	runtime.KeepAlive(h)
	return err
}

func (h *host) measure(ctx context.Context, o options, r *report, clients, keys int, how string) error {
	samples, err := together(ctx, o, clients, func(_ context.Context, i int) (time.Duration, error) {
		return h.query(i, keysOf(rand.IntN(o.indexPages-keys+1), keys))
	})
	if err != nil {
		return err
	}
	r.times(fmt.Sprintf("query %d keys of %d pages, %s", keys, o.indexPages, how), clients, "", samples)
	return nil
}

// collectGarbage collects without end until the returned function is called, which gives the pauses of the last collections.
func collectGarbage() (pauses func() []time.Duration) {
	stop, done := make(chan struct{}), make(chan struct{})
	var before debug.GCStats
	debug.ReadGCStats(&before)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
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
