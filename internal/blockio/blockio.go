// Package blockio moves bytes straight between a file and memory, several transfers at a time: by a pool of threads that read and write
// (Pool), or by io_uring (Ring). Choose tries a real aligned write and read and names what it chose and why.
//
// A transfer that was submitted runs to its end and calls Done once, whatever happens (I3): nothing here has a deadline. The package knows
// nothing of pages, digests or order: whoever needs one write behind another waits for the first.
package blockio

import "orbitkv/internal/vfs"

// Transfer is one read or write of consecutive bytes of a file.
type Transfer struct {
	File    vfs.File
	Write   bool
	Offset  int64    // in the file, bytes, a multiple of vfs.Align
	Buffers [][]byte // consecutive on disk; each address and length is a multiple of vfs.Align
	Done    func(error)
}

// Engine runs transfers. Submit never blocks; Done is called from a goroutine of the engine, must not block for long, and may call Submit.
type Engine interface {
	// Name is "pool" or "uring".
	Name() string
	Submit(t *Transfer)
	// Close waits for every transfer that was submitted. Nothing may be submitted after it.
	Close()
}
