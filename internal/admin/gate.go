package admin

import (
	"context"
	"errors"
	"time"
)

// A verification stops the cache while it reads every page record, and whoever reaches the address may ask for one. So the cache works at least
// verifyRest times as long as it was stopped, up to verifyRestMax, before it is stopped again.
const (
	verifyRest    = 10
	verifyRestMax = 20 * time.Second
)

var errVerifying = errors.New("a verification runs already or waits for its turn, and only one may: ask again when it was answered")

// gate lets one verification at a time through.
type gate struct {
	slot chan struct{}
	next time.Time // before which none starts; whoever has the slot may use it
}

func newGate() *gate { return &gate{slot: make(chan struct{}, 1)} }

// pass runs act when it is its turn. It fails with errVerifying when another one has the turn, and with the context's error when the asker has gone.
func (g *gate) pass(ctx context.Context, act func()) error {
	select {
	case g.slot <- struct{}{}:
		defer func() { <-g.slot }()
	default:
		return errVerifying
	}
	select {
	case <-time.After(time.Until(g.next)):
	case <-ctx.Done():
		return ctx.Err()
	}
	start := time.Now()
	act()
	g.next = time.Now().Add(min(verifyRest*time.Since(start), verifyRestMax))
	return nil
}
