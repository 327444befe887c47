// Package metrics is the one table of the Manager's metrics: name, kind, labels and a help text that says what a number is and is not.
//
// Numbers of the cache are read from one Stats snapshot a scrape; numbers of the channel are counters that the session layer
// increments. docs/reference/metrics.md is made from the table. The package owns no numbers but the channel's, and its collector has no state
// between scrapes. It is safe for concurrent scrapes. It must not look into the cache in any other way than through Stats.
package metrics

//go:generate go run ./gen
