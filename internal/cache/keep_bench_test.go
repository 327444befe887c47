package cache

import (
	"container/list"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"orbitkv/internal/wire"
)

// The simulation of what the policies are worth: requests over documents, some asked for again and again and some once, against a pool that holds a
// fraction of them and a tier that holds more. Nothing is copied and nothing takes time, so that its figures are those of the policies alone.
const (
	simPage        = 1 * mib
	simPoolPages   = 2_000
	simTierPages   = 6_000
	simDocuments   = 600 // that are asked for again, 4 to 40 pages each: about 13,000 pages, more than six times the pool
	simOnce        = 0.4 // of the requests ask for a document that nobody asks for again
	simWarmup      = 4_000
	simRequests    = 16_000
	simAnswerPages = 2 // that a request generates and publishes; the next one of the same document names them
)

// disk is a Tier that keeps the pages used last and is done with everything between two requests.
type disk struct {
	pages   map[storedKey]*list.Element
	order   *list.List // of storedKey, the one used last first
	reads   []TierPage
	writes  []TierPage
	asked   []storedKey
	written uint64 // pages
}

func (d *disk) Namespace([32]byte, uint64, uint64) uint32 { return 1 }
func (d *disk) DropNamespace(uint32)                      {}
func (d *disk) ReleaseNamespace(uint32)                   {}
func (d *disk) Clear()                                    {}
func (d *disk) Drop(uint32, uint16, *wire.Key)            {}
func (d *disk) ReadRoom() int                             { return 1 << 20 }
func (d *disk) Hasten(uint32, uint16, *wire.Key)          {}
func (d *disk) Expected(Awaited) time.Duration            { return 0 }

func (d *disk) Stored(namespace uint32, group uint16, key *wire.Key) bool {
	return d.pages[storedKey{namespace, group, *key}] != nil
}

func (d *disk) Wanted(namespace uint32, group uint16, key *wire.Key) bool {
	return !d.Stored(namespace, group, key)
}

func (d *disk) Read(t TierPage, _ ReadPriority) bool {
	if d.pages[t.stored()] == nil {
		return false
	}
	d.order.MoveToFront(d.pages[t.stored()])
	d.reads = append(d.reads, t)
	return true
}

func (d *disk) Write(t TierPage) bool {
	d.writes = append(d.writes, t)
	return true
}

func (d *disk) Demanded(namespace uint32, group uint16, keys []wire.Key) {
	for _, key := range keys {
		d.asked = append(d.asked, storedKey{namespace, group, key})
	}
}

// work ends what was begun, and asks for pages that were found and that it lacks.
func (d *disk) work(r *rig) {
	for _, k := range d.asked {
		if at := d.pages[k]; at != nil {
			d.order.MoveToFront(at)
		} else {
			r.Offer(k.namespace, k.group, []wire.Key{k.key})
		}
	}
	d.asked = d.asked[:0]
	for len(d.reads) > 0 {
		t := d.reads[0]
		d.reads = d.reads[1:]
		r.PageRead(t.Page, Digest{}, true)
	}
	for _, t := range d.writes {
		d.written++
		d.pages[t.stored()] = d.order.PushFront(t.stored())
		if len(d.pages) > simTierPages {
			delete(d.pages, d.order.Remove(d.order.Back()).(storedKey))
		}
		r.PageWritten(t.Page, Digest{}, true)
	}
	d.writes = d.writes[:0]
}

// simulation is one run. The requests depend on the seed alone, not on what the cache does.
type simulation struct {
	r      *rig
	e      *engine
	d      *disk
	random *rand.Rand
	zipf   *rand.Zipf
	grown  []int // by document: pages that it has
	once   int
}

func newSimulation(b *testing.B, config Config) *simulation {
	d := &disk{pages: map[storedKey]*list.Element{}, order: list.New()}
	config.PoolBytes, config.Tier = simPoolPages*simPage, d
	random := rand.New(rand.NewPCG(20260920, 7))
	s := &simulation{r: newRig(b, config), d: d, random: random, zipf: rand.NewZipf(random, 1.05, 8, simDocuments-1)}
	s.e = s.r.engine("a", 100, one(simPage))
	for range simDocuments {
		s.grown = append(s.grown, 4+random.IntN(36))
	}
	return s
}

// request asks for a document, restores what is there, publishes the rest and what it generates. A document that was asked for grows by that, until it
// is long and begins anew.
func (s *simulation) request() {
	first, pages := 0, 0
	if s.random.Float64() < simOnce {
		s.once++
		first, pages = 1<<40+s.once<<10, 4+s.random.IntN(36)
	} else {
		document := int(s.zipf.Uint64())
		first, pages = document<<10, s.grown[document]
		if s.grown[document] += simAnswerPages; s.grown[document] > 60 {
			s.grown[document] = 4
		}
	}
	got := s.r.query(s.e, keysOf(first, pages))
	if got.Outcome == wire.OutcomePreparing {
		s.d.work(s.r)
		got = s.r.outcome(s.e, got.Operation, got.Revision, wire.OutcomeReady)
	}
	if got.Lease != 0 {
		s.r.restore(s.e, got)
	}
	s.r.publish(s.e, keysOf(first+int(got.Pages), pages-int(got.Pages)+simAnswerPages))
	s.d.work(s.r)
	s.e.scheduler.queue.notices = s.e.scheduler.queue.notices[:0]
}

// BenchmarkPolicies reports, for each combination, the share of pages asked for that were found in the pool and in the tier, and what was written
// to the tier a request.
func BenchmarkPolicies(b *testing.B) {
	for _, writes := range []WritePolicy{WriteAll, WriteReuse} {
		for _, protected := range []uint64{0, 80} {
			for _, frequency := range []bool{false, true} {
				name := fmt.Sprintf("writes=%s/protected=%d/lfu=%v", []string{"all", "reuse"}[writes], protected, frequency)
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						simulate(b, Config{WritePolicy: writes, ProtectedPercent: protected, LFUAdmission: frequency})
					}
				})
			}
		}
	}
}

func simulate(b *testing.B, config Config) {
	s := newSimulation(b, config)
	for range simWarmup {
		s.request()
	}
	before, written := s.r.Stats(), s.d.written
	for range simRequests {
		s.request()
	}
	now := s.r.Stats()
	hits, slow := now.PageHitsTotal-before.PageHitsTotal, now.PageHitsTierTotal-before.PageHitsTierTotal
	asked := float64(hits + now.PageMissesTotal - before.PageMissesTotal)
	b.ReportMetric(100*float64(hits-slow)/asked, "%pool")
	b.ReportMetric(100*float64(slow)/asked, "%ssd")
	b.ReportMetric(float64(s.d.written-written)*float64(simPage)/float64(mib)/simRequests, "MiB-written/request")
	b.ReportMetric(0, "ns/op")
}
