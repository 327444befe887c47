package ssd

import (
	"cmp"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"orbitkv/internal/blockio"
	"orbitkv/internal/extent"
	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/ssd/journal"
	"orbitkv/internal/vfs"
)

const (
	superblockNew = format.SuperblockName + ".new"
	lockWait      = 3 * time.Second // for the lock of a folder
	lockPoll      = 10 * time.Millisecond
)

// openVolumes opens all folders. A refusal, which the operator must clear up, is an error; anything else turns that volume off.
func (s *Store) openVolumes() error {
	begun := s.config.Now()
	var troubles []error
	for i, one := range s.config.Volumes {
		v := &volume{
			store: s, number: i, name: one.Name, fs: one.FS, capacity: s.config.share(), readers: map[index.Handle]int{}, changed: sync.NewCond(&s.mu),
		}
		s.volumes = append(s.volumes, v)
		err := v.open()
		if errors.As(err, new(refusal)) {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		if err != nil {
			troubles = append(troubles, fmt.Errorf("%s: %w", v.name, err))
			s.mu.Lock()
			v.off(err.Error())
			s.leave()
			continue
		}
		if v.engine != nil {
			s.config.Log.Info("a volume of the SSD cache is open", "volume", v.name, "engine", v.engine.Name(), "engine_reason", v.engineReason,
				"pages", v.index.Count(index.Sealed), "payload_bytes", v.payloadBytes, "capacity_bytes", v.capacity)
		}
	}
	s.recovered.took = s.config.Now().Sub(begun)
	switch {
	case len(troubles) < len(s.volumes):
		return nil
	case len(troubles) == 1:
		return troubles[0]
	}
	return fmt.Errorf("no folder can be used: %w", errors.Join(troubles...))
}

// ErrInUse says that a folder has its Manager, or another verification.
var ErrInUse = errors.New("another process has the folder")

// refusal is a folder that must not be touched.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// open takes the folder and reads the index log.
func (v *volume) open() error {
	if v.store.config.looks() {
		return v.examine()
	}
	return v.use()
}

// examine opens a volume to look at it.
func (v *volume) examine() error {
	err := v.openPayload()
	if err != nil {
		return err
	}
	v.payloadBytes, v.pagesMax = v.super.PayloadBytes, math.MaxUint64
	var state journal.State
	v.journal, state, err = journal.Examine(v.fs, v.id, v.limits())
	if errors.Is(err, journal.ErrNoLog) {
		return refuse("%s; a Manager that serves it begins empty and writes over them (%w)", v.unindexed(), err)
	}
	if err != nil {
		return err
	}
	return v.load(&state)
}

// limits are what the records of the index log are held against.
func (v *volume) limits() journal.Limits {
	return journal.Limits{PayloadBytes: v.super.PayloadBytes, Cleared: v.super.Cleared}
}

// unindexed says what a folder without a valid index may hold, and how to find it.
func (v *volume) unindexed() string {
	return fmt.Sprintf("the folder has a payload and no valid index: it may hold pages; `orbitkv verify --ssd-cache-path %s --rebuild-index` finds them", v.fs.Name())
}

// use takes the folder, brings the payload to its size, tries the I/O and reads the index log.
func (v *volume) use() error {
	err := v.openPayload()
	if err != nil {
		return err
	}
	if err := v.resize(); err != nil {
		return err
	}
	if err := v.startEngine(); err != nil {
		return err
	}
	var state journal.State
	if v.journal, state, err = journal.Open(v.fs, v.id, v.limits()); err != nil {
		return err
	}
	if state.Anew && !v.made {
		v.store.config.Log.Warn("a volume of the SSD cache begins empty and is written over: stop the Manager now if its pages matter", "volume", v.name,
			"reason", v.unindexed())
	}
	return v.load(&state)
}

// openPayload takes the folder and says what its superblock does, or makes one where a capacity is given. What is not ours is looked at first, and left
// as it is.
func (v *volume) openPayload() error {
	_, exists, err := v.superblock()
	if err == nil && v.store.config.looks() {
		err = v.complete(exists)
	}
	if err == nil {
		err = v.lock()
	}
	if err != nil {
		return err
	}
	v.super, exists, err = v.superblock() // another process may have made it before we had the lock
	if err == nil && !exists {
		err = v.makeSuperblock()
	}
	v.id = v.super.Volume
	return err
}

// complete refuses a folder that lacks a file without which there is nothing to look at.
func (v *volume) complete(superblock bool) error {
	if !superblock {
		return refuse("the folder has no file named %s: it is no volume of OrbitKV", format.SuperblockName)
	}
	exists, err := v.fs.Exists(format.PayloadName)
	if err == nil && !exists {
		err = refuse("the folder has no file named %s: its pages are gone; remove the files of this folder to begin with an empty cache", format.PayloadName)
	}
	return err
}

// lock takes the folder, by the lock of the descriptor that does the I/O: what a killed process still has under way keeps it, and so for a moment does
// the kernel's tidying after it. That is waited for, so that whoever starts a Manager anew need not try twice.
func (v *volume) lock() (err error) {
	if v.payload, err = v.fs.Open(format.PayloadName, vfs.Direct); err != nil {
		return err
	}
	for begun := time.Now(); ; time.Sleep(lockPoll) {
		if err = v.payload.Lock(); !errors.Is(err, vfs.ErrLocked) {
			return err
		}
		if time.Since(begun) >= lockWait {
			return refuse("%w: stop it, or name another folder; every Manager needs one of its own", ErrInUse)
		}
	}
}

// superblock reads the superblock. Without one, a folder that has an index log is not ours.
func (v *volume) superblock() (super format.Superblock, exists bool, err error) {
	if exists, err = v.fs.Exists(format.SuperblockName); err != nil {
		return super, false, err
	}
	if !exists {
		indexed, err := v.fs.Exists(format.IndexName)
		if err == nil && indexed {
			err = foreign(format.IndexName)
		}
		return super, false, err
	}
	file, err := v.fs.Open(format.SuperblockName, vfs.Buffered)
	if err != nil {
		return super, true, err
	}
	block := make([]byte, format.SuperblockBytes)
	if err := errors.Join(file.ReadAt([][]byte{block}, 0), file.Close()); err != nil {
		return super, true, err
	}
	super, err = format.DecodeSuperblock(block)
	switch {
	case errors.Is(err, format.ErrForeign), errors.Is(err, format.ErrVersion):
		err = refuse("the file %s: %w; name another folder, or remove the files of this one to begin with an empty cache", format.SuperblockName, err)
	case err != nil:
		err = fmt.Errorf("the file %s: %w; remove the files of this folder to begin with an empty cache", format.SuperblockName, err)
	}
	return super, true, err
}

func foreign(name string) error {
	return refuse("the folder has a file %s and no %s: it is not OrbitKV's, or damaged; name an empty folder, or remove the file", name, format.SuperblockName)
}

// makeSuperblock makes the folder a volume. The superblock is durable before anything is written into the payload, so one that has bytes without it is
// not ours.
func (v *volume) makeSuperblock() error {
	size, err := v.payload.Size()
	if err != nil {
		return err
	}
	if size > 0 {
		return foreign(format.PayloadName)
	}
	v.made = true
	var super format.Superblock
	crand.Read(super.Volume[:])
	super.PayloadBytes, _ = layOut(v.capacity)
	return v.writeSuperblock(super)
}

// keepCleared writes into the superblock what the volume was cleared of, where it does not say so yet. When it has returned without an error no page of
// before that clear comes back, whatever the index log says.
func (v *volume) keepCleared() error {
	super := v.super
	super.Cleared = v.journal.Cleared()
	if super == v.super {
		return nil
	}
	return v.writeSuperblock(super)
}

// writeSuperblock puts a superblock in place of the one that there is, whole or not at all.
func (v *volume) writeSuperblock(super format.Superblock) error {
	file, err := v.fs.Open(superblockNew, vfs.Buffered)
	if err != nil {
		return err
	}
	block := make([]byte, format.SuperblockBytes)
	super.Encode(block)
	err = file.WriteAt([][]byte{block}, 0)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := v.fs.Rename(superblockNew, format.SuperblockName); err != nil {
		return err
	}
	if err := v.fs.SyncFolder(); err != nil {
		return err
	}
	v.super = super
	return nil
}

// resize brings the payload to the size that the capacity gives it. Pages beyond a smaller one are lost, and their records say so when they are read.
func (v *volume) resize() error {
	v.payloadBytes, v.pagesMax = layOut(v.capacity)
	size, err := v.payload.Size()
	if err != nil {
		return err
	}
	allocated, err := v.payload.AllocatedBytes()
	if err != nil {
		return err
	}
	wanted := int64(v.payloadBytes)
	if size > wanted {
		if err := v.payload.Truncate(wanted); err != nil {
			return err
		}
	}
	if size < wanted || allocated < wanted {
		if err := v.payload.Allocate(wanted); err != nil {
			return fmt.Errorf("reserving %.2f GiB: %w; lower the capacity or make room", float64(wanted)/(1<<30), errors.Join(err, v.payload.Truncate(min(size, wanted))))
		}
	}
	if super := v.super; super.PayloadBytes != v.payloadBytes {
		super.PayloadBytes = v.payloadBytes
		if err := v.writeSuperblock(super); err != nil {
			return err
		}
	}
	return v.payload.Sync()
}

// startEngine chooses how bytes are moved, by a real write and read, and makes the blocks that stand behind pages.
func (v *volume) startEngine() (err error) {
	config := &v.store.config
	blocks := vfs.AlignedBuffer(config.WriteInflight * format.PageHeaderBytes)
	for at := 0; at < len(blocks); at += format.PageHeaderBytes {
		v.headers = append(v.headers, blocks[at:][:format.PageHeaderBytes:format.PageHeaderBytes])
	}
	v.engine, v.engineReason, err = blockio.Choose(blockio.Config{
		Want: config.Backend, File: v.payload, Depth: config.ReadInflight + config.WriteInflight, Memory: append(slices.Clone(config.MemoryRegions), blocks),
	})
	return err
}

// load takes what the index log holds into the index. It runs before anybody knows of the store.
func (v *volume) load(state *journal.State) error {
	s := v.store
	for reason, count := range state.Problems {
		s.recovered.problems[reason] += count
	}
	lives := v.loadNamespaces(state.Namespaces)
	v.index = index.New(s.config.Seed, v.lastReference)
	v.space = allLent(v.payloadBytes)
	if err := v.freeGaps(state.Puts); err != nil {
		return err
	}
	for i := range state.Puts {
		v.loadPage(lives[state.Puts[i].Namespace], &state.Puts[i])
	}
	s.recovered.pages += v.index.Count(index.Sealed)
	return v.fit()
}

// fit brings what was found to the bounds of today's capacity, which may be lower than the one that it was written under.
func (v *volume) fit() (err error) {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	for v.index.Count(index.Sealed) > v.pagesMax && v.evict() > 0 {
	}
	v.demote()
	if !s.config.looks() && v.journal.Due(int(v.index.Count(index.Sealed))) {
		order := v.order()
		s.leave()
		err = v.journal.Compact(v.snapshot(order))
		s.mu.Lock()
	}
	v.disk, err = v.measured(err)
	return err
}

func (v *volume) loadNamespaces(namespaces []journal.Namespace) map[uint32]*life {
	s := v.store
	lives := make(map[uint32]*life, len(namespaces))
	for _, n := range namespaces {
		f := facts{n.Identity, n.Epoch, n.PageBytes}
		ns := s.identities[f]
		if ns == nil {
			ns = s.newNamespace(f)
		}
		ns.numbers[v.number] = n.Number
		lives[n.Number] = ns.life
		v.lastNumber = max(v.lastNumber, n.Number)
	}
	return lives
}

// allLent is an allocator of which every byte is lent.
func allLent(bytes uint64) *extent.Allocator {
	space := extent.New(bytes)
	space.Alloc(space.Bytes())
	return space
}

// freeGaps gives back what lies between the extents of the pages.
func (v *volume) freeGaps(puts []journal.Put) error {
	order := make([]uint32, len(puts))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(x, y uint32) int { return cmp.Compare(puts[x].Offset, puts[y].Offset) })
	end := uint64(format.ScratchBytes)
	for _, i := range order {
		p := &puts[i]
		if p.Offset < end || p.Offset+format.ExtentBytes(p.Bytes) > v.space.Bytes() {
			return fmt.Errorf("the index log says that the page at %d overlaps another one or the end of the payload: remove the file %s to begin with an empty cache",
				p.Offset, format.IndexName)
		}
		if p.Offset > end {
			v.space.Free(end, p.Offset-end)
		}
		end = p.Offset + format.ExtentBytes(p.Bytes)
	}
	if end < v.space.Bytes() {
		v.space.Free(end, v.space.Bytes()-end)
	}
	return nil
}

// loadPage makes one page readable, unless another volume has it or its size is not that of its namespace.
func (v *volume) loadPage(l *life, p *journal.Put) {
	s := v.store
	problem := ""
	if l == nil || p.Bytes != l.namespace.pageBytes {
		problem = journal.OutOfBounds
	} else if _, _, twice := s.find(l.namespace, p.Group, &p.Key); twice {
		problem = journal.Duplicate
	}
	if problem != "" {
		s.recovered.problems[problem]++
		v.note(op{kind: opDrop, offset: p.Offset})
		v.note(op{kind: opFree, offset: p.Offset, bytes: format.ExtentBytes(p.Bytes)})
		return
	}
	class := index.Probationary
	switch {
	case l.namespace.abandoned():
		class = index.Reclaimable
	case p.Retained:
		class = index.Retained
	}
	v.show(l, p.Group, &p.Key, p.Offset, class, p.Digest, p.Sequence)
}
