// Package twin is a disk in memory that crashes, forgets and fails on purpose: the other implementation of vfs.FS, for tests.
//
// Bytes are durable once a Sync that began after their write has returned, names once a SyncFolder has. Crash returns what a power cut could leave:
// all that is durable, and of everything later any part. Each sector of 512 bytes holds one of the contents that it had since the last Sync, and each
// change of a name happened or did not, whatever the order. A Sync that failed leaves its bytes in that same state, and no later Sync brings
// them back, although reads still see them. Draws come from the seed alone.
//
// Direct files check what the kernel would: offsets, lengths and addresses are multiples of vfs.Align.
//
// All methods may be called at the same time. An operation goes by the hook, then by the gates, then by the rules, and takes effect at one
// moment. The package must not be imported by anything but tests.
package twin
