// Package arena owns the pool's memory: sealed memfds, the DRAM tier that engines map.
//
// Create makes every arena's file at its final size and seals it; Populate fills them with memory in the background, arena after
// arena, and calls back for each one that may be lent. A Manager without a tier below the pool maps a piece only while the kernel populates
// it and never touches a byte of it; one with such a tier maps all of it by Map. Either way the pool is neither in Go's heap nor in its
// garbage collection. The files have no name in any file system: when the last process that has one mapped or open is gone, the memory is too.
//
// A Pool's fields do not change after Create; Populate may run in one goroutine while others read Arenas. Close must come after
// Populate has returned and after Close of its Views. The package must not decide who may use an extent.
package arena

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sizes of arenas, in bytes.
const (
	PageBytes     = 4 << 10 // smallest pool, and its granularity without huge pages
	ArenaBytesMin = 1 << 30 // a pool below this is one arena
	ArenaBytesMax = 8 << 30 // but where a pool would then have more than ArenasMax arenas
	ArenasMax     = 1024
	arenasWanted  = 16 // a large pool has about this many, so that the first is lent early
)

// Seals that every arena carries: no process that holds the descriptor can change its size or its seals.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// NamePrefix starts the name that /proc shows for an arena: the prefix, the Manager's incarnation, the arena id.
const NamePrefix = "orbitkv-arena-"

// Config says what pool to make.
type Config struct {
	PoolBytes   uint64 // rounded down to whole pages
	HugePages   bool   // back the pool with reserved huge pages, or fail
	Incarnation string // names the arenas in /proc
}

// Arena is one sealed memfd.
type Arena struct {
	ID    uint16
	Node  int // NUMA node that it is bound to, -1 when not placed
	Bytes uint64
	file  *os.File
}

// Descriptor returns the open descriptor, for passing on; it stays the pool's to close.
func (a *Arena) Descriptor() int { return int(a.file.Fd()) }

// Pool is all arenas of one Manager.
type Pool struct {
	arenas    []*Arena
	hugePages bool
}

// Create makes and seals the files of the pool, without memory yet. The error names what to change.
func Create(cfg Config) (*Pool, error) {
	unit := uint64(PageBytes)
	if cfg.HugePages {
		huge, err := checkHugePages(cfg.PoolBytes)
		if err != nil {
			return nil, err
		}
		unit = huge
	}
	if cfg.PoolBytes < unit {
		return nil, fmt.Errorf("a pool of %d bytes is smaller than one page of %d bytes: raise --pool-size", cfg.PoolBytes, unit)
	}
	p := &Pool{hugePages: cfg.HugePages}
	for i, s := range plan(cfg.PoolBytes/unit*unit, unit, memoryNodes()) {
		a, err := create(uint16(i), s, cfg)
		if err != nil {
			return nil, fmt.Errorf("arena %d of %d bytes: %w", i, s.bytes, firstError(err, p.Close()))
		}
		p.arenas = append(p.arenas, a)
	}
	return p, nil
}

// Arenas returns the arenas in the order in which they are populated.
func (p *Pool) Arenas() []*Arena { return p.arenas }

// Bytes returns the size of the pool.
func (p *Pool) Bytes() uint64 {
	var sum uint64
	for _, a := range p.arenas {
		sum += a.Bytes
	}
	return sum
}

// Close closes the Manager's descriptors. Memory that engines still map lives on until they unmap it.
func (p *Pool) Close() error {
	var first error
	for _, a := range p.arenas {
		first = firstError(first, a.file.Close())
	}
	return first
}

func firstError(first, next error) error {
	if first != nil {
		return first
	}
	return next
}

type share struct {
	bytes uint64
	node  int
}

// plan cuts the pool into arenas. With several nodes each gets an equal part and the arenas alternate between them, so that the first ones
// cover every node.
func plan(poolBytes, unit uint64, nodes []int) []share {
	if len(nodes) < 2 || poolBytes/unit < uint64(len(nodes)) {
		nodes = []int{-1}
	}
	size := (poolBytes/arenasWanted + ArenaBytesMin - 1) / ArenaBytesMin * ArenaBytesMin
	size = max(ArenaBytesMin, min(size, ArenaBytesMax))
	size = max(size, poolBytes/uint64(ArenasMax-len(nodes))+1) // each node's last arena may be a small one
	size = (size + unit - 1) / unit * unit
	left := make([]uint64, len(nodes))
	units := poolBytes / unit
	for i := range left {
		left[i] = units / uint64(len(nodes)) * unit
	}
	left[0] += units % uint64(len(nodes)) * unit
	var shares []share
	for more := true; more; {
		more = false
		for i, node := range nodes {
			if take := min(left[i], size); take > 0 {
				shares = append(shares, share{take, node})
				left[i] -= take
				more = true
			}
		}
	}
	return shares
}

func create(id uint16, s share, cfg Config) (*Arena, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if cfg.HugePages {
		flags |= unix.MFD_HUGETLB
	}
	name := fmt.Sprintf("%s%s-%d", NamePrefix, cfg.Incarnation, id)
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	a := &Arena{ID: id, Node: s.node, Bytes: s.bytes, file: os.NewFile(uintptr(fd), name)}
	if err := a.prepare(); err != nil {
		return nil, firstError(err, a.file.Close())
	}
	return a, nil
}

func (a *Arena) prepare() error {
	if err := unix.Ftruncate(a.Descriptor(), int64(a.Bytes)); err != nil {
		return fmt.Errorf("ftruncate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(a.Descriptor()), unix.F_ADD_SEALS, Seals); err != nil {
		return fmt.Errorf("sealing: %w", err)
	}
	if a.Node < 0 {
		return nil
	}
	// The policy of a shared file is stored with the file, so one call here places the pages whoever touches them first.
	view, err := unix.Mmap(a.Descriptor(), 0, int(a.Bytes), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("mapping for placement: %w", err)
	}
	bound := bindToNode(view, a.Node)
	if err := firstError(bound, unix.Munmap(view)); err != nil {
		return fmt.Errorf("placing on NUMA node %d: %w", a.Node, err)
	}
	return nil
}
