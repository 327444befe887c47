package report

import (
	"fmt"
	"strings"

	"orbitkv/bench/record"
)

// busyShown bounds the turns that are written out.
const busyShown = 4

// busy says beside which turns more wanted to run than the machine has processors.
func busy(m *record.Manifest) []string {
	var turns []string
	processors := 0
	for i := range m.Launches {
		l := &m.Launches[i]
		if l.Part != record.PartEngine || l.Busy.Processors == 0 || max(l.Busy.Before, l.Busy.After) <= float64(l.Busy.Processors) {
			continue
		}
		processors = l.Busy.Processors
		load := fmt.Sprintf("%.1f before", l.Busy.Before)
		if l.Exit != "" {
			load += fmt.Sprintf(" and %.1f after", l.Busy.After)
		}
		name := l.Backend
		if l.Control {
			name = "the control"
		}
		turns = append(turns, fmt.Sprintf("%s %s, pass %d, attempt %d", load, name, l.Pass, l.Attempt))
	}
	if len(turns) == 0 {
		return nil
	}
	if more := len(turns) - busyShown; more > 0 {
		turns = append(turns[:busyShown:busyShown], fmt.Sprintf("and %d more", more))
	}
	return []string{fmt.Sprintf("the load average was above the %d processors of the machine: %s. The run's own work counts in it, and what else ran took time from what was measured",
		processors, strings.Join(turns, "; "))}
}
