// Package single measures the cache backends of one engine on one host: it checks what was asked for, plans it as cells, starts each backend in
// turn, sends every request of each cell and keeps what came of it.
//
// Invariant: a cell is finished only when the attempt that began it wrote every one of its rows, so a run that was cut off goes on at the first
// cell that is missing. Prompts follow from the seed and a cell's place alone, never from the backend, the pass or the attempt. A sample's source is
// what the evidence says; nothing here changes it afterwards.
//
// Concurrency: one backend at a time and one cell at a time; inside a cell as many requests as its workload asks for, each with a goroutine that the
// cell waits for. Only the goroutine of the run writes progress. It must not compute a statistic (bench/report does), judge where KV came from
// for a single request (bench/evidence does), or know an engine's command line (bench/launch does).
package single
