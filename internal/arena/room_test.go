package arena

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestPopulateWaitsForRoom(t *testing.T) {
	p := newPool(t, 160*mib) // two pieces, 128 and 32 MiB
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		room := func() (uint64, string, error) {
			if looks.Add(1) <= 50 {
				if n := fileBytes(t, p.Arenas()[0]); n != 0 {
					t.Errorf("%d bytes were populated without room", n)
				}
				return 20 * mib, "the test", nil
			}
			return 128*mib + roomMargin, "the test", nil
		}
		reported := 0
		if err := p.Populate(context.Background(), slog.New(slog.DiscardHandler), room, func(*Arena) { reported++ }); err != nil {
			t.Fatal(err)
		}
		if reported != 1 || looks.Load() <= 50 {
			t.Fatalf("%d arenas after %d looks", reported, looks.Load())
		}
	})
}

func TestPopulateGivesUpWhenNoRoomComesBack(t *testing.T) {
	p := newPool(t, 4*mib)
	synctest.Test(t, func(t *testing.T) {
		room := func() (uint64, string, error) { return 0, "the test", nil }
		err := p.Populate(context.Background(), slog.New(slog.DiscardHandler), room, func(*Arena) { t.Error("reported without room") })
		if err == nil || !strings.Contains(err.Error(), "under the test") {
			t.Fatalf("%v, want one that names the limit", err)
		}
	})
}
