package micro

import (
	"context"
	"fmt"
	"time"

	"orbitkv/internal/cache"
)

// Sizes of the reclaim section. Its pool is a number, not memory.
const (
	reclaimBytes     = 1 << 30
	reclaimPoolBytes = 8 * reclaimBytes
	reclaimTimes     = 7
)

// reclaimPages are page sizes: 16 tokens of a small model, 16 tokens of an 8B model, 64 tokens of it in whole MiB.
var reclaimPages = []uint64{64 << 10, 2 << 20, 8 << 20}

func (o PoolOptions) bareReclaim(ctx context.Context, r *report) error {
	for _, pageBytes := range reclaimPages {
		pages := reclaimBytes / int(pageBytes)
		table := newLines(reclaimPoolBytes / int(pageBytes))
		var took []time.Duration
		for n := 0; n < reclaimTimes && ctx.Err() == nil; n++ {
			places := table.places(pages)
			begun := time.Now()
			table.write(places)
			took = append(took, time.Since(begun))
		}
		r.reserves(bareReserve(pages), "", took, pages)
	}
	return nil
}

func bareReserve(pages int) string {
	return fmt.Sprintf("write a line of memory for each of %d pages", pages)
}

// reclaim asks for 1 GiB in a full pool and in an empty one.
func (o PoolOptions) reclaim(ctx context.Context, r *report) error {
	for _, pageBytes := range reclaimPages {
		h, err := newHost(cache.Config{}, reclaimPoolBytes, pageBytes, 1)
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
		r.reserves(name+", empty pool", bareReserve(pages), empty, pages)
		r.reserves(name+", evicting as many", name+", empty pool", full, pages)
	}
	return nil
}

// reserves adds calls that each reserve so many pages.
func (r *report) reserves(name, ceiling string, took []time.Duration, pages int) {
	var sum time.Duration
	for _, t := range took {
		sum += t
	}
	r.rated(name, 1, ceiling, took, float64(len(took)*pages)/max(sum, 1).Seconds(), pagesPerSecond)
}
