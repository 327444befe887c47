package micro

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"orbitkv/internal/ssd"
)

// storeEngines are the two ways in which the store moves bytes.
var storeEngines = []string{"pool", "uring"}

// Bounds of what is under way in the store's rows.
const (
	writeAheadBytes = 64 << 20 // two group commits: one is filled while the other becomes durable
	writersMin      = 2
	writersMax      = 512
	writersShare    = 8 // of the capacity: pages under way hold their space, and what they replace holds its own
)

// writersOf is how many pages wait to be durable at a time.
func (o SSDOptions) writersOf(page uint64) int {
	return int(min(writersMax, max(writersMin, min(writeAheadBytes, o.FileBytes/writersShare)/page)))
}

// readersOf is how many pages are asked for at a time: as many as the store reads, and what its queue holds of as many again.
func readersOf(page uint64) int {
	return ssd.DefaultReadInflight + int(min(ssd.DefaultReadInflight, ssd.DefaultReadQueueBytes/page))
}

// storeJob is one subject of the section store: the raw disk, or the store with one engine, with pages of one size.
type storeJob struct {
	page   uint64
	engine string // empty: the raw disk
}

// store measures the store beside the raw disk in blocks of a page and at its depth. Each engine has a look at the raw disk of its own beside it, as what a disk
// that others use gives changes within seconds.
func (o SSDOptions) store(ctx context.Context, r *report, d *disk) error {
	var jobs []storeJob
	for _, page := range o.Pages {
		for _, engine := range o.Engines {
			jobs = append(jobs, storeJob{page, ""}, storeJob{page, engine})
		}
	}
	if r.round%2 == 0 {
		slices.Reverse(jobs)
	}
	for _, job := range jobs {
		var err error
		if job.engine == "" {
			err = o.rawRows(ctx, r, d, job.page)
		} else {
			err = o.storeRows(ctx, r, job)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The names of a job's rows.
func rawName(verb string, page uint64) string { return "raw " + verb + " " + sizeName(page) }

func (j storeJob) name(verb string) string {
	return fmt.Sprintf("store %s %s, %s", verb, sizeName(j.page), j.engine)
}

// rawRows measures the disk at the depths of the store.
func (o SSDOptions) rawRows(ctx context.Context, r *report, d *disk, page uint64) error {
	for _, row := range []struct {
		verb  string
		depth int
		call  func([]byte, int64) error
	}{{"write", ssd.DefaultWriteInflight, d.write}, {"read", ssd.DefaultReadInflight, d.read}} {
		b, err := newBuffers(row.depth, int(page))
		if err != nil {
			return err
		}
		err = o.moved(ctx, r, movement{name: rawName(row.verb, page), depth: row.depth, clients: row.depth, page: page, once: func(i int) (time.Duration, error) {
			at := rand.Uint64N(o.FileBytes/page) * page
			begun := time.Now()
			err := row.call(b.of(i), int64(at))
			return time.Since(begun), err
		}})
		if err = errors.Join(err, b.free()); err != nil {
			return err
		}
	}
	return nil
}

// storeRows measures the store with one engine: writes into a store that is full, so that every page takes the place of another, then reads of random
// pages. At the end every byte that is stored is compared.
func (o SSDOptions) storeRows(ctx context.Context, r *report, job storeJob) (err error) {
	t, err := openTier(tierOptions{
		folder: o.Path, engine: job.engine, page: job.page, capacity: o.FileBytes, slots: max(o.writersOf(job.page), readersOf(job.page)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	cached, err := pageCache()
	if err != nil {
		return err
	}
	if err := t.fillUp(ctx); err != nil {
		return err
	}
	before := t.store.Stats()
	err = o.moved(ctx, r, movement{
		name: job.name("write"), ceiling: rawName("write", job.page), depth: ssd.DefaultWriteInflight, clients: o.writersOf(job.page), page: job.page, once: t.write,
	})
	if err != nil {
		return err
	}
	after := t.store.Stats()
	if pages := after.WriteBytesTotal - before.WriteBytesTotal; pages > 0 {
		amplification := 100 * float64(after.DeviceBytesTotal-before.DeviceBytesTotal) / float64(pages)
		r.add(figure{Name: job.name("write") + ": bytes on the device for the pages'", Parallel: ssd.DefaultWriteInflight, Unit: "%", N: int(pages / job.page), P50: amplification})
	}
	all := t.stored(int(t.next.Load()))
	if len(all) == 0 {
		return errors.New("the store holds no page after its writes")
	}
	err = o.moved(ctx, r, movement{
		name: job.name("read"), ceiling: rawName("read", job.page), depth: ssd.DefaultReadInflight, clients: readersOf(job.page), page: job.page,
		once: func(slot int) (time.Duration, error) { return t.read(slot, all[rand.IntN(len(all))]) },
	})
	if err != nil {
		return err
	}
	return errors.Join(o.growth(r, t, job, cached), o.proveTier(ctx, t, job))
}

// growth adds how much the machine's page cache grew while the store moved its pages. It is the whole machine's: where others read files it says nothing.
func (o SSDOptions) growth(r *report, t *tier, job storeJob, before int64) error {
	after, err := pageCache()
	if err != nil {
		return err
	}
	s := t.store.Stats()
	gigabytes := float64(s.WriteBytesTotal+s.ReadBytesTotal) / 1e9
	r.add(figure{
		Name: fmt.Sprintf("store %s, %s: growth of the machine's page cache", sizeName(job.page), job.engine), Unit: "MB/GB", N: int(s.WritePagesTotal + s.ReadPagesTotal),
		P50: float64(after-before) / 1e6 / gigabytes,
	})
	return nil
}

// proveTier looks for the payload in the page cache and compares every byte that is stored.
func (o SSDOptions) proveTier(ctx context.Context, t *tier, job storeJob) error {
	found, err := t.cached()
	if err != nil {
		return err
	}
	if found {
		return errors.New("the page cache has a part of the store's payload: its figures would be those of memory")
	}
	pages, err := t.check(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Progress, "ssd: %s, %s: every byte of %d stored pages is right, and the page cache has none of %d places of them\n", sizeName(job.page), job.engine, pages, tierProbes)
	return nil
}

// movement is one row of pages that move between memory and disk.
type movement struct {
	name, ceiling string
	depth         int // that the device sees
	clients       int // pages that are asked for at a time
	page          uint64
	once          func(client int) (time.Duration, error)
}

// moved measures a movement and the processor time that it costs.
func (o SSDOptions) moved(ctx context.Context, r *report, m movement) error {
	var calls atomic.Int64
	before, err := processorTime()
	if err != nil {
		return err
	}
	all, err := together(ctx, load{clients: m.clients, warmUp: 1, time: o.RowTime, once: func(_ context.Context, i int) (time.Duration, error) {
		calls.Add(1)
		return m.once(i)
	}})
	if err != nil {
		return err
	}
	after, err := processorTime()
	if err != nil {
		return err
	}
	r.rated(m.name, m.depth, m.ceiling, all.samples, gib(all.calls, m.page), gibPerSecond)
	gigabytes := float64(calls.Load()) * float64(m.page) / 1e9
	ceiling := ""
	if m.ceiling != "" {
		ceiling = m.ceiling + cpuSuffix
	}
	r.add(figure{Name: m.name + cpuSuffix, Parallel: m.depth, Unit: "ms/GB", N: int(calls.Load()), P50: (after - before).Seconds() * 1000 / gigabytes, Ceiling: ceiling})
	return nil
}

const cpuSuffix = ": processor time"
