package micro

import (
	"context"
	"fmt"
	"os"
	"strconv"
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
	bells     []bell
}

// deaf drops every notice: nobody waits for one here.
type deaf struct{}

func (deaf) Push(cache.Notice) bool { return true }

// bell rings for a notice, once for as many as come before somebody listens.
type bell chan struct{}

// Push implements cache.Sink.
func (b bell) Push(cache.Notice) bool {
	select {
	case b <- struct{}{}:
	default:
	}
	return true
}

const hostArena = 0

// newHost makes a cache with a pool of poolBytes whose pages have pageBytes, and as many scheduler sessions as asked, each of its
// own instance.
func newHost(config cache.Config, poolBytes, pageBytes uint64, schedulers int) (*host, error) {
	config.PoolBytes, config.Seed = poolBytes, 1
	h := &host{cache: cache.New(config)}
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
		rings := make(bell, 1)
		scheduler, _, err := h.cache.OpenSession(process, wire.RoleScheduler, "bench", rings)
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
		h.schedules, h.operation, h.bells = append(h.schedules, scheduler), append(h.operation, 0), append(h.bells, rings)
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
	for done := 0; done < count && ctx.Err() == nil; done += wire.OperationKeysMax {
		if err := h.publish(keysOf(first+done, min(wire.OperationKeysMax, count-done))); err != nil {
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

// reserveAndSeal times the reserve alone.
func (h *host) reserveAndSeal(keys []wire.Key) (time.Duration, error) {
	reserved, took, err := h.reserve(keys)
	if err != nil {
		return 0, err
	}
	return took, h.commit(reserved)
}
