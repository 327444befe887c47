// Package policy decides from what was seen before what is worth keeping: History remembers the pages saved last, Sketch estimates how often
// a page was used.
//
// Both forget: their memory is bounded whatever they are told. Neither does I/O, reads a clock or draws a random number; what they answer
// follows from a seed and the calls before. The package does not know where pages lie or which are resident.
//
// Concurrency: neither has a lock; the cache calls them under its mutex. The package must not import anything of the module.
package policy

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Page names one page: keys of two namespaces, or of two groups, are different pages.
type Page struct {
	Namespace uint32
	Group     uint16
	Key       [32]byte
}

// hash is salted, since keys are chosen by clients: nobody can aim at the counters of another page.
func (p *Page) hash(seed uint64) uint64 {
	var b [38]byte
	copy(b[:32], p.Key[:])
	binary.LittleEndian.PutUint32(b[32:], p.Namespace)
	binary.LittleEndian.PutUint16(b[36:], p.Group)
	return xxh3.HashSeed(b[:], seed)
}
