package ssd

import (
	"testing"
	"testing/synctest"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// A device that hangs makes misses of its pages and gives up what waits behind it; what it was told to read stays with it, and it comes back by itself.
func TestADeviceThatHangsIsPassedByUntilItAnswers(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 1 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 3)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		first := r.ask(s, 0, 0, Demand)
		gate.Wait(1)
		second := r.ask(s, 0, 1, Demand)
		<-time.After(hangsAfter - presenceTick)
		synctest.Wait()
		if !r.stored(s, 2) || r.store.Status()[0].Hangs {
			t.Error("a device that is slow was passed by")
		}
		<-time.After(2 * presenceTick)
		synctest.Wait()
		if result := <-second; result.OK || result.Reason != ReasonHangs {
			t.Errorf("what waited behind it: %+v", result)
		}
		if status := r.store.Status()[0]; r.stored(s, 2) || !status.Hangs || status.Reason == "" || status.State != "on" {
			t.Errorf("%+v", status)
		}
		select {
		case result := <-first:
			t.Errorf("what was submitted ended: %+v", result)
		default:
		}
		gate.Open()
		if result := <-first; !result.OK {
			t.Error(result.Reason)
		}
		if !r.stored(s, 2) || r.store.Status()[0].Hangs {
			t.Error("a device that answers is passed by")
		}
		r.close()
	})
}

// A page that waits for its turn behind reads of a device that hangs has it when they are given up: nothing else would wake it.
func TestAWriteBehindReadsThatAreGivenUpBegins(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 1 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 2)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		first := r.ask(s, 0, 0, Demand)
		gate.Wait(1)
		second := r.ask(s, 0, 1, Demand)
		written := r.begin(s, 0, 2)
		<-time.After(hangsAfter - presenceTick)
		synctest.Wait()
		if r.stored(s, 2) {
			t.Error("a page was written while a demanded read waited")
		}
		<-time.After(2 * presenceTick)
		synctest.Wait()
		<-second
		select {
		case result := <-written:
			if !result.OK {
				t.Error(result.Reason)
			}
		default:
			t.Error("the page still waits for reads that were given up")
		}
		gate.Open()
		<-first
		r.close()
	})
}
