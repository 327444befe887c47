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

// queued lets a store with one page on its way and the others behind it be closed, and returns the ends of the pages and the log.
func queued(t *testing.T, disk *twin.Disk, pages int, meanwhile func(*twin.Gate)) (ends []WriteResult, log string) {
	t.Helper()
	var text bytes.Buffer
	r := openRig(t, []*twin.Disk{disk}, func(c *Config) { c.WriteInflight, c.Log = 1, slog.New(slog.NewTextHandler(&text, nil)) })
	s := r.namespace(1, 0, small)
	gate := disk.Gate(twin.Write, format.PayloadName)
	var waits []<-chan WriteResult
	for number := range pages {
		waits = append(waits, r.begin(s, 0, number))
	}
	gate.Wait(1)
	closed := make(chan error)
	go func() { closed <- r.store.Close() }()
	meanwhile(gate)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for _, one := range waits {
		ends = append(ends, <-one)
	}
	return ends, text.String()
}

func TestACloseWritesWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := twin.New(1)
		ends, log := queued(t, disk, 8, func(gate *twin.Gate) {
			synctest.Wait() // Close has begun
			gate.Open()
		})
		for number, end := range ends {
			if !end.OK {
				t.Errorf("page %d was queued and is not written: %s", number, end.Reason)
			}
		}
		if !strings.Contains(log, `msg="SSD tier closed" pages_not_written=0`) {
			t.Errorf("the log says %s", log)
		}
		r := openRig(t, []*twin.Disk{disk})
		r.mustRead(r.namespace(1, 0, small), numbers(0, 8)...)
		r.close()
	})
}

// A device that hangs keeps a stop no longer than drainWait beyond what it has under way.
func TestACloseGivesASlowDeviceABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends, log := queued(t, twin.New(1), 8, func(gate *twin.Gate) {
			<-time.After(drainWait)
			synctest.Wait() // the queue was let go
			gate.Open()
		})
		written := 0
		for _, end := range ends {
			if end.OK {
				written++
			} else if end.Reason != ReasonClosed {
				t.Errorf("a page ended with %s", end.Reason)
			}
		}
		if written != 1 {
			t.Errorf("%d pages were written, the one that was under way is", written)
		}
		if !strings.Contains(log, "level=WARN") || !strings.Contains(log, "pages_not_written=7") {
			t.Errorf("the log says %s", log)
		}
	})
}
