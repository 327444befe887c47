package ssd

import (
	"fmt"

	"orbitkv/internal/index"
	"orbitkv/internal/ssd/format"
)

// Check reports the first broken rule of the store's own state: every byte of a payload is free, or lent to one page, or on its way to be free; counts
// by class and namespace; pages that are being written. It reads every record with the mutex held.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pages := map[uint32][]uint64{}
	for number, l := range s.lives {
		pages[number] = make([]uint64, len(s.volumes))
		if l.dead && l.empty() || l.number != number {
			return fmt.Errorf("ssd: life %d is kept under number %d, dead %v", l.number, number, l.dead)
		}
	}
	for _, v := range s.volumes {
		if !v.readable() {
			continue
		}
		if err := v.check(pages); err != nil {
			return fmt.Errorf("ssd: %s: %w", v.name, err)
		}
	}
	for number, l := range s.lives {
		for i, v := range s.volumes {
			if v.readable() && l.pages[i] != pages[number][i] {
				return fmt.Errorf("ssd: life %d has %d pages on %s, its counter says %d", number, pages[number][i], v.name, l.pages[i])
			}
		}
	}
	return s.checkWrites()
}

func (v *volume) check(pages map[uint32][]uint64) error {
	if err := v.index.Check(); err != nil {
		return err
	}
	if err := v.space.Check(); err != nil {
		return err
	}
	lent := v.limbo + v.unrecordedBytes + uint64(v.unrecorded)*format.PageHeaderBytes
	var classBytes [len(index.Classes)]uint64
	var broken error
	v.index.Scan(0, v.index.Records(), func(p index.Page) bool {
		l := v.store.lives[p.Namespace]
		if l == nil {
			broken = fmt.Errorf("page record %d belongs to life %d, which has ended", p.Handle.Entry(), p.Namespace)
			return false
		}
		pages[p.Namespace][v.number]++
		lent += l.extent()
		if p.State == index.Sealed {
			classBytes[p.Class] += l.extent()
		}
		if p.Pinned != (v.readers[p.Handle] > 0) {
			broken = fmt.Errorf("page record %d has %d readers, pinned %v", p.Handle.Entry(), v.readers[p.Handle], p.Pinned)
		}
		return broken == nil
	})
	switch {
	case broken != nil:
		return broken
	case lent != v.usedBytes():
		return fmt.Errorf("%d bytes of the payload are lent, those who have them account for %d", v.usedBytes(), lent)
	case classBytes != v.classBytes:
		return fmt.Errorf("pages by class have %v bytes, the counters say %v", classBytes, v.classBytes)
	case v.index.Count(index.Sealed) > v.pagesMax:
		return fmt.Errorf("%d pages, the index log has room for %d", v.index.Count(index.Sealed), v.pagesMax)
	}
	return nil
}

func (s *Store) checkWrites() error {
	held := uint64(0)
	for key, w := range s.writes {
		held += w.bytes
		if w.key() != key || w.state == writeEnded {
			return fmt.Errorf("ssd: a page that is %s is kept as one that is being written", writeMachine.Names[w.state])
		}
	}
	if held != s.held {
		return fmt.Errorf("ssd: %d bytes are held for writing, the counter says %d", held, s.held)
	}
	return nil
}
