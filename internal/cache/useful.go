package cache

import (
	"time"

	"orbitkv/internal/index"
)

// usefulness accounts for pages that hints read: at every moment prepared = restored + unused + pending. Its counters are page footprints in bytes. Only the
// terminal report of a copy that arrived (restored) and the drop of an allocation's last reference (ended) resolve a page, each page once; leases,
// hits, cancels and failed copies never do.
type usefulness struct {
	preparedBytes uint64
	restoredBytes uint64
	unusedBytes   uint64

	restoredByteSeconds float64 // bytes times the seconds from their arrival to their first copy
	unusedByteSeconds   float64 // and to the drop of their last reference

	ready map[index.Handle]time.Time // of undecided pages: when they arrived. By generation: a key that is read again is another page
}

// prepared counts a page whose read a hint started.
func (u *usefulness) prepared(h index.Handle, bytes uint64, now time.Time) {
	u.preparedBytes += bytes
	u.ready[h] = now
}

// restored resolves a page at the first copy of it that arrived.
func (u *usefulness) restored(h index.Handle, bytes uint64, now time.Time) {
	u.resolve(h, bytes, now, &u.restoredBytes, &u.restoredByteSeconds)
}

// ended resolves a page whose last owner let go of it before any copy arrived.
func (u *usefulness) ended(h index.Handle, bytes uint64, now time.Time) {
	u.resolve(h, bytes, now, &u.unusedBytes, &u.unusedByteSeconds)
}

func (u *usefulness) resolve(h index.Handle, bytes uint64, now time.Time, sum *uint64, byteSeconds *float64) {
	since, pending := u.ready[h]
	if !pending {
		return
	}
	delete(u.ready, h)
	*sum += bytes
	*byteSeconds += float64(bytes) * now.Sub(since).Seconds()
}

// pending is what is still undecided.
func (u *usefulness) pending() uint64 { return u.preparedBytes - u.restoredBytes - u.unusedBytes }
