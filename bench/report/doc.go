// Package report says what the rows of a run amount to: summary.json, the tables of the terminal, and the comparison of several runs.
//
// Invariant: a sample stands for what it was classified as and for nothing else. Every latency statistic names the source of its samples and their
// number; what fails, is missing or was left out of a difference is counted beside it. A ratio is the ratio of two medians. Rows that contradict each
// other are refused by name, not summarised.
//
// Concurrency: pure functions of a record.Run that does not change; any goroutine may call them. It must not read the directory, measure, or decide
// what a request's source was (bench/evidence does).
package report
