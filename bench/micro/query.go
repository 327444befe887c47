package micro

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"orbitkv/internal/wire"
)

// pauseMean is the time between two queries of a client that is not alone with its question all the time.
const pauseMean = 10 * time.Millisecond

// query asks for windows of published pages, each time elsewhere. The lease is given back, and the Manager has handled that,
// before the next query begins, so that only the query counts.
func (o ChannelOptions) query(ctx context.Context, r *report) error {
	return o.withEngines(ctx, func(engines []*engine) error {
		inOrder := keysOf(0, int(float64(o.pages())*inOrderShare))
		scattered := keysOf(len(inOrder), int(float64(o.pages())*scatteredShare))
		absent := keysOf(len(inOrder)+len(scattered), len(scattered))
		if err := engines[0].publishAll(ctx, inOrder); err != nil {
			return err
		}
		if err := engines[0].publishAll(ctx, shuffled(scattered)); err != nil {
			return err
		}
		last := o.Keys[len(o.Keys)-1]
		var kinds []queries
		for _, keys := range o.Keys {
			kinds = append(kinds, queries{keys: keys, from: inOrder, found: keys}, queries{keys: keys, from: scattered, found: keys, how: ", scattered pages"})
		}
		kinds = append(kinds, queries{keys: last, from: absent, how: ", none found"}, queries{keys: last, from: inOrder, found: last, how: ", every 10 ms", pause: pauseMean})
		for _, q := range kinds {
			for _, clients := range clientCounts {
				if err := q.measure(ctx, o, r, engines[:clients]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// queries is one kind of query.
type queries struct {
	keys  int           // of each query
	from  []wire.Key    // where a query's window lies
	found int           // pages that each must find
	how   string        // end of the figure's name
	pause time.Duration // mean time between two queries of a client; zero asks at once
}

func (q queries) measure(ctx context.Context, o ChannelOptions, r *report, engines []*engine) error {
	name := fmt.Sprintf("query %d keys%s", q.keys, q.how)
	all, err := together(ctx, o.call(len(engines), func(ctx context.Context, i int) (time.Duration, error) {
		if q.pause > 0 {
			time.Sleep(q.pause/2 + rand.N(q.pause))
		}
		first := rand.IntN(len(q.from) - q.keys + 1)
		return q.once(ctx, engines[i], q.from[first:first+q.keys])
	}))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.times(name, len(engines), bareName(q.keys), all.samples)
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
