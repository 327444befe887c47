package cache

import (
	"orbitkv/internal/index"
	"orbitkv/internal/policy"
	"orbitkv/internal/wire"
)

// WritePolicy says which pages are offered to the tier when they are saved. A page that a query found resident and that the tier does not have is
// offered under either (Offer). What is handed on ahead of demand, and what an engine finds on its own device, is no reason to write.
type WritePolicy uint8

// The policies.
const (
	WriteAll   WritePolicy = iota // every page
	WriteReuse                    // one that is saved again: its key is among the last policy.HistoryPages that were saved
)

// skip is why a page was not handed to the tier.
type skip uint8

const (
	skipCold      skip = iota // under WriteReuse: it was not saved before, as far as the history goes
	skipResident              // the tier has it
	skipPending               // the tier is writing it
	skipDuplicate             // its key was named twice in one reserve: that is not a second save
	skipClearing              // the cache is being cleared: what is still resident must not outlive that
	skips
)

var skipNames = [skips]string{"cold", "resident", "pending", "duplicate", "clearing"}

// newHistory returns the memory that a policy needs, nil for none.
func newHistory(config Config) *policy.History {
	if config.Tier == nil || config.WritePolicy != WriteReuse {
		return nil
	}
	return policy.NewHistory()
}

// stores says whether pages of a namespace go to the tier at all.
func (c *Cache) stores(ns *namespace) bool { return c.config.Tier != nil && !ns.private && !ns.dead }

// saved lets a page that was sealed just now be offered by offerSaved, as the policy goes.
func (c *Cache) saved(ns *namespace, h index.Handle) {
	if !c.stores(ns) {
		return
	}
	p := c.pageOf(h)
	if c.history != nil && !c.history.Add(policyPage(p.Namespace, p.Group, (*wire.Key)(&p.Key))) {
		c.counters.writeSkips[skipCold]++
		return
	}
	c.scratch.saved = append(c.scratch.saved, h)
}

// offerSaved offers what one report sealed, the page that was sealed last first: that is the head of its prefix, without which the others are worth
// nothing where the tier's queue has no room for all.
func (c *Cache) offerSaved(ns *namespace) {
	for i := len(c.scratch.saved) - 1; i >= 0; i-- {
		h := c.scratch.saved[i]
		p := c.pageOf(h)
		c.offer(ns, h, p.Group, (*wire.Key)(&p.Key))
	}
	c.scratch.saved = c.scratch.saved[:0]
}

// wantedByTier says whether the tier lacks a page, and counts why not.
func (c *Cache) wantedByTier(ns *namespace, group uint16, key *wire.Key) bool {
	tier := c.config.Tier
	switch {
	case tier.Wanted(ns.stored, group, key):
		return true
	case tier.Stored(ns.stored, group, key):
		c.counters.writeSkips[skipResident]++
	default:
		c.counters.writeSkips[skipPending]++
	}
	return false
}

func policyPage(namespace uint32, group uint16, key *wire.Key) policy.Page {
	return policy.Page{Namespace: namespace, Group: group, Key: *key}
}
