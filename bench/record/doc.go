// Package record is what a measurement run keeps: the shape of every file of an output directory, and the one writer and reader of it.
//
// Invariant: nothing that was measured is dropped. Rows are only ever appended; a row that a later attempt replaces stays and is told
// apart by its attempt. What a run has finished is said by cells.jsonl alone, so that a run that was cut off knows what is missing.
//
// Concurrency: a Dir may be written by many goroutines; each row reaches its file whole and is flushed before the call returns. It must
// not decide what a figure means (bench/report does) nor start anything (bench/launch does).
package record
