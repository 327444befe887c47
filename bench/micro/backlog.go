package micro

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"orbitkv/internal/vfs/faulty"
)

// Bounds of the section backlog.
const (
	backlogBytes   = 128 << 20 // of pages that wait to be written at any time, and writersMin pages at least
	backlogHot     = 16        // pages that are read again and again
	backlogStorage = 8         // backlogs that the store holds
)

// backlog measures a demand read on a disk that is slowed on purpose: alone, and while more pages wait to be written than the disk can take.
func (o SSDOptions) backlog(ctx context.Context, r *report) error {
	rules, err := faulty.Parse(fmt.Sprintf("read-rate=%d,write-rate=%d", o.Throttle, o.Throttle))
	if err != nil {
		return err
	}
	for _, page := range o.Pages {
		if err := o.backlogRows(ctx, r, page, rules); err != nil {
			return err
		}
	}
	return nil
}

func (o SSDOptions) backlogRows(ctx context.Context, r *report, page uint64, rules faulty.Rules) (err error) {
	writers := int(min(writersMax, max(writersMin, backlogBytes/page)))
	t, err := openTier(tierOptions{
		folder: o.Path, engine: "pool", page: page, capacity: max(o.FileBytes/4, backlogStorage*uint64(writers)*page), slots: writers + 1, rules: rules,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	reader := writers // the slot of the one that reads
	for range backlogHot {
		if _, err := t.write(reader); err != nil {
			return err
		}
	}
	hot := t.stored(backlogHot)
	read := func(context.Context, int) (time.Duration, error) { return t.read(reader, hot[rand.IntN(len(hot))]) }
	for _, number := range hot { // they are demanded now, and stay when others come
		if _, err := t.read(reader, number); err != nil {
			return err
		}
	}
	alone := fmt.Sprintf("demand read %s, disk of %s/s, no writes", sizeName(page), sizeName(o.Throttle))
	all, err := together(ctx, load{clients: 1, warmUp: 1, time: o.RowTime, once: read})
	if err != nil {
		return err
	}
	r.times(alone, 1, "", all.samples)

	before := t.store.Stats()
	stop := t.flood(writers)
	all, err = together(ctx, load{clients: 1, warmUp: 1, time: o.RowTime, once: read})
	queued := t.store.Stats()
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	if queued.WriteQueuePages == 0 {
		return errors.New("no page waited to be written: the disk took them as they came, give a lower --throttle")
	}
	r.times(fmt.Sprintf("demand read %s, disk of %s/s, behind a write backlog", sizeName(page), sizeName(o.Throttle)), 1, alone, all.samples)
	written := float64(queued.WriteBytesTotal-before.WriteBytesTotal) / (1 << 20)
	r.add(figure{Name: fmt.Sprintf("written meanwhile in pages of %s", sizeName(page)), Parallel: 1, Unit: "MiB", N: int(queued.WritePagesTotal - before.WritePagesTotal), P50: written})
	return nil
}

// flood keeps as many pages waiting to be written as there are slots, from its return, when the first of them is durable, until the returned function is
// called, which waits for the last one.
func (t *tier) flood(writers int) (stop func() error) {
	var over atomic.Bool
	var all sync.WaitGroup
	failures, first := make([]error, writers), make(chan struct{}, writers)
	for slot := range writers {
		all.Go(func() {
			_, failures[slot] = t.write(slot)
			first <- struct{}{}
			for !over.Load() && failures[slot] == nil {
				_, failures[slot] = t.write(slot)
			}
		})
	}
	<-first
	return func() error {
		over.Store(true)
		all.Wait()
		return errors.Join(failures...)
	}
}
