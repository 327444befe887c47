package arena

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Bounds of the wait for memory.
const (
	roomMargin  = 16 << 20 // bytes that stay free beside the pieces that are being populated: the process needs memory too
	roomLook    = 100 * time.Millisecond
	roomTell    = 10 * time.Second
	roomWaitMax = 10 * time.Minute
)

// Room says how many bytes this process may still be charged with and what limits them. An error means that nobody knows.
type Room func() (bytes uint64, source string, err error)

// gate lets a piece through once there is room for it. Over the limit of a control group the kernel does not refuse memory, it kills;
// and after a restart the memory of the earlier pool stays charged until the engines have unmapped it.
type gate struct {
	room Room
	log  *slog.Logger

	mu       sync.Mutex
	inFlight uint64    // bytes of pieces being populated, counted whole: the kernel charges them as it goes
	told     time.Time // of the last line in the log
}

// enter waits for room and takes it; leave gives it back. The error says that ctx ended or that roomWaitMax passed.
func (g *gate) enter(ctx context.Context, bytes uint64) error {
	if g.room == nil {
		return ctx.Err()
	}
	end := time.Now().Add(roomWaitMax)
	for {
		free, source, ok := g.take(bytes)
		if ok {
			return ctx.Err()
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d bytes are free under %s, %d and a margin of %d are needed, and none came back in %s: end the processes that map an earlier pool, lower --pool-size or raise the limit",
				free, source, bytes, uint64(roomMargin), roomWaitMax)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(roomLook):
		}
	}
}

func (g *gate) take(bytes uint64) (free uint64, source string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	free, source, err := g.room()
	if err != nil || free >= g.inFlight+bytes+roomMargin {
		g.inFlight += bytes
		return free, source, true
	}
	if now := time.Now(); g.inFlight == 0 && now.Sub(g.told) >= roomTell {
		g.told = now
		g.log.Warn("populating the pool waits for memory: an earlier pool that engines still map comes back when they attach anew",
			"free_bytes", free, "limited_by", source, "piece_bytes", bytes)
	}
	return free, source, false
}

func (g *gate) leave(bytes uint64) {
	if g.room == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight -= bytes
}
