// Package launch starts and ends what a measurement runs on: an inference engine and the cache service beside it. It also reads what the
// machine, the model and the engine's Python say of themselves.
//
// It owns the command line of every engine and backend, and every process that it started with all that those started. Invariant: none of
// them outlives the measurement, however it ends. Each runs below a guard, a process of its own that adopts what its charge leaves behind
// and kills all of it when the pipe from the measurement closes, which the kernel does for a measurement that is killed, too.
// What a process prints goes straight into its log, so that nothing holds it up; past a bound the middle of the log is cut out.
//
// Concurrency: Start returns once everything is ready; Stop may be called from any goroutine and more than once. The callback for
// launches is called from one goroutine at a time. It must not send a request for tokens, read a counter or judge a figure (bench/load,
// bench/evidence and bench/report do), and it must never import an engine's package into a process that it does not start.
package launch
