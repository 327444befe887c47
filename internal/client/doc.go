// Package client is the Go side of the channel as an engine sees it, for benchmarks and tests.
//
// It owns one connection: hello, calls paired with their answers by id, operations in parts both ways, pushes, and the arenas that
// the Manager hands over with their mappings. It decides nothing about caching: what a caller asks is what goes over the wire.
//
// Concurrency: one goroutine reads the socket; any number may call. mu guards the table of calls and the arenas and is never
// held over a call of the operating system; sendMu orders whole frames, so that what one goroutine sends in two steps arrives in that
// order, and is held while a frame is written. Handlers of pushes run on the reading goroutine and must not call back into the Client.
//
// It must not import the cache or the session, so that it shows the Manager only through the socket.
package client
