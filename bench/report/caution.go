package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// By how much cold medians of two backends may differ before it is said: storing a prompt costs something, and few samples show less.
const (
	coldShare    = 0.10 // of the smaller median, where the interval of the difference excludes 0
	coldShareFew = 0.25 // of the smaller median, where there is no interval
	coldShown    = 3    // differences of two backends that are written out
)

// cautions lists what makes the figures say less than they seem to.
func cautions(s *Summary) []string {
	return slices.Concat(coldCautions(s.Paired), fewCautions(s), tierCautions(s))
}

// coldApart says whether two backends took another time for prompts that nobody had seen.
func (p *Pairing) coldApart() bool {
	a, b := p.A.TTFT.Median, p.B.TTFT.Median
	if p.Phase != record.Cold || a <= 0 || b <= 0 {
		return false
	}
	apart := max(a, b)/min(a, b) - 1
	if p.Interval == nil {
		return apart > coldShareFew
	}
	return apart > coldShare && (p.Interval.Low > 0 || p.Interval.High < 0)
}

// coldCautions has one sentence for every two backends whose cold rows are apart.
func coldCautions(pairings []Pairing) []string {
	type pair struct{ a, b string }
	var order []pair
	apart := map[pair][]string{}
	for i := range pairings {
		p := &pairings[i]
		if !p.coldApart() {
			continue
		}
		both := pair{labelled(p.A.Run, p.A.Backend), labelled(p.B.Run, p.B.Backend)}
		if apart[both] == nil {
			order = append(order, both)
		}
		times := max(p.A.TTFT.Median, p.B.TTFT.Median) / min(p.A.TTFT.Median, p.B.TTFT.Median)
		where := fmt.Sprintf("%d tokens", p.Length)
		if p.Variant != "" {
			where += ", " + p.state()
		}
		apart[both] = append(apart[both], fmt.Sprintf("%.2f and %.2f ms at %s (%.2f times; %s)", p.A.TTFT.Median, p.B.TTFT.Median, where, times, p.words()))
	}
	var all []string
	for _, both := range order {
		figures := apart[both]
		if more := len(figures) - coldShown; more > 0 {
			figures = append(figures[:coldShown:coldShown], fmt.Sprintf("and %d more", more))
		}
		all = append(all, fmt.Sprintf("cold TTFT of %s and %s is apart although nothing is reused: %s. The machine was not quiet, or one of them slows what the engine computes: "+
			"trust no other difference of the two further", both.a, both.b, strings.Join(figures, "; ")))
	}
	return all
}

// words are a difference with its interval and its pairs.
func (p *Pairing) words() string {
	pairs := fmt.Sprintf("%d pairs", p.N)
	switch {
	case !p.Paired:
		pairs = fmt.Sprintf("%d and %d samples, unpaired", p.A.TTFT.N, p.B.TTFT.N)
	case p.N == 1:
		pairs = "1 pair"
	}
	if p.Interval == nil {
		return pairs + ", too few for an interval"
	}
	return fmt.Sprintf("median difference %s - %s %+.2f ms [%.2f, %.2f], %s", labelled(p.B.Run, p.B.Backend), labelled(p.A.Run, p.A.Backend), p.Difference, p.Interval.Low, p.Interval.High, pairs)
}

func (p *Pairing) state() string { return StateWords(p.Workload, p.Variant, p.Phase) }

// fewCautions says of how few samples medians are. Of serial requests those that are what their state is about count.
func fewCautions(s *Summary) []string {
	medians, few, fewest := 0, 0, math.MaxInt
	count := func(n int) {
		if n == 0 {
			return
		}
		medians++
		if n < stat.IntervalMin {
			few, fewest = few+1, min(fewest, n)
		}
	}
	for i := range s.Groups {
		for _, r := range s.Groups[i].Rows {
			if slices.Contains(s.Groups[i].Expected, r.Source) && (s.Workload == latency || s.Workload == partial) {
				count(r.N)
			}
		}
	}
	for i := range s.Windows {
		count(s.Windows[i].TTFT.N)
	}
	if few == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d of %d medians of TTFT are of fewer than %d samples, the fewest of %d: no interval can be given for them, and what they differ by may be chance",
		few, medians, stat.IntervalMin, fewest)}
}

// outcomes say of each backend what its restores came to beside native, which computes again: at the longest length that both have, and of a partial
// prompt where most was seen before. What comes from the SSD has a sentence of its own.
func outcomes(s *Summary) []string {
	var all []string
	for _, c := range s.Coverage {
		for _, phases := range [][]record.Phase{{record.AfterPressure, record.Partial}, {record.AfterHostEviction}} {
			if longest := longestWithNative(s.Paired, c.Backend, phases); longest != nil {
				all = append(all, longest.outcome(s.Paired))
			}
		}
	}
	return all
}

// longestWithNative returns the last pairing of a backend with native, in one of some phases, that has the longest prompts; nil without one.
func longestWithNative(pairings []Pairing, backend string, phases []record.Phase) (longest *Pairing) {
	for i := range pairings {
		p := &pairings[i]
		ours := p.A.Backend == native && p.B.Backend == backend || p.B.Backend == native && p.A.Backend == backend
		if ours && p.N > 0 && slices.Contains(phases, p.Phase) && (longest == nil || p.Length >= longest.Length) {
			longest = p
		}
	}
	return longest
}

// outcome is the sentence of one pairing with native. It takes back what the cold rows of the same two do not allow to say.
func (p *Pairing) outcome(pairings []Pairing) string {
	own, other := &p.B, &p.A
	if own.Backend == native {
		own, other = other, own
	}
	text := fmt.Sprintf("%s: TTFT %s is %.2f ms at %d tokens, %.2f times the %.2f ms of native, which computes again (medians; %s)",
		own.Backend, p.state(), own.TTFT.Median, p.Length, own.TTFT.Median/other.TTFT.Median, other.TTFT.Median, p.words())
	if p.Interval != nil && p.Interval.Low <= 0 && p.Interval.High >= 0 {
		text += "; the interval holds 0, so no difference is shown"
	}
	if n := left(own.LeftOut) + own.Failed; n > 0 {
		text += fmt.Sprintf("; %d of its requests were no such restore", n)
	}
	if slices.ContainsFunc(pairings, func(cold Pairing) bool {
		return cold.A.Backend == p.A.Backend && cold.B.Backend == p.B.Backend && cold.Length == p.Length && cold.Variant == p.Variant && cold.coldApart()
	}) {
		text += "; the cold rows of the two are apart, so this is not the cache's doing alone"
	}
	return text
}

func left(out []SourceCount) int {
	n := 0
	for _, s := range out {
		n += s.N
	}
	return n
}
