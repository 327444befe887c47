package daemon

import (
	"log/slog"
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
