package cache

import (
	"time"

	"orbitkv/internal/wire"
)

// Bounds of hints. Those that read no further count until their reads have ended.
const (
	WarmSessionMax = 16              // hints of one session
	WarmGlobalMax  = 128             // of all sessions
	WarmExpiry     = 5 * time.Second // after which a hint starts no further read
	warmShare      = 4               // hints may charge one in so many bytes of each query budget
)

// hintOutcomes is one more than the largest wire.Hint.
const hintOutcomes = wire.HintNoTier + 1

// Warm is a hint: a request waits in an engine's queue and will ask for this prefix of group 0. Keys are read during the call only.
type Warm struct {
	Ticket    uint64 // increasing within the session
	Namespace uint32
	Instance  string // ignored for a private namespace, whose handle says it
	Request   string
	Keys      []wire.Key
}

// Warmed is what became of a hint. Pages is how many an accepted one brings.
type Warmed struct {
	Outcome wire.Hint
	Pages   uint32
}

// WarmPrefix reads the pages of a prefix that only the tier has, as far as no query is in the way. It never waits: a hint is accepted or skipped whole. It leases
// nothing and touches no page that is resident. Where the ranks of an instance schedule it together, one of them hints for all.
//
// StatusUnknown and StatusStale: as for SubmitQuery, and StatusStale for a ticket that is not newer than the session's last. StatusTooLarge: more than
// OperationKeysMax keys. StatusConflict: a hint without a request.
func (c *Cache) WarmPrefix(id SessionID, w Warm) (Warmed, error) {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return Warmed{}, err
	}
	inst, err := c.target(s, w.Instance, w.Namespace)
	if err != nil {
		return Warmed{}, err
	}
	switch {
	case w.Request == "":
		return Warmed{}, wire.Errorf(wire.StatusConflict, "hint %d names no request; send the id that its query will have", w.Ticket)
	case w.Ticket <= s.hinted:
		return Warmed{}, wire.Errorf(wire.StatusStale, "hint %d is not newer than %d; take a larger ticket for each hint of a session", w.Ticket, s.hinted)
	case len(w.Keys) > wire.OperationKeysMax:
		return Warmed{}, wire.Errorf(wire.StatusTooLarge, "a hint has %d keys, the most is %d; hint at a shorter prefix", len(w.Keys), wire.OperationKeysMax)
	}
	s.hinted = w.Ticket
	c.expireHints()
	outcome, keys := c.admitHint(s, inst, w.Keys)
	c.counters.hints[outcome]++
	if outcome == wire.HintAccepted {
		c.startHint(s, inst, w, keys)
	}
	return Warmed{outcome, uint32(len(keys))}, nil
}

// CancelWarm ends a hint. One that ended meanwhile is a harmless race.
func (c *Cache) CancelWarm(id SessionID, ticket uint64) error {
	c.enter()
	defer c.leave()
	s, err := c.open(id)
	if err != nil {
		return err
	}
	c.stopHints(hintCancelled, func(h *hint) bool { return h.session == s && h.ticket == ticket })
	return nil
}

// admitHint decides on a hint, and returns the keys of the pages that an accepted one brings.
func (c *Cache) admitHint(s *session, inst *instance, keys []wire.Key) (outcome wire.Hint, lacking []wire.Key) {
	switch {
	case c.config.Tier == nil || inst.private:
		return wire.HintNoTier, nil
	case c.foreground() > 0:
		return wire.HintForeground, nil
	case s.hints >= WarmSessionMax || len(c.hints) >= WarmGlobalMax || c.tableFull(s):
		return wire.HintOperations, nil
	}
	pageBytes := inst.geometry.pageBytes
	globalMax, instanceMax := c.budget.warmMax()
	most := int(min(globalMax, instanceMax) / pageBytes)
	if uint64(len(keys)) > c.budget.demandMax()/pageBytes { // no query can lease as much
		return wire.HintOversized, nil
	}
	lacking = c.lacking(inst, keys, most+1)
	bytes := uint64(len(lacking)) * pageBytes
	switch {
	case len(lacking) == 0:
		return wire.HintComplete, nil
	case len(lacking) > most:
		return wire.HintOversized, nil
	case c.budget.byPhase[phaseWarming]+bytes > globalMax || inst.charged[phaseWarming]+bytes > instanceMax,
		!c.budget.fitsGlobal(bytes), !c.budget.fitsInstance(inst, bytes):
		return wire.HintBytes, nil
	case c.config.Tier.ReadRoom() <= 0:
		return wire.HintQueue, nil
	}
	return wire.HintAccepted, lacking
}

// foreground is the bytes that queries own and use or wait for: while there are any, no hint is accepted. What is stalled or drains is not in it.
func (c *Cache) foreground() uint64 {
	return c.budget.byPhase[phasePreparing] + c.budget.byPhase[phaseReady] + c.budget.byPhase[phaseRestoring]
}

// warmMax is the bytes that all hints, and those of one instance, may charge.
func (b *budget) warmMax() (global, instance uint64) {
	return b.globalMax / warmShare, b.instanceMax / warmShare
}

// lacking lists the keys of the pages that are missing in the pool, or on their way into it, of the prefix that a query could have. It stops at most keys. It
// looks and moves nothing (I7).
func (c *Cache) lacking(inst *instance, keys []wire.Key, most int) (lacking []wire.Key) {
	for i := 0; i < len(keys) && len(lacking) < most; i++ {
		resident, ok := c.reachable(inst, inst.namespace, 0, &keys[i])
		if !ok {
			break
		}
		if !resident {
			lacking = append(lacking, keys[i])
		}
	}
	return lacking
}

// HintStatus is one hint, for people and for the status page.
type HintStatus struct {
	Instance  string  `json:"instance"`
	Session   uint64  `json:"session"`
	State     string  `json:"state"`
	Age       float64 `json:"age_seconds"`
	Unread    int     `json:"unread_pages"`  // that it will read
	Reading   int     `json:"reading_pages"` // that it waits for
	HeldPages int     `json:"held_pages"`    // that came
}

func (c *Cache) hintStatuses() []HintStatus {
	statuses := []HintStatus{}
	for _, h := range c.hints {
		statuses = append(statuses, HintStatus{
			Instance: h.instance.id, Session: uint64(h.session.id), State: hintMachine.Names[h.state],
			Age: c.now.Sub(h.since).Truncate(time.Millisecond).Seconds(), Unread: len(h.keys) - h.next, Reading: h.reads, HeldPages: len(h.held),
		})
	}
	return statuses
}
