package ssd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// A volume that rots everywhere fills no log: one line a second, and the next says how many were not told.
func TestDamagedPagesFillNoLog(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks, now := []*twin.Disk{twin.New(1)}, newClock()
		var log bytes.Buffer
		r := openRig(t, disks, func(c *Config) { c.Log, c.Now = slog.New(slog.NewTextHandler(&log, nil)), now.read })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		for number := range 8 {
			disks[0].Damage(format.PayloadName, int64(r.offset(s, number)), 1)
		}
		for number := range 6 {
			r.read(s, number)
		}
		synctest.Wait()
		now.advance(time.Second)
		r.read(s, 6)
		if _, err := r.store.Verify(t.Context(), 0, func(Problem) {}, func(VerifyReport) {}); err != nil {
			t.Error(err)
		}
		r.close()
		synctest.Wait() // lines are said from goroutines
		text := log.String()
		if got := strings.Count(text, "level=WARN"); got != 2 || !strings.Contains(text, "pages_not_told=5") {
			t.Errorf("%d warnings, want one in each second, the second with the five that were not told:\n%s", got, text)
		}
		if strings.Contains(text, "<nil>") {
			t.Errorf("an error that is none is told:\n%s", text)
		}
	})
}
