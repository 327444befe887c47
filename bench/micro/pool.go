package micro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"orbitkv/internal/doctor"
)

// PoolOptions are what Pool measures with.
type PoolOptions struct {
	Options
	PoolBytes  uint64 // that are populated and copied; copies need as much again twice
	IndexPages int    // of the index section
}

const (
	poolBytesMin    = 4 * pageBytes
	poolBytesMax    = 1 << 50
	indexPagesMin   = 1 << 17 // so that the longest queries of all clients fit the query budget
	indexPagesMax   = 1 << 28
	indexBytes      = 150 // of memory for each page, with the table that its ceiling reads
	memoryThreadMax = 64  // of copies
)

func (o PoolOptions) check() error {
	if o.PoolBytes < poolBytesMin || o.PoolBytes > poolBytesMax {
		return fmt.Errorf("--pool is %d bytes: give %d to %d", o.PoolBytes, uint64(poolBytesMin), uint64(poolBytesMax))
	}
	if o.IndexPages < indexPagesMin || o.IndexPages > indexPagesMax {
		return fmt.Errorf("--index-pages is %d: give %d to %d", o.IndexPages, indexPagesMin, indexPagesMax)
	}
	return nil
}

// Pool measures the memory pool and the cache's tables in this process and writes the table to out.
func Pool(ctx context.Context, o PoolOptions, out io.Writer) error {
	sections := []section{
		{"populate", o.barePopulate},
		{"populate", o.populate},
		{"copy", o.copies},
		{"reclaim", o.bareReclaim},
		{"reclaim", o.reclaim},
		{"tier", o.bareTiered},
		{"tier", o.tiered},
		{"index", o.bareIndex},
		{"index", o.index},
	}
	if err := errors.Join(o.check(), o.Options.check(sections)); err != nil {
		return err
	}
	if err := roomFor(max(3*o.PoolBytes, uint64(o.IndexPages)*indexBytes), "the measurement", "a smaller --pool or fewer --index-pages"); err != nil {
		return err
	}
	r := newReport("pool", "threads")
	r.about = fmt.Sprintf("arenas of %.3g GiB; a copied page has %d MiB in %d pieces of %d KiB, as 64 tokens of an 8B model have",
		float64(o.PoolBytes)/(1<<30), pageBytes>>20, pagePieces, pieceBytes>>10)
	r.note = "Of a latency the ceiling's median is compared, of a rate the rate. Reserving and evicting move no bytes."
	return run(ctx, o.Options, r, sections, out)
}

// roomFor says when less memory is free than something needs: over a control group's limit the kernel does not refuse memory, it kills. less names what to
// give less of.
func roomFor(bytes uint64, what, less string) error {
	free, err := doctor.FreeMemory(os.DirFS("/"))
	if err != nil {
		return err
	}
	if bytes > free.Bytes {
		return fmt.Errorf("%s needs %.1f GiB of memory and %.1f are free under %s: give %s, or end what uses it",
			what, float64(bytes)/(1<<30), float64(free.Bytes)/(1<<30), free.Source, less)
	}
	return nil
}
