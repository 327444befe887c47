package arena

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of populating. They are exported for what populating is measured beside.
const (
	PieceBytes = 128 << 20 // populated by one call: how long a stop may have to wait
	WorkersMax = 16        // more do not help: the kernel's zeroing is bound by memory bandwidth
)

// Populate fills the arenas with memory, several pieces at a time, and calls ready once for each arena, in order, when all of it is
// there: only then may it be lent. The memory is charged to the control group of this process. It returns when all are populated, at
// the first failure, or when ctx ends; arenas that were not reported stay unusable. A piece waits until room has space for it; with
// a nil room, and for huge pages, which are reserved apart, nothing waits.
func (p *Pool) Populate(ctx context.Context, log *slog.Logger, room Room, ready func(*Arena)) error {
	if p.hugePages {
		room = nil
	}
	g := &gate{room: room, log: log}
	began := time.Now()
	var done uint64
	for i, a := range p.arenas {
		start := time.Now()
		if err := p.populate(ctx, g, a); err != nil {
			return fmt.Errorf("arena %d of %d, %d bytes: %w", i, len(p.arenas), a.Bytes, err)
		}
		done += a.Bytes
		log.Info("arena populated", "arena", a.ID, "node", a.Node, "bytes", a.Bytes, "took", time.Since(start).Round(time.Millisecond),
			"arenas", fmt.Sprintf("%d/%d", i+1, len(p.arenas)), "pool_bytes", fmt.Sprintf("%d/%d", done, p.Bytes()))
		ready(a)
	}
	log.Info("pool populated", "bytes", done, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (p *Pool) populate(ctx context.Context, g *gate, a *Arena) error {
	pieces := (a.Bytes + PieceBytes - 1) / PieceBytes
	var next atomic.Uint64
	errs := make([]error, min(pieces, uint64(min(runtime.GOMAXPROCS(0), WorkersMax))))
	var workers sync.WaitGroup
	for w := range errs {
		workers.Go(func() {
			for errs[w] == nil {
				i := next.Add(1) - 1
				if i >= pieces {
					return
				}
				offset := i * PieceBytes
				bytes := min(PieceBytes, a.Bytes-offset)
				if errs[w] = g.enter(ctx, bytes); errs[w] == nil {
					errs[w] = populatePiece(a, offset, bytes)
					g.leave(bytes)
				}
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}

// populatePiece maps the piece only for the call: the kernel fills the file's pages, Go never touches them.
func populatePiece(a *Arena, offset, bytes uint64) error {
	view, err := unix.Mmap(a.Descriptor(), int64(offset), int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %d bytes at %d: %w", bytes, offset, err)
	}
	err = retry(func() error { return unix.Madvise(view, unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) { // a kernel before 5.14
		err = retry(func() error { return unix.Fallocate(a.Descriptor(), 0, int64(offset), int64(bytes)) })
	}
	if err = firstError(err, unix.Munmap(view)); err != nil {
		return fmt.Errorf("populating %d bytes at %d: %w: less memory is free than the pool needs, lower --pool-size or raise the control group's limit", bytes, offset, err)
	}
	return nil
}

// retry repeats a call that a signal cut short; Go's runtime preempts with signals.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}
