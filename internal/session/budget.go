package session

import "sync/atomic"

// Bounds of what all connections together may make the Manager keep.
const (
	unfinishedBytesMax = 64 << 20  // keys of operations whose parts have not all come
	unsentBytesMax     = 128 << 20 // answers that their clients have not read
)

// budget is bytes that all connections share. It is safe for concurrent use.
type budget struct {
	most int64
	used atomic.Int64
}

// take charges n bytes, or nothing and says false when they do not fit.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) <= b.most {
		return true
	}
	b.give(n)
	return false
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }
