// Package page makes report.html of a measurement: one file that opens without a network, with its tables as text and its figures as
// SVG inside it.
//
// Invariant: the file refers to nothing outside itself, and whatever an engine answered or a log says stays text. Everything passes
// through html/template, or through the canvas, which escapes; the file's own security policy forbids scripts and loads besides.
// No figure stands without its n, and what is not known is said in words.
//
// Concurrency: Write keeps no state between calls and may run in many goroutines. It must not compute a statistic of its own
// (bench/report does), change a directory, or start anything; of a directory it reads only the ends of logs that failures name.
package page
