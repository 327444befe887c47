package cache

import (
	"orbitkv/internal/index"
	"orbitkv/internal/policy"
	"orbitkv/internal/wire"
)

// newSketch returns the estimates that admission by frequency needs, nil for none.
func newSketch(config Config) *policy.Sketch {
	if !config.LFUAdmission {
		return nil
	}
	return policy.NewSketch(config.PoolBytes, config.Seed)
}

// countUses counts one use of each page that a query asks for, whatever number of ranks ask for it and whether it is there.
func (c *Cache) countUses(op *operation) {
	if c.uses == nil {
		return
	}
	resident := c.index.Count(index.Sealed)
	for i := range op.keys {
		c.uses.Use(policyPage(op.namespace.handle, op.group, &op.keys[i]), resident)
	}
}

// weigh decides which keys of a reserve are worth their place: where a page must be evicted for one that is estimated to be used less, the key is
// refused. Keys are weighed in their order against the pages that reclaim would take, in its order. It returns the refused keys by position, nil
// for none.
func (c *Cache) weigh(inst *instance, q Reserve) (refused []bool) {
	if c.uses == nil || inst.private || inst.joint != nil && inst.skippedBySome(q.Operation) {
		return nil
	}
	missing := c.missingKeys(inst, q)
	short := c.shortage(inst, len(missing))
	short -= min(short, c.deadBytes())
	pageBytes := inst.geometry.pageBytes
	free := len(missing) - min(len(missing), int((short+pageBytes-1)/pageBytes))
	missing = missing[free:]
	won := uint64(0) // bytes that come back from victims and that no key has
	for h := range c.victims(inst) {
		p := c.pageOf(h)
		victim := c.namespaces[p.Namespace]
		if victim.dead {
			continue
		}
		uses := c.uses.Estimate(policyPage(p.Namespace, p.Group, (*wire.Key)(&p.Key)))
		for len(missing) > 0 && c.estimate(inst, q, missing[0]) < uses {
			if refused == nil {
				refused = make([]bool, len(q.Keys))
			}
			refused[missing[0]] = true
			c.counters.admissionRejections++
			missing = missing[1:]
		}
		if len(missing) == 0 {
			break
		}
		won += victim.geometry.pageBytes
		enough := min(uint64(len(missing)), won/pageBytes)
		won -= enough * pageBytes
		missing = missing[enough:]
	}
	return refused
}

func (c *Cache) estimate(inst *instance, q Reserve, at int) int {
	return c.uses.Estimate(policyPage(inst.namespace.handle, q.Group, &q.Keys[at]))
}

// missingKeys lists the positions of keys without a page. A save that no query asked for is a first use.
func (c *Cache) missingKeys(inst *instance, q Reserve) (missing []int) {
	resident := c.index.Count(index.Sealed)
	for i := range q.Keys {
		if _, _, ok := c.index.Find(inst.namespace.handle, q.Group, (*index.Key)(&q.Keys[i])); ok {
			continue
		}
		if c.estimate(inst, q, i) == 0 {
			c.uses.Use(policyPage(inst.namespace.handle, q.Group, &q.Keys[i]), resident)
		}
		missing = append(missing, i)
	}
	return missing
}

// deadBytes is what the pages of dead namespaces have: room that costs nothing of use.
func (c *Cache) deadBytes() (bytes uint64) {
	if c.deadPages == 0 {
		return 0
	}
	for _, ns := range c.namespaces {
		if ns.dead && !ns.private {
			bytes += ns.sealed * ns.geometry.pageBytes
		}
	}
	return bytes
}
