// Package micro measures OrbitKV's own parts without an engine, each beside its ceiling: calls over the socket of a real `orbitkv serve`
// (Channel), the memory pool and the tables of the cache in this process (Pool), and the disk below an SSD tier (SSD). It passes and fails
// nothing.
//
// It owns the scenarios and their report: a table for people and one JSON line a figure for programs. Invariant: nothing outlives a
// measurement, however it ends. The Manager and the echo process end with the process that started them, the disk's file has no name while it is
// measured, and an interrupted measurement writes no figures.
//
// Concurrency: sections run one after the other, every second round in the opposite order, so that a machine that warms up or tires shows in
// the rounds and not in the comparison. Inside a section each client, thread or place of the queue is a goroutine of its own, and what it
// measured is joined when all have ended. The package must not start an engine, and it must not judge a figure.
package micro
