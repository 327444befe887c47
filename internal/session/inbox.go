package session

import (
	"sync"

	"orbitkv/internal/cache"
)

// noticesMax bounds the notices of one session that are not encoded yet: two for each operation that it may have outstanding.
const noticesMax = 256

// inbox takes the cache's notices for one session. It implements cache.Sink: Push is called with the cache's mutex held, so it only
// appends and wakes the writer.
type inbox struct {
	wake func()

	mu      sync.Mutex
	notices []cache.Notice
	closed  bool
}

// Push implements cache.Sink.
func (i *inbox) Push(n cache.Notice) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || len(i.notices) >= noticesMax {
		return false
	}
	i.notices = append(i.notices, n)
	if len(i.notices) == 1 {
		i.wake()
	}
	return true
}

// take moves the notices to into, which it returns.
func (i *inbox) take(into []cache.Notice) []cache.Notice {
	i.mu.Lock()
	defer i.mu.Unlock()
	into = append(into[:0], i.notices...)
	i.notices = i.notices[:0]
	return into
}

func (i *inbox) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
}
