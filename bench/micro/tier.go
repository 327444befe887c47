package micro

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/faulty"
)

// The identity of the one namespace that a measured tier has.
var tierIdentity = [32]byte{'b', 'e', 'n', 'c', 'h'}

const stampEvery = 4 << 10 // bytes of a page that carry one stamp: the page's number and the block's

// tierOptions are what a tier of a measurement is made with.
type tierOptions struct {
	folder   string // in which a folder of its own is made
	engine   string // pool or uring
	page     uint64 // bytes
	capacity uint64 // bytes on disk
	slots    int    // pages under way at most
	rules    faulty.Rules
}

// tier is an SSD store of this process on the disk that is measured, with the memory that its pages come from and go to. Every page is a function of its number:
// random bytes that all pages share, and a stamp in each of its blocks.
type tier struct {
	tierOptions
	dir       string
	store     *ssd.Store
	namespace uint32
	payload   *os.File // through the page cache, to look at it
	memory    []byte   // a page for each slot
	base      []byte   // a page without stamps
	next      atomic.Uint64
	ends      []chan string // of each slot's transfer: why it failed, or nothing
}

// openTier makes an empty tier. However this process ends, no page is left on the disk: the payload has no name once it is open.
func openTier(o tierOptions) (t *tier, err error) {
	t = &tier{tierOptions: o}
	if t.dir, err = os.MkdirTemp(o.folder, "orbitkv-bench-"); err != nil {
		return nil, fmt.Errorf("no folder can be made in %s: %w: name a folder that you may write to", o.folder, err)
	}
	if err := errors.Join(t.fill(), t.open()); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// fill makes the memory of the slots.
func (t *tier) fill() (err error) {
	if t.memory, err = plainMemory(uint64(t.slots) * t.page); err != nil {
		return err
	}
	t.base = make([]byte, t.page)
	if _, err := rand.NewChaCha8([32]byte{2}).Read(t.base); err != nil {
		return err
	}
	for slot := range t.slots {
		copy(t.of(slot), t.base)
		t.ends = append(t.ends, make(chan string, 1))
	}
	return nil
}

func (t *tier) open() error {
	disk, err := vfs.NewOS(t.dir)
	if err != nil {
		return err
	}
	t.store, err = ssd.Open(ssd.Config{
		Volumes: []ssd.VolumeConfig{{FS: nameless{faulty.Wrap(disk, t.rules)}}}, CapacityBytes: t.capacity, Backend: t.engine,
		Memory: func(location, bytes uint64) []byte { return t.memory[location:][:bytes] }, MemoryRegions: [][]byte{t.memory},
	})
	if err != nil {
		return err
	}
	if t.namespace = t.store.Namespace(tierIdentity, 0, t.page); t.namespace == 0 {
		return errors.New("the store takes no namespace")
	}
	path := filepath.Join(t.dir, format.PayloadName)
	if t.payload, err = os.Open(path); err != nil {
		return err
	}
	return os.Remove(path)
}

// nameless is a folder whose payload loses its name on purpose, which the store takes for a deletion under it.
type nameless struct{ vfs.FS }

// Open opens a file that says that it has a name.
func (n nameless) Open(name string, mode vfs.Mode) (vfs.File, error) {
	file, err := n.FS.Open(name, mode)
	if err != nil {
		return nil, err
	}
	return namelessFile{file}, nil
}

type namelessFile struct{ vfs.File }

// Named says what the store would like to hear.
func (namelessFile) Named() (bool, error) { return true, nil }

// close ends the store and removes its folder.
func (t *tier) close() error {
	var errs []error
	if t.store != nil {
		errs = append(errs, t.store.Close())
	}
	if t.payload != nil {
		errs = append(errs, t.payload.Close())
	}
	if t.memory != nil {
		errs = append(errs, unix.Munmap(t.memory))
	}
	return errors.Join(append(errs, os.RemoveAll(t.dir))...)
}

// of is the memory of a slot.
func (t *tier) of(slot int) []byte { return t.memory[uint64(slot)*t.page:][:t.page] }

// stamp makes a slot's memory the page of a number.
func (t *tier) stamp(slot int, number uint64) {
	page := t.of(slot)
	for at := 0; at < len(page); at += stampEvery {
		putStamp(page[at:], number, at)
	}
}

func putStamp(to []byte, number uint64, at int) {
	binary.LittleEndian.PutUint64(to, number)
	binary.LittleEndian.PutUint64(to[8:], ^uint64(at))
}

const stampBytes = 16

// stamped says whether a slot's memory holds the first and the last block of a page.
func (t *tier) stamped(slot int, number uint64) bool {
	page := t.of(slot)
	last := len(page) - stampEvery
	return hasStamp(page, number, 0) && hasStamp(page[last:], number, last)
}

func hasStamp(block []byte, number uint64, at int) bool {
	return binary.LittleEndian.Uint64(block) == number && binary.LittleEndian.Uint64(block[8:]) == ^uint64(at)
}

// whole says at which byte a slot's memory differs from the page of a number; nil where it is that page.
func (t *tier) whole(slot int, number uint64) error {
	page := t.of(slot)
	for at := 0; at < len(page); at += stampEvery {
		block := page[at:][:stampEvery]
		if !hasStamp(block, number, at) || !bytes.Equal(block[stampBytes:], t.base[at+stampBytes:][:stampEvery-stampBytes]) {
			return fmt.Errorf("page %d came back with wrong bytes in its block at %d: the store or the disk is faulty, trust no figure of it", number, at)
		}
	}
	return nil
}

// key is the key of a page.
func key(number uint64) ssd.Key { return ssd.Key(keysOf(int(number), 1)[0]) }

func (t *tier) parts(slot int) []ssd.Part {
	return []ssd.Part{{Location: uint64(slot) * t.page, Bytes: t.page}}
}

// write stores a new page and returns the time until it was durable. It may be called by one goroutine a slot.
func (t *tier) write(slot int) (time.Duration, error) {
	number := t.next.Add(1) - 1
	t.stamp(slot, number)
	begun := time.Now()
	taken := t.store.Write(ssd.Write{Namespace: t.namespace, Key: key(number), Parts: t.parts(slot), Done: func(r ssd.WriteResult) { t.ends[slot] <- r.Reason }})
	if !taken {
		return 0, fmt.Errorf("the store took no page: %v", t.store.Stats().WriteSkipsTotal)
	}
	if reason := <-t.ends[slot]; reason != "" {
		return 0, fmt.Errorf("page %d was not written: %s", number, reason)
	}
	return time.Since(begun), nil
}

// read brings a stored page into a slot and returns how long that took.
func (t *tier) read(slot int, number uint64) (time.Duration, error) {
	begun := time.Now()
	taken := t.store.Read(ssd.Read{Namespace: t.namespace, Key: key(number), Parts: t.parts(slot), Priority: ssd.Demand, Done: func(r ssd.ReadResult) { t.ends[slot] <- r.Reason }})
	if !taken {
		return 0, fmt.Errorf("the store did not take the read of page %d: it is gone, or the queue is full", number)
	}
	reason := <-t.ends[slot]
	took := time.Since(begun)
	switch {
	case reason != "":
		return 0, fmt.Errorf("page %d was not read: %s", number, reason)
	case !t.stamped(slot, number):
		return 0, fmt.Errorf("another page came back for page %d: the store is faulty, trust no figure of it", number)
	}
	return took, nil
}

// stored lists the pages that can be read, the newest first, as many as wanted.
func (t *tier) stored(most int) (all []uint64) {
	for number := t.next.Load(); number > 0 && len(all) < most; number-- {
		if k := key(number - 1); t.store.Stored(t.namespace, 0, &k) {
			all = append(all, number-1)
		}
	}
	return all
}

// fillUp writes until pages have to leave for others, so that no block of the payload is new.
func (t *tier) fillUp(ctx context.Context) error {
	extents := t.store.Stats().PayloadBytes / format.ExtentBytes(t.page)
	return t.each(ctx, extents+extents/16, func(slot int, _ uint64) error {
		_, err := t.write(slot)
		return err
	})
}

// each calls once for the numbers below count, with as many goroutines as there are slots.
func (t *tier) each(ctx context.Context, count uint64, once func(slot int, i uint64) error) error {
	var begun atomic.Uint64
	failures := make([]error, t.slots)
	var slots sync.WaitGroup
	for slot := range t.slots {
		slots.Go(func() {
			for i := begun.Add(1) - 1; i < count && failures[slot] == nil; i = begun.Add(1) - 1 {
				failures[slot] = errors.Join(once(slot, i), ctx.Err())
			}
		})
	}
	slots.Wait()
	return errors.Join(failures...)
}

// check reads every page that is stored and compares every byte of it.
func (t *tier) check(ctx context.Context) (pages int, err error) {
	all := t.stored(int(t.next.Load()))
	if len(all) == 0 {
		return 0, errors.New("nothing is stored after the measurement: no byte could be compared")
	}
	return len(all), t.each(ctx, uint64(len(all)), func(slot int, i uint64) error {
		if _, err := t.read(slot, all[i]); err != nil {
			return err
		}
		return t.whole(slot, all[i])
	})
}

// cached says whether the page cache has any of some places of the payload.
func (t *tier) cached() (bool, error) {
	info, err := t.payload.Stat()
	if err != nil {
		return false, err
	}
	view, err := unix.Mmap(int(t.payload.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return false, os.NewSyscallError("mmap", err)
	}
	found := false
	for i := range tierProbes {
		at := len(view) / tierProbes * i / stampEvery * stampEvery
		here, failed := resident(view[at:][:stampEvery])
		found, err = found || here, errors.Join(err, failed)
	}
	return found, errors.Join(err, unix.Munmap(view))
}

const tierProbes = 4096 // places of the payload that are looked for in the page cache
