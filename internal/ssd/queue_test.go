package ssd

import (
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// quietly runs a test in a bubble, in which synctest.Wait returns when nothing moves any more.
func quietly(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// A backlog of writes that the device does not take holds up no read.
func TestWritesDoNotHoldUpReads(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		gate := disks[0].Gate(twin.Write, format.PayloadName)
		var ends []<-chan WriteResult
		for number := 100; number < 140; number++ {
			ends = append(ends, r.begin(s, 0, number))
		}
		gate.Wait(DefaultWriteInflight)
		for number := range 8 {
			if result := r.readAs(s, number, Demand); !result.OK {
				t.Errorf("page %d could not be read beside a backlog: %s", number, result.Reason)
			}
		}
		if stats := r.store.Stats(); stats.WriteInflight != DefaultWriteInflight || stats.WriteQueuePages < 37 {
			t.Errorf("%d pages are being written, %d wait", stats.WriteInflight, stats.WriteQueuePages)
		}
		gate.Open()
		for _, ended := range ends {
			if result := <-ended; !result.OK {
				t.Errorf("a write behind the gate failed: %s", result.Reason)
			}
		}
		r.close()
	})
}

// While a demanded read waits no new write begins; those that were submitted go on.
func TestDemandGoesBeforeWrites(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 2 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		var reads []<-chan ReadResult
		for number := range 3 {
			reads = append(reads, r.ask(s, 0, number, Demand))
		}
		gate.Wait(2)
		before, _ := disks[0].Count(twin.Write)
		write := r.begin(s, 0, 100)
		synctest.Wait()
		if after, _ := disks[0].Count(twin.Write); after != before {
			t.Errorf("%d writes began while a demanded read waited", after-before)
		}
		gate.Pass(1)
		<-reads[0]
		if result := <-write; !result.OK { // though two reads are at the gate: none waits any more
			t.Error(result.Reason)
		}
		gate.Open()
		<-reads[1]
		<-reads[2]
		r.close()
	})
}

// Reads begin by priority, and in each in the order in which they came.
func TestReadsBeginByPriority(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 1 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 9)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		var order []int
		ends := make(chan int, 9)
		first := r.ask(s, 0, 8, Warm)
		gate.Wait(1)
		for number := range 8 {
			ended := r.ask(s, 0, number, []Priority{Warm, Prepare, Demand}[number%3])
			go func() {
				if (<-ended).OK {
					ends <- number
				}
			}()
		}
		gate.Pass(1)
		<-first
		for range 8 {
			gate.Pass(1)
			order = append(order, <-ends)
		}
		if want := []int{2, 5, 1, 4, 7, 0, 3, 6}; !slices.Equal(order, want) {
			t.Errorf("reads ended in the order %v, want %v", order, want)
		}
		gate.Open()
		r.close()
	})
}

// A read that was begun ahead of a query goes with those of queries once one waits for it, behind those that came before.
func TestAReadThatAQueryJoinsGoesWithItsOwn(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 1 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 9)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		first := r.ask(s, 0, 8, Warm)
		gate.Wait(1)
		var order []int
		ends := make(chan int, 9)
		for number := range 6 {
			ended := r.ask(s, 0, number, []Priority{Warm, Demand, Prepare}[number%3])
			go func() {
				if (<-ended).OK {
					ends <- number
				}
			}()
		}
		for _, number := range []int{3, 8, 5, 7, 3} { // the second is under way, the fourth is not asked for
			r.store.Hasten(s.handle, 0, keyOf(number))
		}
		if waiting := r.store.Stats().ReadQueuePages; waiting["demand"] != 4 || waiting["warm"] != 1 || waiting["prepare"] != 1 {
			t.Errorf("reads wait: %v", waiting)
		}
		gate.Pass(1)
		<-first
		for range 6 {
			gate.Pass(1)
			order = append(order, <-ends)
		}
		if want := []int{1, 4, 3, 5, 2, 0}; !slices.Equal(order, want) {
			t.Errorf("reads ended in the order %v, want %v", order, want)
		}
		gate.Open()
		r.close()
	})
}

// The queue of reads is bounded in bytes: the next one is refused and may be asked for again.
func TestReadQueueIsBounded(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight, c.ReadQueueBytes = 2, 3*small })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 9)...)
		if room := r.store.ReadRoom(); room != 3 {
			t.Errorf("room for %d reads, want 3", room)
		}
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		var ends []<-chan ReadResult
		for number := range 5 {
			ends = append(ends, r.ask(s, 0, number, Prepare))
		}
		if got := r.ask(s, 0, 5, Demand); got != nil || r.store.ReadRoom() != 0 || r.store.Stats().ReadQueueRefusedTotal != 1 {
			t.Errorf("a read was taken by a full queue: room %d", r.store.ReadRoom())
		}
		gate.Open()
		for _, ended := range ends {
			<-ended
		}
		r.mustRead(s, 5)
		r.close()
	})
}

// The queue of writes is bounded in bytes, and so is all that is held for writing: what finds it full is dropped and counted.
func TestWriteQueueIsBounded(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.WriteQueueBytes = 4 * small })
		s := r.namespace(1, 0, small)
		gate := disks[0].Gate(twin.Write, format.PayloadName)
		var ends []<-chan WriteResult
		for number := range 20 {
			if ended := r.begin(s, 0, number); ended != nil {
				ends = append(ends, ended)
			}
			synctest.Wait()
		}
		// Two are being written and four wait, with a place or without.
		if stats := r.store.Stats(); len(ends) != 6 || stats.WriteQueueFullTotal != 14 || stats.WriteSkipsTotal[SkipFull] != 14 {
			t.Errorf("%d pages were taken, %d found the queue full", len(ends), stats.WriteQueueFullTotal)
		}
		gate.Open()
		for _, ended := range ends {
			if result := <-ended; !result.OK {
				t.Error(result.Reason)
			}
		}
		if held := r.store.Stats().WriteHeldBytes; held != 0 {
			t.Errorf("%d bytes are still held", held)
		}
		r = r.again(func(c *Config) { c.HeldBytesMax = 2 * small })
		gate = disks[0].Gate(twin.Write, format.PayloadName)
		s = r.namespace(1, 0, small)
		ends = nil
		for number := 100; number < 110; number++ {
			if ended := r.begin(s, 0, number); ended != nil {
				ends = append(ends, ended)
			}
		}
		if len(ends) != 2 {
			t.Errorf("%d pages are held, the bound is two", len(ends))
		}
		gate.Open()
		for _, ended := range ends {
			<-ended
		}
		r.close()
	})
}

// Close waits for what was submitted, writes what is queued, ends reads that have not begun with a reason, and everything has exactly one end.
func TestCloseWithTransfersUnderWay(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 2 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 8)...)
		writing, reading := disks[0].Gate(twin.Write, format.PayloadName), disks[0].Gate(twin.Read, format.PayloadName)
		var writes []<-chan WriteResult
		for number := 100; number < 110; number++ {
			writes = append(writes, r.begin(s, 0, number))
		}
		writing.Wait(2)
		var reads []<-chan ReadResult
		for number := range 5 {
			reads = append(reads, r.ask(s, 0, number, Prepare))
		}
		reading.Wait(2)
		closed := make(chan error, 1)
		go func() { closed <- r.store.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("the store closed with transfers under way: %v", err)
		default:
		}
		if r.begin(s, 0, 200) != nil || r.ask(s, 0, 7, Demand) != nil {
			t.Error("a closing store took a page")
		}
		reading.Open()
		writing.Open()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		for i, ended := range writes {
			if result := <-ended; !result.OK {
				t.Errorf("write %d ended as %+v", i, result)
			}
		}
		for i, ended := range reads {
			if result := <-ended; result.OK != (i < 2) || !result.OK && result.Reason != ReasonClosed {
				t.Errorf("read %d ended as %+v", i, result)
			}
		}
		if err := r.store.Close(); err == nil {
			t.Error("a store was closed twice")
		}
		r = openRig(t, disks)
		s = r.namespace(1, 0, small)
		r.mustRead(s, append(numbers(0, 8), numbers(100, 110)...)...)
		r.close()
	})
}

// What was submitted goes on when its namespace is dropped or the store cleared: nothing is aborted, nothing of it is visible, and its space comes
// back only when it has ended.
func TestDroppedPagesDrain(t *testing.T) {
	for name, drop := range map[string]func(*rig, space){
		"namespace": func(r *rig, s space) { r.store.DropNamespace(s.handle) },
		"clear":     func(r *rig, _ space) { r.store.Clear() },
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks, func(c *Config) { c.ReadInflight = 2 })
				s := r.namespace(1, 7, small)
				r.mustWrite(s, numbers(0, 8)...)
				writing, reading := disks[0].Gate(twin.Write, format.PayloadName), disks[0].Gate(twin.Read, format.PayloadName)
				writes := []<-chan WriteResult{r.begin(s, 0, 100), r.begin(s, 0, 101), r.begin(s, 0, 102)}
				writing.Wait(2)
				reads := []<-chan ReadResult{r.ask(s, 0, 0, Prepare), r.ask(s, 0, 1, Prepare), r.ask(s, 0, 2, Prepare)}
				reading.Wait(2)
				drop(r, s)
				if r.count(s, 0, 8) != 0 || r.ask(s, 0, 3, Demand) != nil {
					t.Error("a dropped page is stored")
				}
				synctest.Wait()
				// The extents of three reads, of which one waits, and of two writes are still lent.
				if used := r.store.Stats().UsedBytes; used != 5*format.ExtentBytes(small) {
					t.Errorf("%d bytes are lent while five pages are under way", used)
				}
				if err := r.store.Check(); err != nil {
					t.Error(err)
				}
				writing.Open()
				reading.Open()
				for i := range 3 {
					if result := <-writes[i]; result.OK || result.Reason != ReasonDropped {
						t.Errorf("write %d ended as %+v", i, result)
					}
					if result := <-reads[i]; result.OK || result.Reason != ReasonDropped {
						t.Errorf("read %d ended as %+v", i, result)
					}
				}
				s = r.namespace(1, 7, small)
				if got := r.count(s, 0, 110); got != 0 {
					t.Errorf("%d dropped pages came back", got)
				}
				r.mustWrite(s, 5, 101)
				r = r.again()
				s = r.namespace(1, 7, small)
				r.mustRead(s, 5, 101)
				if got := r.count(s, 0, 110); got != 2 {
					t.Errorf("%d pages are stored after a restart, want 2", got)
				}
				r.close()
			})
		})
	}
}

// A page that is dropped while its record is being made durable never becomes visible, ends with the reason, and leaves no byte lent.
func TestDroppedWhileItIsCommitted(t *testing.T) {
	for name, drop := range map[string]func(*rig, space){
		"namespace": func(r *rig, s space) { r.store.DropNamespace(s.handle) },
		"clear":     func(r *rig, _ space) { r.store.Clear() },
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 7, small)
				gate := disks[0].Gate(twin.Sync, format.IndexName)
				ended := r.begin(s, 0, 1)
				gate.Wait(1)
				drop(r, s)
				again := r.namespace(1, 7, small)
				next := r.begin(again, 0, 1) // the page may be offered again at once
				synctest.Wait()
				gate.Open()
				if result := <-ended; result.OK || result.Reason != ReasonDropped {
					t.Errorf("the dropped page ended as %+v", result)
				}
				if result := <-next; !result.OK {
					t.Errorf("the page that was offered again ended as %+v", result)
				}
				synctest.Wait()
				if used := r.store.Stats().UsedBytes; used != format.ExtentBytes(small) {
					t.Errorf("%d bytes are lent for one page", used)
				}
				r = r.again()
				r.mustRead(r.namespace(1, 7, small), 1)
				if got := r.store.Stats().RecoveredPages; got != 1 {
					t.Errorf("%d pages came back, want 1", got)
				}
				r.close()
			})
		})
	}
}

// A store whose volume takes no writes closes when the transfers that were under way have ended, as any other.
func TestCloseOfAVolumeThatIsReadOnly(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 4)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		reads := []<-chan ReadResult{r.ask(s, 0, 0, Prepare), r.ask(s, 0, 1, Prepare)}
		gate.Wait(2)
		disks[0].Fail(twin.Rule{Operation: twin.Write, Name: format.PayloadName, Onward: true, Err: unix.EROFS})
		for number := 10; number < 10+failuresInARow; number++ {
			r.write(s, number)
		}
		closed := make(chan error, 1)
		go func() { closed <- r.store.Close() }()
		synctest.Wait()
		if len(closed) > 0 || r.store.Status()[0].State != "read_only" {
			t.Errorf("the store closed with reads under way, %+v", r.store.Status()[0])
		}
		gate.Open()
		for _, ended := range reads {
			if result := <-ended; !result.OK {
				t.Errorf("a read that was under way when its volume took no more writes ended as %+v", result)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// What is dropped is dropped on the device, too, soon and without a restart: a loss of power does not bring it back.
func TestDropsAreDurable(t *testing.T) {
	for name, c := range map[string]struct {
		drop func(*rig, space)
		left uint64
	}{
		"namespace": {func(r *rig, s space) { r.store.DropNamespace(s.handle) }, 5},
		"clear":     {func(r *rig, _ space) { r.store.Clear() }, 0},
		"page":      {func(r *rig, s space) { r.store.Drop(s.handle, 0, keyOf(3)) }, 12},
		"damage": {func(r *rig, s space) {
			r.disks[0].Damage(format.PayloadName, int64(r.offset(s, 3)), 1)
			r.read(s, 3)
		}, 12},
	} {
		t.Run(name, func(t *testing.T) {
			quietly(t, func(t *testing.T) {
				disks := oneDisk(1)
				r := openRig(t, disks)
				s := r.namespace(1, 7, small)
				r.mustWrite(s, numbers(0, 8)...)
				r.mustWrite(r.namespace(2, 7, small), numbers(0, 5)...)
				c.drop(r, s)
				synctest.Wait()
				crashed := disks[0].Crash()
				r.close()
				r = openRig(t, []*twin.Disk{crashed})
				if got := r.store.Stats().RecoveredPages; got != c.left {
					t.Errorf("%d pages came back, want %d", got, c.left)
				}
				r.close()
			})
		})
	}
}

// A page that is being read is no victim, though it was used longest ago.
func TestAPageThatIsReadStays(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 10)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		reads := []<-chan ReadResult{r.ask(s, 0, 0, Warm), r.ask(s, 0, 1, Warm)}
		gate.Wait(2)
		for number := 10; r.count(s, 2, 6) > 0; number++ { // two writes at a time: neighbours may end in either order
			r.mustWrite(s, number)
		}
		if got := r.count(s, 0, 6); got != 2 {
			t.Errorf("%d of the oldest pages are left, two are being read", got)
		}
		gate.Open()
		for _, ended := range reads {
			if result := <-ended; !result.OK {
				t.Error(result.Reason)
			}
		}
		r.close()
	})
}
