package ssd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
)

// ReasonHeader is a page whose bytes are right and whose header block is not: it can be read, and a repair of the index would miss it.
const ReasonHeader = "header"

// Problem is one page that is not as it should be.
type Problem struct {
	Volume   string
	Identity [32]byte // of the namespace
	Epoch    uint64
	Group    uint16
	Key      Key
	Offset   uint64 // in the payload file, bytes
	Bytes    uint64 // of the page
	Reason   string // digest, io, short or header; a page with any but the last was dropped
}

// VerifyReport is what a pass over the store found, until now or in all.
type VerifyReport struct {
	Pages    uint64 `json:"pages"`
	Bytes    uint64 `json:"bytes"`
	Problems uint64 `json:"problems"`
	Dropped  uint64 `json:"dropped"` // of these: they are misses from here on
}

// Verify reads every page of every volume that can be read, and compares digests and header blocks. It keeps to the rate, in bytes a second, when that is not
// zero, and gives way to every read. A page with wrong bytes is dropped. progress is called after each page. The error is that of ctx, that the store
// closes, or which volumes are off: the others are read all the same.
func (s *Store) Verify(ctx context.Context, rate uint64, report func(Problem), progress func(VerifyReport)) (VerifyReport, error) {
	var sum VerifyReport
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return sum, errors.New("ssd: the store closes")
	}
	s.outstanding++ // Close waits
	s.mu.Unlock()
	defer s.told(func() {})
	var unread []error
	for _, v := range s.volumes {
		inspect := newInspector(v, rate)
		err := inspect.pass(ctx, func(bytes uint64, p *Problem) {
			s.verified(p)
			sum.Pages++
			sum.Bytes += bytes
			if p != nil {
				sum.Problems++
				if p.Reason != ReasonHeader {
					sum.Dropped++
				}
				report(*p)
			}
			progress(sum)
		})
		if err != nil {
			return sum, err
		}
		unread = append(unread, v.unread())
	}
	return sum, errors.Join(append(unread, ctx.Err())...)
}

// unread is the error of a volume of which a pass did not see every page, since it is off.
func (v *volume) unread() error {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	if v.state != volumeOff {
		return nil
	}
	return fmt.Errorf("folder %s is off: not verified: %s", v.name, v.reason)
}

// verified counts a page that a verification read.
func (s *Store) verified(p *Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters.verifyPages++
	if p != nil {
		s.counters.damaged[FoundByVerify]++
	}
}

// inspector reads the pages of a volume one after the other, behind everybody else.
type inspector struct {
	volume *volume
	pace   pace
	buffer []byte
	hasher *xxh3.Hasher
}

func newInspector(v *volume, rate uint64) *inspector {
	return &inspector{volume: v, pace: pace{rate: rate}, buffer: vfs.AlignedBuffer(scrubChunkBytes), hasher: xxh3.New()}
}

// pass inspects every page that can be read when its turn comes and calls each, with nil for one that is as it should be. It ends early when the
// volume is off or the store closes.
func (in *inspector) pass(ctx context.Context, each func(bytes uint64, p *Problem)) error {
	v := in.volume
	stop := context.AfterFunc(ctx, func() {
		v.store.mu.Lock()
		defer v.store.mu.Unlock()
		v.changed.Broadcast()
	})
	defer stop()
	for next := uint32(0); ctx.Err() == nil; {
		page, l, ok := v.pinNext(&next)
		if !ok {
			break
		}
		reason, err := in.inspect(ctx, page, l)
		v.inspected(page, reason)
		if err != nil {
			return err
		}
		ns := l.namespace
		var problem *Problem
		if reason != "" {
			problem = &Problem{
				Volume: v.name, Identity: ns.identity, Epoch: ns.epoch, Group: page.Group, Key: page.Key, Offset: page.Location,
				Bytes: ns.pageBytes, Reason: reason,
			}
		}
		each(ns.pageBytes, problem)
	}
	return ctx.Err()
}

// pinNext finds the first page from a record on and pins it.
func (v *volume) pinNext(from *uint32) (page index.Page, l *life, ok bool) {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	for v.readable() && !s.closing && *from < v.index.Records() {
		end := *from + sweepRecords
		v.index.Scan(*from, end, func(p index.Page) bool {
			if l = s.lives[p.Namespace]; p.State == index.Sealed && !l.dead {
				page, ok = p, true
			}
			return !ok
		})
		if ok {
			*from = page.Handle.Entry() + 1
			v.pin(page.Handle)
			return page, l, true
		}
		*from = end
		s.rest()
	}
	return page, nil, false
}

// inspected ends the inspection of a page.
func (v *volume) inspected(page index.Page, reason string) {
	s := v.store
	s.mu.Lock()
	defer s.leave()
	if reason != "" {
		v.warn("a page of the SSD cache is damaged", "offset", page.Location, "reason", reason)
	}
	if reason != "" && reason != ReasonHeader {
		v.discard(page.Handle, reason)
	}
	v.unpin(page.Handle)
}

// inspect reads a page and its header block. The error is that of ctx, or that the store closes.
func (in *inspector) inspect(ctx context.Context, page index.Page, l *life) (reason string, err error) {
	v, want := in.volume, in.volume.factsOf(page.Handle)
	in.hasher.Reset()
	extent := l.extent()
	for done := uint64(0); done < extent; {
		chunk := in.buffer[:min(uint64(len(in.buffer)), extent-done)]
		if err := in.turn(ctx, uint64(len(chunk))); err != nil {
			return "", err
		}
		err := v.payload.ReadAt([][]byte{chunk}, int64(page.Location+done))
		v.tried(err)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return ReasonShort, nil
		case err != nil:
			return ReasonIO, nil
		}
		done += uint64(len(chunk))
		if done < extent {
			in.hasher.Write(chunk)
			continue
		}
		payload := len(chunk) - format.PageHeaderBytes
		in.hasher.Write(chunk[:payload])
		if in.hasher.Sum128().Bytes() != want.digest {
			return ReasonDigest, nil
		}
		header, err := format.DecodePageHeader(chunk[payload:])
		if err != nil || header.Volume != v.id || header.Offset != page.Location || header.Key != page.Key || header.Digest != want.digest {
			return ReasonHeader, nil
		}
	}
	return "", nil
}

func (v *volume) factsOf(h index.Handle) pageFacts {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	return v.facts.get(h.Entry())
}

// tried counts a read that did not go through the queues.
func (v *volume) tried(err error) {
	v.store.mu.Lock()
	defer v.store.leave()
	v.transferred(reads, err)
}

// turn waits until the device answers and no read is queued on the volume, and then as long as the rate asks.
func (in *inspector) turn(ctx context.Context, bytes uint64) error {
	v := in.volume
	s := v.store
	s.mu.Lock()
	for v.readable() && !s.closing && ctx.Err() == nil && (v.hangs() || v.reads[Demand].len()+v.reads[Prepare].len()+v.reads[Warm].len() > 0) {
		v.awaited = true
		v.await()
	}
	closing := s.closing
	s.leave()
	if closing {
		return errors.New("ssd: the store closes")
	}
	return in.pace.wait(ctx, bytes)
}
