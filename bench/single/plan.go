package single

import (
	"fmt"
	"slices"

	"orbitkv/bench/record"
)

// patterns are the bursts of the concurrent workload: one prompt for all requests, or one each with the lengths in turn.
var patterns = []string{record.Shared, record.Mixed}

// turn is one start of one backend: what it measures is done in order by one engine.
type turn struct {
	backend string
	pass    int
	cells   []record.Place
}

// name names a turn in the rows that are about no cell of it.
func (t *turn) name() string { return turnName(t.backend, t.pass) }

func turnName(backend string, pass int) string { return fmt.Sprintf("%s/p%d", backend, pass) }

// lastly puts the turns whose backends were refused before behind the others: a backend that cannot start must not take the time of those that can.
func lastly(turns []turn, refused map[string]bool) []turn {
	slices.SortStableFunc(turns, func(a, b turn) int {
		switch {
		case refused[a.name()] == refused[b.name()]:
			return 0
		case refused[a.name()]:
			return 1
		}
		return -1
	})
	return turns
}

// plan lists the turns of a run in order, with every cell of each.
func plan(a *Ask) []turn {
	var turns []turn
	if a.Order != Reversed {
		for _, backend := range a.Backends {
			turns = append(turns, turn{backend, 0, cells(a, backend, 0, false)})
		}
	}
	if a.Order != Forward {
		pass := 0
		if a.Order == Pairs {
			pass = 1
		}
		for _, backend := range slices.Backward(a.Backends) {
			turns = append(turns, turn{backend, pass, cells(a, backend, pass, true)})
		}
	}
	return turns
}

// cells lists the cells of one turn in order.
func cells(a *Ask, backend string, pass int, reversed bool) []record.Place {
	lengths := slices.Clone(a.Lengths)
	concurrencies := slices.Clone(a.Concurrencies)
	if reversed {
		slices.Reverse(lengths)
		slices.Reverse(concurrencies)
	}
	var all []record.Place
	add := func(p record.Place, name string, args ...any) {
		p.Backend, p.Pass, p.Workload = backend, pass, a.Workload
		p.Cell = fmt.Sprintf("%s/p%d/%s/", backend, pass, a.Workload) + fmt.Sprintf(name, args...)
		all = append(all, p)
	}
	switch a.Workload {
	case record.WorkloadLatency:
		for _, length := range lengths {
			for prefix := range a.Repeats {
				add(record.Place{Concurrency: 1, Length: length, Prefix: prefix}, "%d/%d", length, prefix)
			}
		}
	case record.WorkloadPartial:
		for _, length := range lengths {
			for _, percent := range a.PartialPercents {
				for prefix := range a.Repeats {
					add(record.Place{Variant: fmt.Sprint(percent), Concurrency: 1, Length: length, Prefix: prefix}, "%d/%d/%d", length, percent, prefix)
				}
			}
		}
	case record.WorkloadConcurrent:
		for _, pattern := range patterns {
			for _, c := range concurrencies {
				add(record.Place{Variant: pattern, Concurrency: c, Prefix: -1}, "%s/%d", pattern, c)
			}
		}
	case record.WorkloadSustained:
		for _, c := range concurrencies {
			add(record.Place{Concurrency: c, Prefix: -1}, "%d", c)
		}
	}
	return all
}

// missing returns the cells of a turn that are not done.
func (t *turn) missing(done map[string]bool) []record.Place {
	return slices.DeleteFunc(slices.Clone(t.cells), func(p record.Place) bool { return done[p.Cell] })
}
