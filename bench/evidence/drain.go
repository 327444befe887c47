package evidence

import (
	"context"
	"maps"
	"time"

	"orbitkv/bench/record"
)

// Drain waits until everything that requests borrowed was given back in 3 looks in a row, for at most DrainLimit, and says whether it was. The
// caller fills in the place. A check that the end of ctx breaks off is no check. What a failed drain still holds stands in Why, and every gauge that
// was looked at in Values.
func (s *Scraper) Drain(ctx context.Context) record.Drain {
	begun := time.Now()
	drain := record.Drain{Checked: s.service}
	look, found, err := s.quiet(ctx, 0, DrainLimit, false, s.borrowed)
	drain.WaitMs = float64(time.Since(begun)) / float64(time.Millisecond)
	drain.Values = s.borrowable(look)
	switch {
	case err != nil && ctx.Err() != nil:
		drain.Checked, drain.Why = false, "it was broken off"
		if len(found) > 0 {
			drain.Why += ", and until then not given back: " + list(found)
		}
	case err != nil:
		drain.Checked, drain.Why = false, "it could not be looked at: "+err.Error()
	case len(found) > 0:
		drain.Why = "not given back within " + DrainLimit.String() + ": " + list(found)
	case !s.service:
		drain.Drained, drain.Why = true, "the backend tells nothing of what it holds; the engine runs and queues nothing"
	default:
		drain.Drained = true
	}
	return drain
}

// borrowed names what is not given back. A gauge that nobody serves is not zero: it is named too.
func (s *Scraper) borrowed(look Snapshot) []string {
	found := look.above(s.watched, busy, held)
	for _, w := range s.watched {
		if _, known := look.Values[w.key()]; !known && (w.kind == busy || w.kind == held) {
			found = append(found, w.key()+" is not served")
		}
	}
	return found
}

// borrowable returns every value that borrowed looks at.
func (s *Scraper) borrowable(look Snapshot) map[string]float64 {
	values := map[string]float64{}
	for _, w := range s.watched {
		if value, known := look.Values[w.key()]; known && (w.kind == busy || w.kind == held) {
			values[w.key()] = value
		}
	}
	maps.Copy(values, look.inFlight())
	return values
}
