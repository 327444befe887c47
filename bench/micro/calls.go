package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"orbitkv/internal/wire"
)

// The set of queries.
const (
	queryKeysMax = wire.OperationKeysMax
	indexSpans   = 6                                                // spans of queryKeysMax pages that are published in order
	poolBytesMin = (indexSpans + 2) * queryKeysMax * sliceBytes * 2 // so that eight of the longest queries fit the query budget
	publishPages = 128
	warmUp       = 50 // calls of each client that are not counted
)

var (
	queryKeys    = []int{512, 8192, queryKeysMax}
	clientCounts = []int{1, 8}
)

// together runs one goroutine a client until the time is over and joins what they measured. once makes one call and returns the time
// that counts.
func together(ctx context.Context, o options, clients int, once func(ctx context.Context, client int) (time.Duration, error)) ([]time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	samples, failures := make([][]time.Duration, clients), make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			var deadline time.Time
			for n := 0; failures[i] == nil && (n <= warmUp || time.Now().Before(deadline)); n++ {
				if n == warmUp {
					deadline = time.Now().Add(o.rowTime)
				}
				var took time.Duration
				if took, failures[i] = once(ctx, i); n >= warmUp {
					samples[i] = append(samples[i], took)
				}
			}
			if failures[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var joined []time.Duration
	for _, s := range samples {
		joined = append(joined, s...)
	}
	return joined, errors.Join(failures...)
}

// measurePing is the round trip of the smallest frame: what a call costs before it does anything.
func measurePing(ctx context.Context, o options, r *report) error {
	return withEngines(ctx, o, func(engines []*engine) error {
		for _, clients := range clientCounts {
			samples, err := together(ctx, o, clients, func(ctx context.Context, i int) (time.Duration, error) {
				begun := time.Now()
				err := engines[i].scheduler.Ping(ctx)
				return time.Since(begun), err
			})
			if err != nil {
				return err
			}
			r.times("ping", clients, bytesName(0), samples)
		}
		return nil
	})
}

func bytesName(keys int) string {
	if keys == 0 {
		return "bare socket, 24 bytes both ways"
	}
	return fmt.Sprintf("bare socket, bytes of %d keys", keys)
}

// Bytes of the frames around the keys of a query whose pages are adjacent, and of its result.
const (
	queryFrameBytes  = 80
	resultFrameBytes = 64
	pingFrameBytes   = wire.HeaderBytes + 8
)

// measureBytes is the same number of bytes over the same kind of socket to a process that does nothing with them.
func measureBytes(ctx context.Context, o options, r *report) error {
	return withEcho(func(socket string) error {
		for _, keys := range append([]int{0}, queryKeys...) {
			outgoing, incoming := pingFrameBytes, pingFrameBytes
			if keys > 0 {
				frames := (keys + wire.FrameKeysMax - 1) / wire.FrameKeysMax
				outgoing, incoming = keys*wire.KeyBytes+frames*queryFrameBytes, resultFrameBytes
			}
			for _, clients := range clientCounts {
				samples, err := exchangeTogether(ctx, o, socket, clients, outgoing, incoming)
				if err != nil {
					return err
				}
				r.times(bytesName(keys), clients, "", samples)
			}
		}
		return nil
	})
}

func exchangeTogether(ctx context.Context, o options, socket string, clients, outgoing, incoming int) ([]time.Duration, error) {
	conns, bufs := make([]net.Conn, clients), make([][]byte, clients)
	for i := range conns {
		conn, err := dialEcho(ctx, socket)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns[i], bufs[i] = conn, make([]byte, exchangeHeader+max(outgoing, incoming))
	}
	return together(ctx, o, clients, func(_ context.Context, i int) (time.Duration, error) {
		begun := time.Now()
		err := exchange(conns[i], bufs[i], outgoing, incoming)
		return time.Since(begun), err
	})
}

// withEngines gives use as many engines as the largest number of clients, on one fresh Manager.
func withEngines(ctx context.Context, o options, use func([]*engine) error) error {
	m, err := startManager(ctx, o)
	if err != nil {
		return err
	}
	var engines []*engine
	for i := 0; i < clientCounts[len(clientCounts)-1] && err == nil; i++ {
		var e *engine
		if e, err = openEngine(ctx, m, fmt.Sprintf("bench-%d", i)); err == nil {
			engines = append(engines, e)
		}
	}
	if err == nil {
		err = use(engines)
	}
	for _, e := range engines {
		err = errors.Join(err, e.close())
	}
	return errors.Join(err, m.stop())
}

// measureQuery asks for windows of published pages, each time elsewhere. The lease is given back, and the Manager has handled that,
// before the next query begins, so that only the query counts.
func measureQuery(ctx context.Context, o options, r *report) error {
	return withEngines(ctx, o, func(engines []*engine) error {
		inOrder := keysOf(0, indexSpans*queryKeysMax)
		for first := 0; first < len(inOrder); first += queryKeysMax {
			if err := engines[0].publish(ctx, inOrder[first:first+queryKeysMax]); err != nil {
				return err
			}
		}
		scattered := keysOf(len(inOrder), queryKeysMax)
		if err := engines[0].publish(ctx, shuffled(scattered)); err != nil {
			return err
		}
		absent := keysOf(len(inOrder)+queryKeysMax, queryKeysMax)

		for _, keys := range queryKeys {
			for _, clients := range clientCounts {
				q := queries{engines: engines, keys: keys, found: keys}
				if err := q.measure(ctx, o, r, clients, fmt.Sprintf("query %d keys", keys), inOrder); err != nil {
					return err
				}
				if err := q.measure(ctx, o, r, clients, fmt.Sprintf("query %d keys, scattered pages", keys), scattered); err != nil {
					return err
				}
			}
		}
		for _, clients := range clientCounts {
			q := queries{engines: engines, keys: queryKeys[0]}
			if err := q.measure(ctx, o, r, clients, fmt.Sprintf("query %d keys, none found", queryKeys[0]), absent); err != nil {
				return err
			}
			q = queries{engines: engines, keys: queryKeys[0], found: queryKeys[0], pause: 10 * time.Millisecond}
			if err := q.measure(ctx, o, r, clients, fmt.Sprintf("query %d keys, every 10 ms", queryKeys[0]), inOrder); err != nil {
				return err
			}
		}
		return nil
	})
}

// queries is one kind of query.
type queries struct {
	engines []*engine
	keys    int           // of each query
	found   int           // pages that each must find
	pause   time.Duration // mean time between two queries of a client; zero asks at once
}

func (q queries) measure(ctx context.Context, o options, r *report, clients int, name string, from []wire.Key) error {
	samples, err := together(ctx, o, clients, func(ctx context.Context, i int) (time.Duration, error) {
		if q.pause > 0 {
			time.Sleep(q.pause/2 + rand.N(q.pause))
		}
		first := rand.IntN(len(from) - q.keys + 1)
		return q.once(ctx, q.engines[i], from[first:first+q.keys])
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.times(name, clients, bytesName(q.keys), samples)
	return nil
}

func (q queries) once(ctx context.Context, e *engine, keys []wire.Key) (time.Duration, error) {
	begun := time.Now()
	result, err := e.scheduler.Query(ctx, wire.Query{Namespace: e.namespace, Instance: e.instance, Request: "bench", Keys: keys})
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	if result.Outcome != wire.OutcomeReady || int(result.Pages) != q.found {
		return 0, fmt.Errorf("the query is %s with %d pages, want %d: is the query budget large enough?", result.Outcome, result.Pages, q.found)
	}
	if result.Lease == 0 {
		return took, nil
	}
	if err := e.scheduler.Release(result.Lease, wire.AllRanks); err != nil {
		return 0, err
	}
	return took, e.scheduler.Ping(ctx)
}

// measurePublish reserves and commits new pages, first while there is room, then while every page must be reclaimed.
func measurePublish(ctx context.Context, o options, r *report) error {
	return withEngines(ctx, o, func(engines []*engine) error {
		next, e := 0, engines[0]
		fresh := int(o.poolBytes/sliceBytes/publishPages) - 2*warmUp
		name := fmt.Sprintf("reserve + commit %d pages", publishPages)
		for _, phase := range []string{name + ", room", name + ", full pool"} {
			var reserves, whole []time.Duration
			begun := time.Now()
			for n := 0; n < fresh && time.Since(begun) < o.rowTime; n++ {
				reserve, commit, err := publishOnce(ctx, e, keysOf(next, publishPages))
				if err != nil {
					return err
				}
				next += publishPages
				if n >= warmUp {
					reserves, whole = append(reserves, reserve), append(whole, commit)
				}
			}
			r.times(phase, 1, "ping", whole)
			r.times(phase+": reserve alone", 1, "ping", reserves)
			for next < int(o.poolBytes/sliceBytes) { // fill what is left
				pages := min(queryKeysMax, int(o.poolBytes/sliceBytes)-next)
				if err := e.publish(ctx, keysOf(next, pages)); err != nil {
					return err
				}
				next += pages
			}
		}
		return nil
	})
}

// publishOnce returns the time until the reserve was answered and until the Manager had sealed the pages.
func publishOnce(ctx context.Context, e *engine, keys []wire.Key) (reserve, commit time.Duration, err error) {
	begun := time.Now()
	reserved, err := e.scheduler.Reserve(ctx, wire.Reserve{Namespace: e.namespace, Instance: e.instance, Keys: keys})
	reserve = time.Since(begun)
	if err != nil {
		return 0, 0, err
	}
	if int(reserved.Pages) != len(keys) {
		return 0, 0, fmt.Errorf("%d of %d pages were granted", reserved.Pages, len(keys))
	}
	if err := e.worker.Committed(reserved.Reservation, 0, wire.Range{Count: reserved.Pages}); err != nil {
		return 0, 0, err
	}
	err = e.worker.Ping(ctx)
	return reserve, time.Since(begun), err
}
