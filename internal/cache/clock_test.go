package cache

import (
	"strings"
	"testing"
)

// Leases, revokes and ages are of a clock that nobody sets: the default is time.Now as it is, whose times have a reading of that clock beside the one on
// the wall, and differences are of it.
func TestTheClockOnlyGoesOn(t *testing.T) {
	now := (Config{}).withDefaults().Now()
	if !strings.Contains(now.String(), " m=") || strings.Contains(now.Round(0).String(), " m=") {
		t.Errorf("%v is a time on the wall alone", now)
	}
}
