// Package record is what a measurement run keeps: the shape of every file of an output directory, and the one writer and reader of it.
//
// Invariant: nothing that was measured is dropped. Rows are only ever appended; a row that a later attempt replaces stays and is told
// apart by its attempt. What a run has finished is said by cells.jsonl alone, so that a run that was cut off knows what is missing.
//
// Concurrency: a Dir may be written by many goroutines; each row reaches its file whole and is with the kernel before the call returns. One
// process at a time has a directory, by a lock that the kernel gives back when it ends; readers take none. It must not decide what a figure means (bench/report does) nor start anything (bench/launch does).
package record
