// Package page makes report.html of a measurement, and the page of a trace: one file that opens without a network, with its tables as text
// and its figures as SVG inside it.
//
// Invariant: the file refers to nothing outside itself, and whatever an engine answered or a log says stays text. Everything passes
// through html/template, or through the canvas, which escapes; the file's own security policy forbids scripts and loads besides.
// No figure stands without its n, and what is not known is said in words.
//
// Concurrency: Write and WriteTrace keep no state between calls and may run in many goroutines. They must not compute a statistic of
// their own (bench/report and internal/trace do), change a directory, or start anything; of a directory only the ends of logs that
// failures name are read.
package page
