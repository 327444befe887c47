package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// span is the windows of one phase of one cell.
type span struct {
	cell  string
	phase record.Phase
}

// windows sums up the windows that count, a phase of a cell each.
func windows(run *record.Run, samples []*record.Sample, verdicts map[string]*record.Attribution, seed uint64) []Window {
	rows := map[span][]*record.Window{}
	for i := range run.Windows {
		if w := &run.Windows[i]; run.Final(w.Place) {
			rows[span{w.Cell, w.Phase}] = append(rows[span{w.Cell, w.Phase}], w)
		}
	}
	members := map[span][]*record.Sample{}
	for _, s := range samples {
		members[span{s.Cell, s.Phase}] = append(members[span{s.Cell, s.Phase}], s)
	}
	objectives := Objectives{run.Manifest.Options.SLOTTFTms, run.Manifest.Options.SLOTPOTms}
	var all []Window
	for at, parts := range rows {
		slices.SortStableFunc(parts, func(a, b *record.Window) int { return a.Started.Compare(b.Started) })
		w := sum(parts)
		w.measure(withoutFailed(members[at]), objectives, verdicts, seed)
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Window) int {
		return cmp.Or(compareKeys(a.Key, b.Key, run.Manifest.Options.Backends), cmp.Compare(a.Pass, b.Pass), cmp.Compare(a.Cell, b.Cell))
	})
	return all
}

// sum adds up the spans of one phase.
func sum(parts []*record.Window) Window {
	first, last := parts[0], parts[len(parts)-1]
	w := Window{
		Key:  Key{first.Backend, first.Workload, first.Variant, first.Phase, first.Length, first.Concurrency},
		Pass: first.Pass, Cell: first.Cell, Spans: len(parts),
	}
	peaks := map[string]float64{}
	var tiers []*record.Tiers
	for _, part := range parts {
		tiers = append(tiers, part.Tiers)
		w.Requests += part.Requests
		w.Failed += part.Failed
		w.AdmitSeconds += part.AdmitSeconds
		w.DrainSeconds += part.DrainSeconds
		w.WallSeconds += part.WallSeconds
		w.PeakSamples += part.PeakSamples
		if !slices.Contains(w.Stops, part.Stop) {
			w.Stops = append(w.Stops, part.Stop)
		}
		for name, peak := range part.Peak {
			if known, ok := peaks[name]; !ok || peak > known {
				peaks[name] = peak
			}
		}
	}
	w.Gauges, w.Tiers = []Gauge{}, tiersOf(tiers)
	for _, name := range gaugesOf(first.Before, last.After, peaks) {
		w.Gauges = append(w.Gauges, Gauge{name, value(first.Before, name), value(last.After, name), value(peaks, name)})
	}
	return w
}

// gaugesOf returns the names of everything that was seen and is no counter, in order: a backend without a monitor has no peak of anything. Counters and the
// parts of histograms are told by Prometheus' rules for their names.
func gaugesOf(looks ...map[string]float64) []string {
	names := map[string]bool{}
	for _, look := range looks {
		for name := range look {
			metric, _, _ := strings.Cut(name, "{")
			if !slices.ContainsFunc([]string{"_total", "_bucket", "_count"}, func(end string) bool { return strings.HasSuffix(metric, end) }) {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func value(values map[string]float64, name string) *float64 {
	if v, ok := values[name]; ok {
		return &v
	}
	return nil
}

// measure adds what the samples of a window say.
func (w *Window) measure(whole []*record.Sample, o Objectives, verdicts map[string]*record.Attribution, seed uint64) {
	tokens, good := 0, 0
	for _, s := range whole {
		tokens += s.OutputTokens
		if o.Set() && o.met(s) {
			good++
		}
	}
	if o.Set() {
		w.Good = &good
	}
	if w.WallSeconds > 0 {
		w.RequestsPerS = float64(len(whole)) / w.WallSeconds
		w.OutputTokensPerS = float64(tokens) / w.WallSeconds
		if o.Set() {
			goodput := float64(good) / w.WallSeconds
			w.GoodputPerS = &goodput
		}
	}
	ttft, tpot, itl := ttfts(whole), tpots(whole), gaps(whole)
	w.Lengths, w.Sources, w.Outputs = lengthCounts(whole), sources(whole), outputs(whole, verdicts)
	w.TTFT, w.TTFTp99 = stat.OfMedian(ttft, seed), stat.Rare(ttft, 0.99)
	w.TPOT, w.TPOTp99 = stat.OfMedian(tpot, seed), stat.Rare(tpot, 0.99)
	if len(itl) > 0 {
		w.ITL, w.ITLp99 = stat.Estimate{N: len(itl), Median: stat.Median(itl)}, stat.Rare(itl, 0.99)
	}
}

// gaps are those between the pieces of text of all samples.
func gaps(samples []*record.Sample) []float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, s.GapsMs()...)
	}
	return all
}

// lengthCounts counts samples by the lengths of their prompts, the shortest first.
func lengthCounts(samples []*record.Sample) []LengthCount {
	count := map[int]int{}
	for _, s := range samples {
		count[lengthOf(s)]++
	}
	all := []LengthCount{}
	for _, length := range slices.Sorted(maps.Keys(count)) {
		all = append(all, LengthCount{length, count[length]})
	}
	return all
}

// Burst says whether all requests of the window were started at once: admission then took no time, and the drain is all of it.
func (w *Window) Burst() bool { return w.Workload == concurrent }

// LengthsNote says why figures of windows that mix lengths do not compare across concurrencies; it is empty where they do.
func LengthsNote(windows []Window) string {
	concurrencies := map[int]bool{}
	for i := range windows {
		if windows[i].Variant == record.Mixed {
			concurrencies[windows[i].Concurrency] = true
		}
	}
	if len(concurrencies) < 2 {
		return ""
	}
	return "The pattern mixed takes the lengths in turn from the first on, so its windows hold other shares of short and long prompts at each concurrency: " +
		"their rates and latencies compare between backends at one concurrency, not from one concurrency to the next"
}

// met says whether a whole answer kept the objectives that are set. An answer without a token after its first text has no time per output token to keep; one
// of which that is not known has kept none.
func (o Objectives) met(s *record.Sample) bool {
	tpot, ok := s.TPOTms()
	if !ok && s.FirstTextTokens == 0 {
		tpot = math.Inf(1)
	}
	return (o.TTFTms == 0 || s.TTFTms <= o.TTFTms) && (o.TPOTms == 0 || tpot <= o.TPOTms)
}
