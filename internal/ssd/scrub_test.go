package ssd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// The scrubber reads every page at its rate, finds what rotted before anybody asks for it, and moves no page in the order of use.
func TestTheScrubberFindsWhatRots(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks, begun := oneDisk(1), time.Now()
		r := openRig(t, disks, func(c *Config) { c.ScrubBytesPerSecond = 10 * format.ExtentBytes(small) })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 50)...)
		disks[0].Damage(format.PayloadName, int64(r.offset(s, 20)), 1)
		disks[0].Damage(format.PayloadName, int64(r.offset(s, 30))+small, 1) // a header block: the page can be read all the same
		for passes := r.store.Stats().ScrubPassesTotal; r.store.Stats().ScrubPassesTotal < passes+2; synctest.Wait() {
			<-time.After(time.Second)
		}
		stats := r.store.Stats()
		if stats.ScrubFailuresTotal[ReasonDigest] != 1 || stats.ScrubFailuresTotal[ReasonHeader] == 0 {
			t.Errorf("%d pages were scrubbed, damage %v", stats.ScrubPagesTotal, stats.ScrubFailuresTotal)
		}
		if failures := stats.ScrubFailuresTotal[ReasonDigest] + stats.ScrubFailuresTotal[ReasonHeader]; stats.DamagedPagesTotal[FoundByScrub] != failures {
			t.Errorf("%v pages are damaged, the scrubber found %d", stats.DamagedPagesTotal, failures)
		}
		if took := time.Since(begun).Seconds(); float64(stats.ScrubPagesTotal) > 10*took+20 || stats.ScrubPagesTotal < 50 {
			t.Errorf("%d pages were scrubbed in %.0f s, at 10 pages a second", stats.ScrubPagesTotal, took)
		}
		if r.stored(s, 20) || r.count(s, 0, 50) != 49 || stats.Pages["retained"] != 0 {
			t.Errorf("%d pages are left, by class %v", r.count(s, 0, 50), stats.Pages)
		}
		r.mustRead(s, 30)
		r = r.again()
		if got := r.store.Stats().RecoveredPages; got != 49 {
			t.Errorf("%d pages came back", got)
		}
		r.close()
	})
}

// The scrubber gives way to reads that wait, however long.
func TestTheScrubberGivesWay(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ScrubBytesPerSecond, c.ReadInflight = 1<<30, 1 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 5)...)
		<-time.After(scrubPause - hangsAfter/4) // the first pass is over, the next one is due while the reads wait
		synctest.Wait()
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		reads := []<-chan ReadResult{r.ask(s, 0, 1, Warm), r.ask(s, 0, 2, Warm)}
		gate.Wait(1)
		before := r.store.Stats().ScrubPagesTotal
		<-time.After(hangsAfter / 2)
		synctest.Wait()
		if stats := r.store.Stats(); gate.Held() != 1 || stats.ScrubPagesTotal != before {
			t.Errorf("the scrubber read while a read waited: %d reads are at the gate", gate.Held())
		}
		<-time.After(10 * scrubPause)
		synctest.Wait()
		if stats := r.store.Stats(); gate.Held() != 1 || stats.ScrubPagesTotal != before {
			t.Errorf("the scrubber read from a device that hangs: %d reads are at the gate", gate.Held())
		}
		gate.Open()
		if first, second := <-reads[0], <-reads[1]; !first.OK || second.Reason != ReasonHangs {
			t.Errorf("%+v and %+v", first, second)
		}
		<-time.After(2 * scrubPause)
		synctest.Wait()
		if stats := r.store.Stats(); stats.ScrubPagesTotal < before+5 {
			t.Errorf("%d pages were scrubbed when nothing waited any more", stats.ScrubPagesTotal)
		}
		r.close()
	})
}

// Verify reads everything, names what is wrong, and can be ended.
func TestVerifyNamesWhatIsWrong(t *testing.T) {
	disks := []*twin.Disk{twin.New(1), twin.New(2)}
	r := openRig(t, disks)
	a, b := r.namespace(1, 0, small), r.namespace(2, 5, 40<<10)
	r.mustWrite(a, numbers(0, 30)...)
	r.mustWrite(b, numbers(0, 10)...)
	var problems []Problem
	verify := func(ctx context.Context) (VerifyReport, error) {
		problems = nil
		return r.store.Verify(ctx, 0, func(p Problem) { problems = append(problems, p) }, func(VerifyReport) {})
	}
	if report, err := verify(t.Context()); err != nil || report.Pages != 40 || report.Bytes != 30*small+10*(40<<10) || len(problems) != 0 {
		t.Errorf("%+v, %v, %+v", report, err, problems)
	}
	for _, disk := range disks {
		disk.Damage(format.PayloadName, int64(format.ScratchBytes), 1)
	}
	report, err := verify(t.Context())
	if err != nil || report.Problems != 2 || len(problems) != 2 || problems[0].Volume != "volume 0" || problems[1].Volume != "volume 1" {
		t.Errorf("%+v, %v, %+v", report, err, problems)
	}
	for _, p := range problems {
		if p.Reason != ReasonDigest || p.Offset != format.ScratchBytes {
			t.Errorf("%+v", p)
		}
	}
	if report, err := verify(t.Context()); err != nil || report.Pages != 38 || report.Problems != 0 {
		t.Errorf("after the damaged pages were dropped: %+v, %v", report, err)
	}
	disks[1].Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Err: unix.EIO})
	if report, err := verify(t.Context()); err != nil || report.Problems != 1 || problems[0].Reason != ReasonIO {
		t.Errorf("%+v, %v, %+v", report, err, problems)
	}
	if stats := r.store.Stats(); stats.DamagedPagesTotal[FoundByVerify] != 3 || stats.DamagedPagesTotal[FoundByRead] != 0 || stats.VerifyPagesTotal != 40+40+38+38 {
		t.Errorf("%d pages were verified, damaged %v", stats.VerifyPagesTotal, stats.DamagedPagesTotal)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := verify(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a verification that was ended: %v", err)
	}
	r.close()
	if _, err := verify(t.Context()); err == nil {
		t.Error("a closed store was verified")
	}
}
