package micro

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

// Sizes of the section tier.
const (
	tieredPages = 128 << 10
	tieredKeys  = 512 // of each query
)

// instantTier is an SSD tier without a disk: what is asked for is there as soon as a goroutine of its own has said so. What is left is what the cache itself
// does for a tier.
type instantTier struct {
	cache *cache.Cache // set before anything is asked
	holds bool         // every page is stored; changed while nobody asks
	pages chan cache.TierPage
	ended sync.WaitGroup
	asked []wire.Key // that a query leased last; the cache's mutex guards it
}

const instantRoom = 2 * tieredKeys // reads that may be queued

func newInstantTier() *instantTier {
	t := &instantTier{pages: make(chan cache.TierPage, instantRoom)}
	t.ended.Go(func() {
		for p := range t.pages {
			t.cache.PageRead(p.Page, cache.Digest{}, true)
		}
	})
	return t
}

// close ends the goroutine. Nothing may be asked any more.
func (t *instantTier) close() {
	close(t.pages)
	t.ended.Wait()
}

// The methods implement cache.Tier. Nothing is written: a page that is published is stored already, or never will be.
func (t *instantTier) Namespace([32]byte, uint64, uint64) uint32 { return 1 }
func (t *instantTier) DropNamespace(uint32)                      {}
func (t *instantTier) ReleaseNamespace(uint32)                   {}
func (t *instantTier) Drop(uint32, uint16, *wire.Key)            {}
func (t *instantTier) Clear()                                    {}
func (t *instantTier) Stored(uint32, uint16, *wire.Key) bool     { return t.holds }
func (t *instantTier) Wanted(uint32, uint16, *wire.Key) bool     { return false }
func (t *instantTier) Write(cache.TierPage) bool                 { return false }
func (t *instantTier) ReadRoom() int                             { return cap(t.pages) - len(t.pages) }
func (t *instantTier) Hasten(uint32, uint16, *wire.Key)          {}
func (t *instantTier) Expected(cache.Awaited) time.Duration      { return 0 }

// Demanded keeps a copy of the keys, which is what the calling query pays for in a real tier, too.
func (t *instantTier) Demanded(_ uint32, _ uint16, keys []wire.Key) {
	t.asked = slices.Clone(keys)
}

// Read has the page told of as read.
func (t *instantTier) Read(p cache.TierPage, _ cache.ReadPriority) bool {
	select {
	case t.pages <- p:
		return true
	default:
		return false
	}
}

// bareTiered asks a cache without a tier: the ceiling of one that has one.
func (o PoolOptions) bareTiered(ctx context.Context, r *report) error {
	return o.tieredRows(ctx, r, nil, "", nil)
}

// tiered asks a cache with a tier, first for pages that are all in memory, then for pages that are all in the tier.
func (o PoolOptions) tiered(ctx context.Context, r *report) error {
	t := newInstantTier()
	defer t.close()
	const how = ", with an SSD tier, all in memory"
	return o.tieredRows(ctx, r, t, how, func(h *host) error {
		t.holds = true
		h.cache.Cleanup()
		all, err := together(ctx, load{clients: 1, warmUp: indexWarmUp, time: o.RowTime, once: func(ctx context.Context, i int) (time.Duration, error) {
			took, err := h.prepared(ctx, i, keysOf(rand.IntN(tieredPages-tieredKeys+1), tieredKeys))
			h.cache.Cleanup() // the next query finds nothing in memory
			return took, err
		}})
		if err == nil {
			r.times(tieredName(", with an SSD tier that takes no time, all there"), 1, tieredName(""), all.samples)
		}
		return err
	})
}

func tieredName(how string) string {
	return fmt.Sprintf("query %d keys of %d pages, in process%s", tieredKeys, tieredPages, how)
}

// tieredRows fills a cache and asks for windows of its pages, then does what comes after.
func (o PoolOptions) tieredRows(ctx context.Context, r *report, t *instantTier, how string, after func(*host) error) error {
	config, ceiling := cache.Config{}, ""
	if t != nil {
		config.Tier, ceiling = t, tieredName("")
	}
	h, err := newHost(config, tieredPages*sliceBytes, sliceBytes, clientCounts[len(clientCounts)-1])
	if err != nil {
		return err
	}
	if t != nil {
		t.cache = h.cache
	}
	if err := h.fill(ctx, 0, tieredPages); err != nil {
		return err
	}
	for _, clients := range clientCounts {
		all, err := together(ctx, load{clients: clients, warmUp: indexWarmUp, time: o.RowTime, once: func(_ context.Context, i int) (time.Duration, error) {
			return h.query(i, keysOf(rand.IntN(tieredPages-tieredKeys+1), tieredKeys))
		}})
		if err != nil {
			return err
		}
		r.times(tieredName(how), clients, ceiling, all.samples)
	}
	if after == nil {
		return nil
	}
	return after(h)
}

// prepared asks as client i for pages that must be read first, waits until they are there and gives the lease back; only the query and its wait are timed.
func (h *host) prepared(ctx context.Context, i int, keys []wire.Key) (time.Duration, error) {
	h.operation[i]++
	begun := time.Now()
	result, err := h.cache.SubmitQuery(h.schedules[i], cache.Query{Operation: h.operation[i], Revision: 1, Namespace: h.namespace, Instance: h.instance(i), Keys: keys})
	if err == nil && result.Outcome != wire.OutcomePreparing {
		return 0, fmt.Errorf("the query is %s, and its pages were to be read first", result.Outcome)
	}
	for err == nil && result.Outcome == wire.OutcomePreparing {
		select {
		case <-h.bells[i]:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		result, err = h.cache.PollQuery(h.schedules[i], h.operation[i], 1)
	}
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	if int(result.Pages) != len(keys) {
		return 0, fmt.Errorf("%d of %d pages were read", result.Pages, len(keys))
	}
	return took, h.cache.Release(h.schedules[i], result.Lease, wire.AllRanks)
}
