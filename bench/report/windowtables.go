package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// windowTable is the rates and the latencies of bursts and of sustained windows.
func (t *text) windowTable(s *Summary) {
	if len(s.Windows) == 0 {
		return
	}
	var rates, latencies [][]string
	for i := range s.Windows {
		w := &s.Windows[i]
		goodput := none
		if w.GoodputPerS != nil {
			goodput = fmt.Sprintf("%9.2f", *w.GoodputPerS)
		}
		place := []string{fmt.Sprint(w.Concurrency), w.state(), w.Backend, fmt.Sprint(w.Pass)}
		rates = append(rates, slices.Concat(place, []string{
			fmt.Sprint(w.Requests), w.prompts(), fmt.Sprint(w.Failed), strings.Join(w.Stops, ", "), fmt.Sprintf("%7.2f", w.WallSeconds), w.drain(),
			fmt.Sprintf("%7.2f", w.RequestsPerS), fmt.Sprintf("%7.1f", w.OutputTokensPerS), goodput,
		}))
		latencies = append(latencies, slices.Concat(place, []string{
			fmt.Sprint(w.TTFT.N), median(w.TTFT), interval(w.TTFT.Interval), msOr(w.TTFTp99), median(w.TPOT), msOr(w.TPOTp99), median(w.ITL), msOr(w.ITLp99), listed(w.Sources),
		}))
	}
	t.title("Windows: rates over the wall time, drain included")
	t.table([]string{"at once", "state", "backend", "pass", "n", "prompts of tokens", "failed", "stopped by", " wall s", "drain s", "  req/s", "  tok/s", "goodput/s"}, rates)
	if s.Objectives.Set() {
		t.line("  goodput counts answers with %s", s.Objectives.Words())
	} else {
		t.line("  no goodput: no objective was set")
	}
	if note := LengthsNote(s.Windows); note != "" {
		t.line("  ! %s", note)
	}
	t.title("Windows: latencies of all whole answers, whatever their source (ms)")
	t.table([]string{"at once", "state", "backend", "pass", "n", " TTFT p50", "95 % interval", " TTFT p99", " TPOT p50", " TPOT p99", " ITL p50", " ITL p99", "sources"}, latencies)
}

// Words says what an answer must keep to count; empty where nothing is set.
func (o Objectives) Words() string {
	var all []string
	if o.TTFTms > 0 {
		all = append(all, fmt.Sprintf("a TTFT of at most %g ms", o.TTFTms))
	}
	if o.TPOTms > 0 {
		all = append(all, fmt.Sprintf("at most %g ms per output token", o.TPOTms))
	}
	return strings.Join(all, " and ")
}

// prompts says how many prompts of which lengths a window holds.
func (w *Window) prompts() string {
	var all []string
	for _, l := range w.Lengths {
		all = append(all, fmt.Sprintf("%d of %d", l.N, l.Length))
	}
	return strings.Join(all, ", ")
}

// drain is a window's; a burst has none of its own.
func (w *Window) drain() string {
	if w.Burst() {
		return fmt.Sprintf("%7s", none)
	}
	return fmt.Sprintf("%7.2f", w.DrainSeconds)
}

// gauges lists what was watched around windows and was not always zero.
func (t *text) gauges(s *Summary) {
	var rows [][]string
	quiet := 0
	for i := range s.Windows {
		w := &s.Windows[i]
		for _, g := range w.Gauges {
			if g.zero() {
				quiet++
				continue
			}
			rows = append(rows, []string{fmt.Sprint(w.Concurrency), w.state(), w.Backend, fmt.Sprint(w.Pass), g.Name, count(g.Start), count(g.End), count(g.Peak)})
		}
	}
	if len(rows) == 0 {
		return
	}
	t.title("Watched around the windows (the peak is the largest seen, a lower bound)")
	t.table([]string{"at once", "state", "backend", "pass", "gauge", "start", "end", "peak"}, rows)
	if quiet > 0 {
		t.line("  %d more were zero throughout", quiet)
	}
}

func (g Gauge) zero() bool {
	for _, v := range []*float64{g.Start, g.End, g.Peak} {
		if v != nil && *v != 0 {
			return false
		}
	}
	return true
}

func count(value *float64) string {
	switch {
	case value == nil:
		return "not read"
	case *value == math.Trunc(*value):
		return fmt.Sprintf("%.0f", *value)
	}
	return fmt.Sprintf("%g", *value)
}
