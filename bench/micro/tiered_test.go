package micro

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"orbitkv/internal/cache"
)

func TestQueriesWithATierAreMeasuredBesideThoseWithoutOne(t *testing.T) {
	var out strings.Builder
	o := PoolOptions{Options: Options{Rounds: 1, RowTime: 1, Only: regexp.MustCompile("tier"), Progress: io.Discard}, PoolBytes: poolBytesMin, IndexPages: indexPagesMin}
	if err := Pool(context.Background(), o, &out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{tieredName(""), tieredName(", with an SSD tier, all in memory"), tieredName(", with an SSD tier that takes no time, all there")} {
		if !strings.Contains(out.String(), "| "+line+" ") {
			t.Errorf("there is no figure %s:\n%s", line, out.String())
		}
	}
}

// TestAPreparedQueryReadsEveryPage checks what is timed: every page of a window comes from the tier, and none twice.
func TestAPreparedQueryReadsEveryPage(t *testing.T) {
	tier := newInstantTier()
	defer tier.close()
	h, err := newHost(cache.Config{Tier: tier}, 4096*sliceBytes, sliceBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	tier.cache, tier.holds = h.cache, true
	keys := keysOf(0, tieredKeys)
	if _, err := h.prepared(t.Context(), 0, keys); err != nil {
		t.Fatal(err)
	}
	if s := h.cache.Stats(); s.PageHitsTierTotal != tieredKeys || s.PageHitsTotal != tieredKeys {
		t.Errorf("%d pages were leased, %d of them from the tier; want all %d", s.PageHitsTotal, s.PageHitsTierTotal, tieredKeys)
	}
	if _, err := h.prepared(t.Context(), 0, keys); err == nil || !strings.Contains(err.Error(), "were to be read first") {
		t.Errorf("pages that are in memory: %v", err)
	}
	if violations := h.cache.Check(); len(violations) > 0 {
		t.Error(violations)
	}
}
