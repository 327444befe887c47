package cache

import "orbitkv/internal/index"

// usefulness accounts for pages that were read ahead of demand: at every moment prepared = restored + unused + pending. Its counters are page
// footprints in bytes. Only the terminal report of a copy (restored) and the drop of an allocation's last reference (ended) resolve a
// page, each page once; leases, hits and cancels never do.
type usefulness struct {
	preparedBytes uint64
	restoredBytes uint64
	unusedBytes   uint64
}

// prepared counts a page that came into the pool ahead of demand.
func (u *usefulness) prepared(bytes uint64) { u.preparedBytes += bytes }

// restored resolves a page at the first copy of it that arrived.
func (u *usefulness) restored(p index.Page, bytes uint64) {
	if p.Origin == index.Warmed {
		u.restoredBytes += bytes
	}
}

// ended resolves a page whose last owner let go of it before any copy arrived.
func (u *usefulness) ended(p index.Page, bytes uint64) {
	if p.Origin == index.Warmed && !p.Credited {
		u.unusedBytes += bytes
	}
}

// pending is what is still undecided.
func (u *usefulness) pending() uint64 { return u.preparedBytes - u.restoredBytes - u.unusedBytes }
