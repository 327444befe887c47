// Package session is the channel's Manager end: the Unix socket, who is at its other end, frames in and out, descriptors.
//
// It owns the listener, the connections and the watch over every process that has one. It turns frames into calls of the cache and
// answers into frames, and decides nothing about memory: what a call means stands in internal/cache. A closed connection is told to the
// cache as a disconnect; only a pidfd that fired is told as a death (I1, I2), after every frame that the process had written was handled.
//
// Concurrency: one reader goroutine a connection handles its frames in order; it sends answers without ever waiting, and what the
// socket does not take goes to a bounded outbox that one writer goroutine a connection flushes. Nobody waits for a client that
// does not read: its notices are dropped, and an answer that finds the outbox full closes the session. Locks: Server.mu guards the tables
// of connections, processes and arenas; outbox.mu and inbox.mu are leaves. Server.mu is never held over a call of the cache. The cache calls
// Push with its own mutex held, so Push takes inbox.mu only.
//
// It must not keep state that the cache could own, nor block on a socket.
package session
