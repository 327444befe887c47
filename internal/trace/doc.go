// Package trace joins the timeline records of engines and Managers into what happened to each request.
//
// A record is one line of a log, `cache_timeline {json}` behind whatever the log puts before it, or one line of a file that holds nothing else. Each
// says a stage of one request, the process and a time of its monotonic clock. A process's first record names the boot and the time namespace of that
// clock: only times of the same two are put on one axis, all others stand in lanes of their own. What cannot be read is counted and named, and memory is
// bounded by the Max constants, with a count of what they left out.
package trace
