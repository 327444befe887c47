// Package daemon wires the Manager together: what starts after what, and what stops before what.
//
// It owns no state of the cache. Start: the pool's files, the SSD tier if there is one, the cache, the socket, HTTP; then the pool is populated in the
// background and each arena is lent when it is whole, and the cache's clock ticks. Stop, at the end of the context, in the reverse order: nothing is lent
// or served any more before what it needs goes away, and the SSD tier ends what was submitted (I3) before the pool is unmapped. Goroutines: one populates,
// one ticks, one looks once for processes that still map the pool of an earlier Manager, one tells the SSD tier what queries leased; Run waits for
// all of them. The locks, progress.mu and demands.mu, are leaves.
package daemon
