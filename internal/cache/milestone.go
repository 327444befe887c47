package cache

import "time"

// Stage is what a query or hint that reads from the tier has reached, in the words of the timeline.
type Stage string

// The stages.
const (
	StageReadStart Stage = "read_start" // the first page of its prefix is being read
	StageHostReady Stage = "host_ready" // all that it gets is in the pool
)

// Milestone is one stage of one query or hint. Of the prefix it says how much, never which.
type Milestone struct {
	Stage    Stage
	Request  string
	Instance string
	Group    uint16
	Warmup   bool          // it is a hint's
	Elapsed  time.Duration // since the query or hint was admitted to reading
	Hits     int           // leading pages that the query gets; none at StageReadStart, and of a hint, which gets none
	Pages    int           // of the prefix, that the tier is to bring; with StageHostReady those of the hits that it brought
	Bytes    uint64        // of Pages
}

// traceReadStart says that a preparation has its first page being read.
func (c *Cache) traceReadStart(p *preparation) {
	if c.config.Trace == nil {
		return
	}
	missing := 0
	for i := range p.slots {
		if !p.slots[i].held() {
			missing++
		}
	}
	c.trace(p, StageReadStart, 0, missing)
}

// traceHostReady says what a preparation has that is about to end with its query ready. One that read nothing has no stages.
func (c *Cache) traceHostReady(p *preparation) {
	if c.config.Trace == nil || p.awaited == 0 {
		return
	}
	brought := 0
	for i := range p.slots {
		if p.slots[i].slow {
			brought++
		}
	}
	c.trace(p, StageHostReady, len(p.slots), brought)
}

func (c *Cache) trace(p *preparation, stage Stage, hits, pages int) {
	op := p.op
	c.config.Trace(Milestone{
		Stage: stage, Request: op.request, Instance: op.instance.id, Group: op.group, Elapsed: c.now.Sub(p.since),
		Hits: hits, Pages: pages, Bytes: uint64(pages) * op.namespace.geometry.pageBytes,
	})
}

// traceHintStart says once that a hint reads, with what is missing of its prefix.
func (c *Cache) traceHintStart(h *hint) {
	if c.config.Trace != nil && !h.told {
		h.told = true
		c.traceHint(h, StageReadStart, len(h.keys)-h.next)
	}
}

// traceHintReady says what a hint has read that read to its end. One that stopped before is not ready.
func (c *Cache) traceHintReady(h *hint, why hintEnd) {
	if h.told && why == hintRead {
		c.traceHint(h, StageHostReady, len(h.held))
	}
}

func (c *Cache) traceHint(h *hint, stage Stage, pages int) {
	c.config.Trace(Milestone{
		Stage: stage, Request: h.request, Instance: h.instance.id, Warmup: true, Elapsed: c.now.Sub(h.since),
		Pages: pages, Bytes: uint64(pages) * h.namespace.geometry.pageBytes,
	})
}
