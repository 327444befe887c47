package daemon

import (
	"log/slog"
	"strings"
	"testing"

	"orbitkv/internal/config"
)

// The bound that the configuration tells is that of the store.
func TestTheLeastCapacityIsTheStores(t *testing.T) {
	pool, views := newPool(t)
	cfg := settings(t.TempDir())
	cfg.CapacityBytes = config.SSDFolderBytesMin - 1
	if _, err := openTier(cfg, pool, views, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("the store takes less than the configuration does")
	}
	cfg.CapacityBytes = config.SSDFolderBytesMin
	tier, err := openTier(cfg, pool, views, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.close(); err != nil {
		t.Error(err)
	}
}

// A capacity that nobody chose is named as such, in words, with the flag that changes it.
func TestADefaultThatDoesNotFitIsNamed(t *testing.T) {
	pool, views := newPool(t)
	cfg := settings(t.TempDir())
	cfg.CapacityBytes, cfg.CapacityDefault = 1<<60, true
	_, err := openTier(cfg, pool, views, slog.New(slog.DiscardHandler))
	for _, word := range []string{"--ssd-cache-path: " + cfg.Paths[0] + ": reserving", "GiB more are needed", "GiB are free", "lower the capacity", "--ssd-cache-capacity", "512gb"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want %q", err, word)
		}
	}
}
