// Package cache decides who may use which extent of the pool: namespaces, instances, operations, leases, reservations,
// budgets and reclaim.
//
// It is a machine without I/O. Every input is a method call with an id, every output is a return value or a Notice handed to a
// session's Sink; its clock is Config.Now. References to pages drop only on release of what was not begun, on terminal reports
// and on the proved exit of a process, never because of time or a closed socket (I1, I2).
//
// It owns the page records (through internal/index) and the free space of every arena (through internal/extent). It
// must not read a socket or a clock of its own, touch the memory of an arena, or know frames.
//
// Concurrency: one mutex guards everything; every exported method takes it and none blocks under it. Sink.Push is called
// with the mutex held, so it must neither block nor call the cache. There is no other lock, hence no order of locks.
//
// Errors are *wire.Error. An error of a call that has a reply is answered. An error of a one-way call (Mapped, CancelQuery, Begin,
// Release, Revoked, Restored, Committed, Abandoned) is a violation of what the session holds: its connection must be closed. What a harmless
// race explains (a release that crosses the end of its lease) is no error; it is counted in Stats.LateReports.
package cache
