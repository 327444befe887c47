package ssd

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs/twin"
)

// device is a disk on paper: reads under way, a clock, and how fast it is.
type device struct {
	rate    readRate
	now     time.Time
	perByte time.Duration // of the whole device
	shares  bool          // it goes on with all reads at once, so that they end together
	depth   int
}

func newDevice(mbps int, shares bool) *device {
	return &device{now: time.Unix(1_000_000, 0), perByte: time.Second / time.Duration(mbps*1_000_000), shares: shares, depth: 16}
}

func (d *device) set(mbps int) { d.perByte = time.Second / time.Duration(mbps*1_000_000) }

// read reads so many pages, as many at a time as the depth is.
func (d *device) read(pages int, bytes uint64) {
	for pages > 0 {
		batch := min(pages, d.depth)
		for range batch {
			d.rate.begin(d.now, bytes)
		}
		took := time.Duration(bytes) * d.perByte
		if d.shares {
			d.now = d.now.Add(took * time.Duration(batch))
		}
		for range batch {
			if !d.shares {
				d.now = d.now.Add(took)
			}
			d.rate.end(d.now, bytes, true)
		}
		pages -= batch
	}
}

// within says whether a rate is about so many megabytes a second.
func (d *device) within(t *testing.T, what string, mbps float64) {
	t.Helper()
	if got := d.rate.at(d.now) / 1e6; got < mbps*0.85 || got > mbps*1.15 {
		t.Errorf("%s: %.1f MB/s, want about %.1f", what, got, mbps)
	}
}

// The rate is the device's whether it does its reads one after the other or all at once, and whatever the pages are.
func TestRateOfADevice(t *testing.T) {
	for _, bytes := range []uint64{64 << 10, 1 << 20, 9 << 20} {
		for _, shares := range []bool{false, true} {
			d := newDevice(50, shares)
			d.read(int(192<<20/bytes), bytes)
			d.within(t, "a slow one", 50)
			d.now = d.now.Add(time.Hour) // nothing is asked of it
			d.within(t, "after an hour", 50)
		}
	}
}

// A read that was held up once bounds what is expected of the device while reads go on, and not hours later, when nothing else was asked of it.
func TestAReadThatWasHeldUpIsForgotten(t *testing.T) {
	d := newDevice(1000, false)
	d.read(192, 1<<20)
	d.set(1)
	d.read(3, 1<<20)
	d.set(1000)
	if got := d.rate.at(d.now) / 1e6; got > 2 {
		t.Errorf("right after it: %.1f MB/s", got)
	}
	d.now = d.now.Add(time.Hour)
	d.within(t, "an hour later", 1000)
	d.rate.begin(d.now, 1<<20)
	d.within(t, "with a read under way", 1000)
}

// A change shows within three samples, in either direction; the first batches of queries that were stopped are enough to see that a disk is fast again.
func TestRateFollowsTheDevice(t *testing.T) {
	const batch = 32 // pages of 1 MiB: what one query reads at a time
	for _, shares := range []bool{false, true} {
		d := newDevice(50, shares)
		d.read(10*batch, 1<<20)
		d.set(1000)
		for range 3 {
			d.read(batch, 1<<20)
			d.now = d.now.Add(time.Minute)
		}
		d.within(t, "it became fast", 1000)
		d.set(50)
		d.read(2*batch, 1<<20)
		d.within(t, "it became slow", 50)
	}
}

// One slow read among many, or one that failed, moves nothing.
func TestRateIsRobust(t *testing.T) {
	d := newDevice(500, false)
	source := rand.New(rand.NewPCG(3, 7))
	for range 60 {
		d.read(16, 1<<20)
		if source.IntN(6) == 0 {
			d.rate.begin(d.now, 1<<20)
			d.now = d.now.Add(2 * time.Second)
			d.rate.end(d.now, 1<<20, source.IntN(2) == 0)
			d.read(64, 1<<20)
		}
	}
	d.within(t, "with a read of two seconds now and then", 500)
}

// A device that hangs is slow at once: what was under way bounds the rate before anything ends.
func TestRateOfADeviceThatHangs(t *testing.T) {
	d := newDevice(1000, false)
	d.read(200, 1<<20)
	for range 16 {
		d.rate.begin(d.now, 1<<20)
	}
	for _, age := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		hung := d.now.Add(age)
		if takes := secondsOf(16 << 20 / d.rate.at(hung)); takes < age/2 {
			t.Errorf("after %v the batch under way is expected to take %v", age, takes)
		}
	}
}

// Before anything was measured nothing is said, but for a device whose first reads do not end.
func TestRateOfANewDevice(t *testing.T) {
	d := newDevice(50, false)
	if d.rate.at(d.now) != 0 {
		t.Error("a rate of nothing")
	}
	d.rate.begin(d.now, 1<<20)
	d.rate.begin(d.now, 1<<20)
	if d.rate.at(d.now.Add(rateColdAfter-1)) != 0 {
		t.Error("a rate of reads that have just begun")
	}
	if takes := secondsOf(2 << 20 / d.rate.at(d.now.Add(time.Second))); takes < time.Second {
		t.Errorf("two reads that run for a second are expected to take %v", takes)
	}
	d.now = d.now.Add(21 * time.Millisecond)
	d.rate.end(d.now, 1<<20, true)
	d.within(t, "after one of them", 75)
}

// What is expected counts what is queued and runs at the volumes that the pages lie on, and what will be asked for, and grows while a device hangs.
func TestExpected(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks, func(c *Config) { c.ReadInflight = 2 })
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 20)...)
		const rate = 1e6
		v := r.store.volumes[0]
		v.rate.samples, v.rate.taken = [rateSamples]float64{rate, rate, rate, rate, rate}, rateSamples
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		var ends []<-chan ReadResult
		for number := range 6 {
			ends = append(ends, r.ask(s, 0, number, Demand))
		}
		for number := 6; number < 9; number++ {
			ends = append(ends, r.ask(s, 0, number, Warm))
		}
		gate.Wait(2)
		ask := func(reading, unread []int, before uint64) time.Duration {
			a := Awaited{Namespace: s.handle, UnreadPages: uint64(len(unread)), BeforeBytes: before}
			for _, number := range reading {
				a.Reading = append(a.Reading, keyOf(number))
			}
			for _, number := range unread {
				a.Unread = append(a.Unread, keyOf(number))
			}
			return r.store.Expected(a)
		}
		for what, c := range map[string]struct{ got, want time.Duration }{
			"pages that are read":            {ask([]int{0, 5}, nil, 0), secondsOf(6 * small / rate)},
			"and some that follow":           {ask([]int{0}, []int{10, 11}, 0), secondsOf(8 * small / rate)},
			"behind others":                  {ask(nil, []int{10}, 3*small), secondsOf(10 * small / rate)},
			"pages that lie nowhere":         {ask([]int{100}, []int{101}, small), 0},
			"of a namespace that is no more": {r.store.Expected(Awaited{Namespace: 99, Reading: []*Key{keyOf(0)}}), 0},
		} {
			if c.got != c.want {
				t.Errorf("%s: %v, want %v", what, c.got, c.want)
			}
		}
		<-time.After(3 * time.Second)
		if got := ask([]int{5}, nil, 0); got < 3*time.Second {
			t.Errorf("a device that has not answered for 3 s: %v", got)
		}
		gate.Open()
		for _, ended := range ends {
			<-ended
		}
		synctest.Wait()
		r.close()
	})
}

// A read that does not end while others do is late: what waits for it is expected no sooner than it is old.
func TestExpectedOfOneReadThatIsLate(t *testing.T) {
	quietly(t, func(t *testing.T) {
		disks := oneDisk(1)
		r := openRig(t, disks)
		s := r.namespace(1, 0, small)
		r.mustWrite(s, numbers(0, 2)...)
		gate := disks[0].Gate(twin.Read, format.PayloadName)
		late := r.ask(s, 0, 0, Demand)
		gate.Wait(1)
		<-time.After(5 * time.Second)
		v := r.store.volumes[0]
		v.rate = readRate{samples: [rateSamples]float64{1e9}, taken: 1, running: small, since: time.Now()} // others ended meanwhile
		if got := r.store.Expected(Awaited{Namespace: s.handle, Reading: []*Key{keyOf(0)}}); got != 5*time.Second {
			t.Errorf("%v", got)
		}
		v.running[0].among = 4e9 // it began among so much that it may take that long
		if got := r.store.Expected(Awaited{Namespace: s.handle, Reading: []*Key{keyOf(0)}}); got >= time.Second {
			t.Errorf("a read that is not late: %v", got)
		}
		gate.Open()
		<-late
		r.close()
	})
}
