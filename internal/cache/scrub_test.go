package cache

import (
	"reflect"
	"slices"
	"testing"

	"orbitkv/internal/index"
	"orbitkv/internal/wire"
)

// scrub gives every page of one pass a digest, and returns the keys that it saw in their order.
func (r *rig) scrub(digest func(index.Page) Digest) (seen []wire.Key) {
	r.t.Helper()
	for {
		out, ok := r.ScrubNext()
		if !ok {
			return seen
		}
		r.check()
		p := r.pageOf(out.Page)
		seen = append(seen, wire.Key(p.Key))
		r.ScrubDone(out.Page, digest(p))
	}
}

func sound(p index.Page) Digest { return Digest(p.Key[:16]) }

// broken is the digest of a page whose first bytes are others than they were.
func broken(p index.Page) Digest {
	d := sound(p)
	d[0] ^= 1
	return d
}

func scrubRig(t *testing.T, config Config) (*rig, *engine) {
	t.Helper()
	config.PoolBytes, config.Scrub = 16*mib, true
	r := newRig(t, config)
	return r, r.engine("a", 100, one(page))
}

func TestScrubComparesEveryPageWithItsFirstSight(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 20))
	for range 3 {
		if seen := r.scrub(sound); len(seen) != 20 {
			t.Fatalf("a pass saw %d of 20 pages", len(seen))
		}
	}
	if damages := r.Damages(); len(damages) != 0 {
		t.Fatalf("%+v", damages)
	}
	s := r.Stats()
	if s.ScrubBytesTotal != 60*page || s.ScrubPassesTotal != 3 || s.DamagedPagesTotal != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestADamagedPageIsAMissAtOnceAndNamesItsWriter(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 4))
	r.scrub(sound)
	r.scrub(func(p index.Page) Digest {
		if wire.Key(p.Key) == keyOf(2) {
			return broken(p)
		}
		return sound(p)
	})
	r.check()
	if n := r.found(e, keysOf(0, 4)); n != 2 {
		t.Fatalf("%d pages are found, the third is damaged", n)
	}
	damages := r.Damages()
	if len(damages) != 1 || r.Damages() != nil {
		t.Fatalf("%+v", damages)
	}
	d := damages[0]
	if d.Key != keyOf(2) || d.Namespace != e.ns.Namespace || d.Facts["model"] != "m" || d.Origin != "published" || len(d.Parts) != 1 {
		t.Errorf("%+v", d)
	}
	want := []WriterRank{{Rank: 0, PID: 101, Command: "engine-101"}}
	if d.Writer.Instance != "a" || !reflect.DeepEqual(d.Writer.Ranks, want) {
		t.Errorf("the writer is %+v", d.Writer)
	}
	if s := r.Stats(); s.DamagedPagesTotal != 1 || s.PoolUsedBytes != 3*page {
		t.Errorf("%+v", s)
	}
	r.publish(e, keysOf(2, 1)) // in the record that became free: nothing is known of its bytes
	r.scrub(sound)
	r.scrub(sound)
	if len(r.Damages()) != 0 || r.found(e, keysOf(0, 4)) != 4 {
		t.Error("the digest of a page outlived it")
	}
}

func TestADamagedPageThatIsLeasedIsFreedWithItsLease(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 1))
	r.scrub(sound)
	got := r.query(e, keysOf(0, 1))
	r.scrub(broken)
	r.check()
	if s := r.Stats(); s.RetiredBytes != page || s.ResidentBytes != 0 {
		t.Fatalf("%+v", s)
	}
	r.restore(e, got)
	if s := r.Stats(); s.PoolUsedBytes != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestADamagedPageThatLeftMeanwhileIsTold(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 1))
	r.scrub(sound)
	out, _ := r.ScrubNext()
	r.Cleanup()
	r.check()
	r.ScrubDone(out.Page, Digest{9})
	r.check()
	if s := r.Stats(); len(r.Damages()) != 1 || s.PoolUsedBytes != 0 {
		t.Fatalf("%+v", s)
	}
}

// The bytes of a page that is out may not be another page's, whatever becomes of its record; and to be looked at is not to be used.
func TestAPageThatIsOutKeepsItsBytesAndItsPlace(t *testing.T) {
	r := newRig(t, Config{PoolBytes: 3 * page, Scrub: true})
	e := r.engine("a", 100, one(page))
	r.publish(e, keysOf(0, 3)) // page 2 is the next victim
	for {
		out, ok := r.ScrubNext()
		if !ok {
			t.Fatal("page 2 was not given out")
		}
		if wire.Key(r.pageOf(out.Page).Key) != keyOf(2) {
			r.ScrubDone(out.Page, Digest{1})
			continue
		}
		if got := r.publish(e, keysOf(10, 3)); got.Pages != 2 {
			t.Fatalf("%d pages were granted, the bytes of one victim are being looked at", got.Pages)
		}
		r.check()
		if s := r.Stats(); s.PageEvictionsTotal["retained"] != 3 || s.RetiredBytes != page {
			t.Fatalf("%+v", s)
		}
		r.ScrubDone(out.Page, Digest{1})
		break
	}
	r.check()
	if s := r.Stats(); s.PoolUsedBytes != 2*page {
		t.Fatalf("%+v", s)
	}
}

func TestScrubLeavesTheOrderOfVictims(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 8))
	r.found(e, keysOf(3, 2))
	order := func() (keys []index.Key) {
		for h, ok := r.index.Oldest(index.Retained); ok; h, ok = r.index.Newer(h) {
			keys = append(keys, r.pageOf(h).Key)
		}
		return keys
	}
	before := order()
	r.scrub(sound)
	if !slices.Equal(order(), before) {
		t.Fatal("a pass changed the order of victims")
	}
}

func TestTheTiersDigestsAreCompared(t *testing.T) {
	b := newBench()
	r, e := scrubRig(t, Config{Tier: b})
	r.publish(e, keysOf(0, 2))
	b.digest = Digest{5}
	r.endWrites(b)
	r.scrub(func(index.Page) Digest { return Digest{5} })
	if len(r.Damages()) != 0 {
		t.Fatal("the digest of the write is not the page's")
	}
	r.scrub(func(index.Page) Digest { return Digest{6} })
	if len(r.Damages()) != 2 || len(b.stored) != 2 {
		t.Fatal("a page that changed after it was written is not seen, or what is stored went with it")
	}
	got := r.query(e, keysOf(0, 2))
	b.digest = Digest{5}
	r.endReads(b)
	r.restore(e, r.outcome(e, got.Operation, 1, wire.OutcomeReady))
	r.scrub(func(index.Page) Digest { return Digest{6} })
	damages := r.Damages()
	if len(damages) != 2 || damages[0].Origin != "stored" || damages[0].Writer.Instance != "" {
		t.Fatalf("%+v", damages)
	}
	r.check()
}

// A page that changed between its first sight and its write would be stored with a digest that agrees with the wrong bytes.
func TestAPageThatChangedBeforeItsWriteIsNotStored(t *testing.T) {
	b := newBench()
	r, e := scrubRig(t, Config{Tier: b})
	r.publish(e, keysOf(0, 1))
	r.scrub(func(index.Page) Digest { return Digest{5} })
	b.digest = Digest{6}
	r.endWrites(b)
	r.check()
	if len(b.stored) != 0 || len(r.Damages()) != 1 || r.found(e, keysOf(0, 1)) != 0 {
		t.Fatal("damaged bytes can be read")
	}
	if s := r.Stats(); s.PoolUsedBytes != 0 || s.DamagedPagesTotal != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestAWriterIsTheRanksAsTheyWere(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 1))
	r.ProcessExited(e.ranks[0].process)
	next := r.connect(r.process(555), wire.RoleWorker)
	if _, err := r.Attach(next.id, one(page).attach("a", 0)); err != nil {
		t.Fatal(err)
	}
	r.must(r.Mapped(next.id, 0, true, ""))
	e.ranks[0] = next
	r.publish(e, keysOf(1, 1))
	r.scrub(sound)
	r.scrub(broken)
	pids := map[wire.Key]int{}
	for _, d := range r.Damages() {
		pids[d.Key] = d.Writer.Ranks[0].PID
	}
	if pids[keyOf(0)] != 101 || pids[keyOf(1)] != 555 {
		t.Fatalf("%v", pids)
	}
}

// Of more writers than are remembered the oldest is unknown, not another one.
func TestAForgottenWriterIsNobody(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 1))
	inst := r.instances["a"]
	for range writersMax {
		inst.writer = 0
		r.writerOf(inst)
	}
	r.publish(e, keysOf(1, 1))
	r.scrub(sound)
	r.scrub(broken)
	for _, d := range r.Damages() {
		if known := d.Writer.Instance != ""; known != (d.Key == keyOf(1)) {
			t.Errorf("page %v: writer %+v", d.Key[:2], d.Writer)
		}
	}
}

func TestDamageIsKeptUpToItsBoundAndCounted(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, damagesMax+10))
	r.scrub(sound)
	r.scrub(broken)
	if n := len(r.Damages()); n != damagesMax {
		t.Errorf("%d pages are told", n)
	}
	if s := r.Stats(); s.DamagedPagesTotal != damagesMax+10 || s.ResidentBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// A pass goes over records whatever they are: private pages and pages that are being written are not looked at, and holes cost no call.
func TestAPassSeesSealedPagesAlone(t *testing.T) {
	r, e := scrubRig(t, Config{})
	r.publish(e, keysOf(0, 30))
	r.Cleanup()
	r.publish(e, keysOf(5, 3))
	open := r.reserve(e, keysOf(40, 4))
	ns, err := r.OpenPrivate(e.ranks[0].id, page)
	r.must(err)
	private, err := r.Reserve(e.ranks[0].id, Reserve{Operation: 1, Revision: 1, Namespace: ns.Namespace, Keys: keysOf(0, 1)})
	r.must(err)
	r.must(r.Committed(e.ranks[0].id, private.Reservation, 0, all(1)))
	if seen := r.scrub(sound); len(seen) != 3 {
		t.Fatalf("%d pages were given out", len(seen))
	}
	r.commit(e, open)
	if seen := r.scrub(sound); len(seen) != 7 {
		t.Fatalf("%d pages were given out", len(seen))
	}
}

// Memory of the index and of the digests, for each page of one slice.
func BenchmarkScrubMemory(b *testing.B) {
	for b.Loop() {
		for _, pages := range []int{100_000, 1_000_000} {
			r := newRig(b, Config{PoolBytes: uint64(pages) * 4 * kib, Scrub: true})
			e := r.engine("a", 100, one(4*kib))
			for from := 0; from < pages; from += 50_000 {
				r.publish(e, keysOf(from, 50_000))
			}
			r.scrubAll()
			b.ReportMetric(float64(r.Stats().IndexBytes)/float64(pages), "B/page")
		}
	}
}

func (r *rig) scrubAll() {
	for {
		out, ok := r.ScrubNext()
		if !ok {
			return
		}
		r.ScrubDone(out.Page, sound(r.pageOf(out.Page)))
	}
}
