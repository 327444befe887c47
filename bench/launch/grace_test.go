package launch

import (
	"testing"
	"time"
)

// TestABoundedStopLeavesTheLaterProcessesTime: an engine that does not end must not leave the Manager none to remove its shared memory.
func TestABoundedStopLeavesTheLaterProcessesTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		left  time.Duration
		after int
		want  time.Duration
	}{
		{16 * time.Second, 1, 13 * time.Second},
		{16 * time.Second, 0, 16 * time.Second},
		{4 * time.Second, 1, 2 * time.Second},
		{time.Second, 0, time.Second},
		{-time.Second, 1, 0},
		{-time.Second, 0, 0},
	} {
		if got := grace(c.left, c.after); got != c.want {
			t.Errorf("with %v left and %d after it, a process has %v, want %v", c.left, c.after, got, c.want)
		}
	}
}
