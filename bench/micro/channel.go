package micro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"orbitkv/internal/wire"
)

// ChannelOptions are what Channel measures with.
type ChannelOptions struct {
	Options
	Program   string // the orbitkv program: it serves as the Manager and as the echo process
	PoolBytes uint64 // of the Manager; its pages have 4 KiB
	Keys      []int  // of each kind of query
}

// Shares of the pool's pages.
const (
	inOrderShare   = 3.0 / 8  // pages that are published in prefix order, as engines do
	scatteredShare = 1.0 / 16 // pages that are published in a shuffled order
)

const (
	channelPoolMin = 128 << 20 // so that publishing fills the pool in more than its warm-up
	channelWarmUp  = 50        // calls of each client that are not counted
	publishPages   = 128
)

// clientCounts are the clients of a call; the last is the largest.
var clientCounts = []int{1, 8}

func (o ChannelOptions) pages() int { return int(o.PoolBytes / sliceBytes) }

func (o ChannelOptions) check() error {
	if o.PoolBytes < channelPoolMin {
		return fmt.Errorf("--pool is %d bytes: give %d at least", o.PoolBytes, uint64(channelPoolMin))
	}
	most := min(wire.OperationKeysMax, int(float64(o.pages())*scatteredShare))
	if len(o.Keys) == 0 {
		return errors.New("--keys is empty: give the keys of a query, such as 64,512")
	}
	for _, keys := range o.Keys {
		if keys < 1 || keys > most {
			return fmt.Errorf("--keys has %d: give 1 to %d with a pool of %d bytes, and %d at most with a larger one", keys, most, o.PoolBytes, wire.OperationKeysMax)
		}
	}
	return nil
}

// Channel measures what goes over the socket of a Manager that it starts and ends, and writes the table to out.
func Channel(ctx context.Context, o ChannelOptions, out io.Writer) error {
	sections := []section{
		{"ping", o.barePing},
		{"ping", o.ping},
		{"query", o.bareQuery},
		{"query", o.query},
		{"publish", o.barePublish},
		{"publish", o.publish},
	}
	if err := errors.Join(o.check(), o.Options.check(sections)); err != nil {
		return err
	}
	if err := roomFor(o.PoolBytes, "the Manager", "a smaller --pool"); err != nil {
		return err
	}
	r := newReport("channel", "clients")
	r.about = fmt.Sprintf("`orbitkv serve` with a pool of %.3g GiB and pages of 4 KiB", float64(o.PoolBytes)/(1<<30))
	r.note = "The ceiling is a bare Unix socket to a process that takes and sends as many bytes and does nothing with them."
	return run(ctx, o.Options, r, sections, out)
}

// call is the load of calls over a socket.
func (o ChannelOptions) call(clients int, once func(ctx context.Context, client int) (time.Duration, error)) load {
	return load{clients: clients, warmUp: channelWarmUp, time: o.RowTime, once: once}
}

// barePingName is the ceiling of ping.
const barePingName = "bare socket, 24 bytes both ways"

func bareName(keys int) string { return fmt.Sprintf("bare socket, bytes of %d keys", keys) }

// Bytes of the frames around the keys of a query whose pages are adjacent, and of its result.
const (
	queryFrameBytes  = 80
	resultFrameBytes = 64
	pingFrameBytes   = wire.HeaderBytes + 8
)

// keyBytes returns the bytes of the frames that carry so many keys.
func keyBytes(keys int) int {
	frames := (keys + wire.FrameKeysMax - 1) / wire.FrameKeysMax
	return keys*wire.KeyBytes + frames*queryFrameBytes
}

func (o ChannelOptions) barePing(ctx context.Context, r *report) error {
	return o.bare(ctx, r, barePingName, clientCounts, [][2]int{{pingFrameBytes, pingFrameBytes}})
}

func (o ChannelOptions) bareQuery(ctx context.Context, r *report) error {
	for _, keys := range o.Keys {
		if err := o.bare(ctx, r, bareName(keys), clientCounts, [][2]int{{keyBytes(keys), resultFrameBytes}}); err != nil {
			return err
		}
	}
	return nil
}

// Ceilings of publishing: the reserve, and the reserve with the ping that shows that the commit is handled.
var (
	bareReserveName = bareName(publishPages)
	barePublishName = bareName(publishPages) + ", then 24 both ways"
)

func (o ChannelOptions) barePublish(ctx context.Context, r *report) error {
	reserve, ping := [2]int{keyBytes(publishPages), resultFrameBytes}, [2]int{pingFrameBytes, pingFrameBytes}
	if err := o.bare(ctx, r, bareReserveName, clientCounts[:1], [][2]int{reserve}); err != nil {
		return err
	}
	return o.bare(ctx, r, barePublishName, clientCounts[:1], [][2]int{reserve, ping})
}

// bare makes exchanges of {bytes there, bytes back}, one after the other, with a process that does nothing with the bytes.
func (o ChannelOptions) bare(ctx context.Context, r *report, name string, clients []int, exchanges [][2]int) error {
	return withEcho(o.Program, func(socket string) error {
		for _, n := range clients {
			all, err := o.exchangeTogether(ctx, socket, n, exchanges)
			if err != nil {
				return err
			}
			r.times(name, n, "", all.samples)
		}
		return nil
	})
}

func (o ChannelOptions) exchangeTogether(ctx context.Context, socket string, clients int, exchanges [][2]int) (measured, error) {
	most := 0
	for _, e := range exchanges {
		most = max(most, e[0], e[1])
	}
	conns, bufs := make([]net.Conn, clients), make([][]byte, clients)
	for i := range conns {
		conn, err := dialEcho(ctx, socket)
		if err != nil {
			return measured{}, err
		}
		defer conn.Close()
		conns[i], bufs[i] = conn, make([]byte, exchangeHeader+most)
	}
	return together(ctx, o.call(clients, func(_ context.Context, i int) (time.Duration, error) {
		begun := time.Now()
		for _, e := range exchanges {
			if err := exchange(conns[i], bufs[i], e[0], e[1]); err != nil {
				return 0, err
			}
		}
		return time.Since(begun), nil
	}))
}

// withEngines gives use as many engines as the largest number of clients, on one fresh Manager.
func (o ChannelOptions) withEngines(ctx context.Context, use func([]*engine) error) error {
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

// ping is the round trip of the smallest frame: what a call costs before it does anything.
func (o ChannelOptions) ping(ctx context.Context, r *report) error {
	return o.withEngines(ctx, func(engines []*engine) error {
		for _, clients := range clientCounts {
			all, err := together(ctx, o.call(clients, func(ctx context.Context, i int) (time.Duration, error) {
				begun := time.Now()
				err := engines[i].scheduler.Ping(ctx)
				return time.Since(begun), err
			}))
			if err != nil {
				return err
			}
			r.times("ping", clients, barePingName, all.samples)
		}
		return nil
	})
}

// publish reserves and commits new pages, first while there is room, then while every page must be reclaimed.
func (o ChannelOptions) publish(ctx context.Context, r *report) error {
	return o.withEngines(ctx, func(engines []*engine) error {
		next, e := 0, engines[0]
		name := fmt.Sprintf("reserve + commit %d pages", publishPages)
		for _, phase := range []string{name + ", room", name + ", full pool"} {
			var reserves, whole []time.Duration
			begun := time.Now()
			for n := 0; n < o.pages()/publishPages && (n <= channelWarmUp || time.Since(begun) < o.RowTime); n++ {
				reserve, commit, err := e.publish(ctx, keysOf(next, publishPages))
				if err != nil {
					return err
				}
				next += publishPages
				if n >= channelWarmUp {
					reserves, whole = append(reserves, reserve), append(whole, commit)
				}
			}
			r.times(phase, 1, barePublishName, whole)
			r.times(phase+": reserve alone", 1, bareReserveName, reserves)
			if missing := o.pages() - next; missing > 0 {
				if err := e.publishAll(ctx, keysOf(next, missing)); err != nil {
					return err
				}
				next += missing
			}
		}
		return nil
	})
}
