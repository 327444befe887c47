// Package vfs is the one door to the disk: whatever the SSD tier does to a folder goes through FS and File.
//
// OS is the real one. Package twin holds one in memory that crashes, forgets and fails on purpose, and package faulty one that slows or
// breaks a real folder. The package knows nothing of pages or formats.
//
// Concurrency: the methods of a File may run at the same time on ranges that do not overlap. Errors are those of the system calls, wrapped with
// the operation and the name; a read or write that is short without an error of its own returns io.ErrUnexpectedEOF or io.ErrShortWrite.
package vfs

import "errors"

// Align is what offsets, lengths and addresses of direct reads and writes are multiples of, in bytes.
const Align = 4 << 10

// ErrLocked says that another process holds the lock of a file.
var ErrLocked = errors.New("locked by another process")

// Mode says how a file is opened.
type Mode uint8

// The modes. Both read and write; a file that does not exist is made with mode 0600.
const (
	Buffered Mode = iota + 1 // through the page cache
	Direct                   // around it: offsets, lengths and buffers are multiples of Align
)

// FS is one folder.
type FS interface {
	// Name is the folder's path, for people.
	Name() string
	// Open opens a file of the folder, or makes it.
	Open(name string, mode Mode) (File, error)
	// Exists says whether the folder has a file.
	Exists(name string) (bool, error)
	// Rename gives a file another name, in place of the file that had it. It is durable after SyncFolder.
	Rename(from, to string) error
	// Remove removes a file; one that does not exist is no error.
	Remove(name string) error
	// SyncFolder makes the names of the folder durable.
	SyncFolder() error
	// FreeBytes is what the file system can still give to this user.
	FreeBytes() (uint64, error)
}

// File is one open file.
type File interface {
	// ReadAt fills the buffers, one after the other, from offset on.
	ReadAt(buffers [][]byte, offset int64) error
	// WriteAt writes the buffers, one after the other, from offset on. It is durable after Sync.
	WriteAt(buffers [][]byte, offset int64) error
	// Sync makes written bytes durable, and the size where it grew (fdatasync).
	Sync() error
	// Allocate gives the file a size and reserves its bytes on the device, so that no later write can find it full.
	Allocate(bytes int64) error
	// Truncate cuts or extends the file.
	Truncate(bytes int64) error
	// Size is the file's size in bytes.
	Size() (int64, error)
	// AllocatedBytes is what the file occupies on the device.
	AllocatedBytes() (int64, error)
	// Named says whether the file still has a name in some folder: what is written into one without is gone when it is closed.
	Named() (bool, error)
	// Lock takes the file's lock (flock) for as long as the descriptor, or any I/O on it, lives; ErrLocked when another process has it.
	Lock() error
	// Descriptor is the file's descriptor for I/O by other ways, false where there is none and all I/O must come through File.
	Descriptor() (int, bool)
	Close() error
}
