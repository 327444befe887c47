package micro

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/arena"
)

// The page that copies move: 64 tokens of a model with 36 layers, keys and values apart, 8 heads of 128 numbers of two bytes.
const (
	pagePieces = 72
	pieceBytes = 128 << 10
	pageBytes  = pagePieces * pieceBytes
)

const (
	populateTimes    = 3 // at least, in each round
	populateTimesMax = 1000
)

const barePopulateName = "populate plain memory"

func populateThreads() int { return min(runtime.GOMAXPROCS(0), arena.WorkersMax) }

// barePopulate has the kernel fill as much memory of no file by as many threads, in pieces as large.
func (o PoolOptions) barePopulate(ctx context.Context, r *report) error {
	return o.populations(ctx, r, barePopulateName, "", func() (time.Duration, error) {
		begun := time.Now()
		memory, err := plainMemory(o.PoolBytes)
		took := time.Since(begun)
		if err != nil {
			return 0, err
		}
		return took, unix.Munmap(memory)
	})
}

// populate makes the arenas of a pool and fills them, as a starting Manager does.
func (o PoolOptions) populate(ctx context.Context, r *report) error {
	return o.populations(ctx, r, "populate the arenas", barePopulateName, func() (time.Duration, error) {
		begun := time.Now()
		pool, err := o.newPool(ctx)
		took := time.Since(begun)
		if err != nil {
			return 0, err
		}
		return took, pool.Close()
	})
}

func (o PoolOptions) populations(ctx context.Context, r *report, name, ceiling string, once func() (time.Duration, error)) error {
	var samples []time.Duration
	var sum time.Duration
	for n := 0; n < populateTimes || (sum < o.RowTime && n < populateTimesMax); n++ {
		took, err := once()
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		samples, sum = append(samples, took), sum+took
	}
	r.rated(name, populateThreads(), ceiling, samples, gib(float64(len(samples))/sum.Seconds(), o.PoolBytes), gibPerSecond)
	return nil
}

func (o PoolOptions) newPool(ctx context.Context) (*arena.Pool, error) {
	pool, err := arena.Create(arena.Config{PoolBytes: o.PoolBytes, Incarnation: "bench"})
	if err != nil {
		return nil, err
	}
	if err := pool.Populate(ctx, slog.New(slog.DiscardHandler), nil, func(*arena.Arena) {}); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return pool, nil
}

// plainMemory maps memory of no file, all of it filled by the kernel.
func plainMemory(bytes uint64) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	if err := fill(memory); err != nil {
		return nil, errors.Join(err, unix.Munmap(memory))
	}
	return memory, nil
}

// fill has the kernel put memory behind every page of a mapping.
func fill(memory []byte) error {
	pieces := slices.Collect(slices.Chunk(memory, arena.PieceBytes))
	var next atomic.Int64
	failures := make([]error, populateThreads())
	var threads sync.WaitGroup
	for t := range failures {
		threads.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(pieces)) && failures[t] == nil; i = next.Add(1) - 1 {
				failures[t] = fillPiece(pieces[i])
			}
		})
	}
	threads.Wait()
	return errors.Join(failures...)
}

func fillPiece(piece []byte) error {
	for {
		err := unix.Madvise(piece, unix.MADV_POPULATE_WRITE)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // Go's runtime preempts with signals
			continue
		case errors.Is(err, unix.EINVAL): // a kernel before 5.14
			for at := 0; at < len(piece); at += arena.PageBytes {
				piece[at] = 0
			}
			return nil
		}
		return err
	}
}

// copies copies whole pages between memory laid out as an engine's, whose pieces of one page lie far apart, and the arenas, and as the
// ceiling between it and plain memory.
func (o PoolOptions) copies(ctx context.Context, r *report) (err error) {
	pool, err := o.newPool(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	var mappings [][]byte
	defer func() {
		for _, m := range mappings {
			err = errors.Join(err, unix.Munmap(m))
		}
	}()
	var inArenas [][]byte
	for _, a := range pool.Arenas() {
		view, err := unix.Mmap(a.Descriptor(), 0, int(a.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("mapping arena %d: %w", a.ID, err)
		}
		mappings = append(mappings, view)
		if err := fill(view); err != nil {
			return err
		}
		inArenas = append(inArenas, wholePages(view)...)
	}
	plain, err := plainMemory(o.PoolBytes)
	if err != nil {
		return err
	}
	mappings = append(mappings, plain)
	engine, err := plainMemory(uint64(len(inArenas)) * pageBytes)
	if err != nil {
		return err
	}
	mappings = append(mappings, engine)
	return o.copyRows(ctx, r, engine, inArenas, wholePages(plain)[:len(inArenas)])
}

// wholePages cuts memory into pages and leaves out what is left over.
func wholePages(memory []byte) [][]byte {
	return slices.Collect(slices.Chunk(memory[:len(memory)/pageBytes*pageBytes], pageBytes))
}

func (o PoolOptions) copyRows(ctx context.Context, r *report, engine []byte, inArenas, inPlain [][]byte) error {
	const ceiling = "copy plain memory to plain memory"
	rows := []struct {
		name, ceiling string
		pages         [][]byte
		out           bool
	}{
		{ceiling, "", inPlain, false},
		{"copy into the arenas", ceiling, inArenas, false},
		{"copy out of the arenas", ceiling, inArenas, true},
	}
	for _, threads := range threadCounts(min(memoryThreadMax, len(inArenas))) {
		order := slices.Clone(rows)
		if r.round%2 == 0 {
			slices.Reverse(order)
		}
		for _, row := range order {
			all, err := together(ctx, load{clients: threads, warmUp: 1, time: o.RowTime, once: func(_ context.Context, i int) (time.Duration, error) {
				page := i + threads*rand.IntN((len(row.pages)-i+threads-1)/threads) // each thread has pages of its own
				begun := time.Now()
				copyPage(engine, len(row.pages), page, row.pages[page], row.out)
				return time.Since(begun), nil
			}})
			if err != nil {
				return err
			}
			r.rated(row.name, threads, row.ceiling, all.samples, gib(all.calls, pageBytes), gibPerSecond)
		}
	}
	return nil
}

// copyPage copies between a page and the engine's pieces of it: piece i of every page lies in the engine's i-th tensor.
func copyPage(engine []byte, pages, page int, bytes []byte, out bool) {
	for i := range pagePieces {
		piece := engine[(i*pages+page)*pieceBytes:][:pieceBytes]
		if part := bytes[i*pieceBytes:][:pieceBytes]; out {
			copy(piece, part)
		} else {
			copy(part, piece)
		}
	}
}
