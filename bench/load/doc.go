// Package load asks an engine for completions over HTTP and keeps exactly when each piece of text arrived.
//
// Invariant: a time is that of the read that completed the data of an event, taken before anything is decoded; an answer is decoded when its
// stream has ended. An Answer without an error is whole: the engine counted the prompt that was sent and the tokens that were asked
// for, in text that only ever grew.
//
// Concurrency: a Client may be used by many goroutines; each request has its own buffers. It must not decide where KV came from
// (bench/evidence does), retry a request, or look at what a text says.
package load
