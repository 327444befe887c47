// Package evidence finds out where the KV of a request's prompt came from and whether everything that requests borrow was given back, from the
// counters of the engine and of the cache service.
//
// Invariant: no source of facts is believed alone where there are two. What an answer claims and what counters show must agree, else the verdict
// is unverified and says what did not add up. A counter that is absent is unknown, not zero, but for those that their owner makes at first use.
//
// Concurrency: a Scraper may be used by many goroutines; a Monitor has one goroutine of its own, which Stop ends. It must not send a completion,
// change what it watches, or name a source that was expected rather than seen.
package evidence
