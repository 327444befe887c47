// Package doctor looks at what the machine offers to a Cache Manager and says what to change.
//
// It owns one table of checks: kernel features, the locked-memory limit, the memory that the control group allows against the
// pool that would be used, swap, huge pages, NUMA nodes, GPUs and their driver, leftovers in /dev/shm, the folders of the SSD tier and the socket paths
// in search order. Each check
// is one Line: a verdict, what was found and the fix. It also owns AllowedMemory, the one reading of "how much memory may this
// process use" that the default size of the pool follows from.
//
// Every check reads an fs.FS rooted at "/" and a table of probes, so that tests show it machines of any kind. Checks only
// look: they change no setting and remove no file. A probe opens what it tries and closes it again at once; the one of direct I/O writes into a
// file without a name.
//
// Concurrency: nothing here keeps state; any goroutine may call Run. It must not import anything of the module.
package doctor
