package daemon

import (
	"context"
	"encoding/hex"
	"log/slog"
	"time"

	"github.com/zeebo/xxh3"

	"orbitkv/internal/arena"
	"orbitkv/internal/cache"
)

const scrubRest = time.Second // between two passes over the pool

// scrubber reads the pool's pages at a rate and lets the cache compare their digests.
type scrubber struct {
	cache *cache.Cache
	views *arena.Views
	log   *slog.Logger
	rate  uint64 // bytes/s
}

// run scrubs pass after pass until ctx ends.
func (s *scrubber) run(ctx context.Context) {
	hasher := xxh3.New()
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		wait.Reset(s.look(hasher))
		for _, d := range s.cache.Damages() {
			s.tell(d)
		}
	}
}

// look reads the next page and returns how long to wait after it.
func (s *scrubber) look(hasher *xxh3.Hasher) time.Duration {
	page, ok := s.cache.ScrubNext()
	if !ok {
		return scrubRest
	}
	hasher.Reset()
	for _, part := range page.Parts {
		hasher.Write(s.views.Slice(part.Location.Arena(), part.Location.Offset(), part.Bytes))
	}
	s.cache.ScrubDone(page.Page, hasher.Sum128().Bytes())
	return time.Duration(float64(page.Bytes) / float64(s.rate) * float64(time.Second))
}

// tell logs a page that holds other bytes than were written, and who wrote it.
func (s *scrubber) tell(d cache.Damage) {
	var at []uint64
	for _, part := range d.Parts {
		at = append(at, uint64(part.Location))
	}
	s.log.Error("a page of the pool holds other bytes than were written: it was dropped. Memory is faulty, or a process wrote where it must not",
		"namespace", d.Namespace, "epoch", d.Epoch, "facts", d.Facts, "group", d.Group, "key", hex.EncodeToString(d.Key[:]), "locations", at,
		"origin", d.Origin, "writer", d.Writer.Instance, "writer_ranks", d.Writer.Ranks)
}
