// Package wire is the codec of the channel between engines and the Cache Manager (ABI 5).
//
// It owns the layout of frames and nothing else: every message of the table in internal/wire/schema has a struct here with Append,
// which encodes a whole frame into a reused buffer, and Decode, which checks every bound before it allocates and refuses
// trailing bytes. The records Run, Range, GrantRun, Slice and Key, the enumerations and Error are the vocabulary that the
// cache shares with the channel.
//
// A value of this package has no lock: one goroutine uses a Reader or a message at a time. Keys that Decode returns alias the
// frame, so they are valid until the Reader reads the next one. The package does no I/O of its own but Reader's reads, holds no state
// of a session, and must not learn what a message means.
package wire

//go:generate go run ./gen
