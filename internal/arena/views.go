package arena

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Views is the Manager's own mapping of every arena, for tiers that read and write pages from here. Its fields do not change after Map; any goroutine
// may use it until Close, which comes after the last read or write through it.
type Views struct {
	arenas [][]byte
}

// Map maps every arena whole. No memory is populated by it, so what was not lent yet must not be touched. Children of this process do not inherit the
// mapping, and a core file leaves it out: it would hold the pool.
func (p *Pool) Map() (*Views, error) {
	v := &Views{}
	for _, a := range p.arenas {
		view, err := a.mapWhole()
		if err != nil {
			return nil, fmt.Errorf("mapping arena %d of %d bytes: %w", a.ID, a.Bytes, firstError(err, v.Close()))
		}
		v.arenas = append(v.arenas, view)
	}
	return v, nil
}

func (a *Arena) mapWhole() ([]byte, error) {
	view, err := unix.Mmap(a.Descriptor(), 0, int(a.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	for _, advice := range []int{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		if err := unix.Madvise(view, advice); err != nil {
			return nil, firstError(fmt.Errorf("madvise %d: %w", advice, err), unix.Munmap(view))
		}
	}
	return view, nil
}

// Slice is the memory of an extent. One that is not inside its arena is a programmer's error and panics.
func (v *Views) Slice(arena uint16, offset, bytes uint64) []byte {
	return v.arenas[arena][offset : offset+bytes : offset+bytes]
}

// Arena is the memory of a whole arena.
func (v *Views) Arena(arena uint16) []byte { return v.arenas[arena] }

// Close unmaps every arena.
func (v *Views) Close() error {
	var first error
	for _, view := range v.arenas {
		first = firstError(first, unix.Munmap(view))
	}
	v.arenas = nil
	return first
}
