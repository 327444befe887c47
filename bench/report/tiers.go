package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"orbitkv/bench/record"
)

// ownTiers lists what the tiers did for each of the samples that have counters of their own: those of a burst stand in each of its samples, and with its window.
func ownTiers(samples []*record.Sample) []*record.Tiers {
	var all []*record.Tiers
	for _, s := range samples {
		if !s.Shared {
			all = append(all, s.Tiers)
		}
	}
	return all
}

// tiersOf adds up what the tiers did; nil where nobody told.
func tiersOf(parts []*record.Tiers) *Tiers {
	var sum *Tiers
	reads := map[float64]float64{} // pages by the bound of their time
	for _, part := range parts {
		if part == nil {
			continue
		}
		if sum == nil {
			sum = &Tiers{}
		}
		sum.AskedPages += part.AskedPages
		sum.RAMPages += part.RAMPages
		sum.RemotePages += part.RemotePages
		sum.SSDPages += part.SSDPages
		sum.MissPages += part.MissPages
		sum.SumSSDReadBytes += part.SSDReadBytes
		sum.SumSSDWriteBytes += part.SSDWriteBytes
		if part.SSDReadBytes > 0 && part.RestoredBytes == 0 {
			sum.SSDReadsWithoutRestore++
		}
		for _, b := range part.SSDReads {
			reads[cmp.Or(b.UpToMs, math.Inf(1))] += b.N
		}
	}
	if sum != nil {
		sum.SSDPrefetchP50 = medianBound(reads)
	}
	return sum
}

// medianBound returns the bound of the bucket in which the median lies; nil without observations, and where the bucket has no bound.
func medianBound(counts map[float64]float64) *float64 {
	total := 0.0
	var bounds []float64
	for bound, n := range counts {
		total += n
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	below := 0.0
	for _, bound := range bounds {
		if below += counts[bound]; 2*below >= total && !math.IsInf(bound, 1) {
			return &bound
		}
	}
	return nil
}

// UsesSSD says whether the SSD tier had any part in what was counted.
func (t *Tiers) UsesSSD() bool {
	return t != nil && (t.SSDPages > 0 || t.SumSSDReadBytes > 0 || t.SumSSDWriteBytes > 0)
}

// Sums says whether the tiers and the misses are the pages that were asked for.
func (t *Tiers) Sums() bool { return t.RAMPages+t.RemotePages+t.SSDPages+t.MissPages == t.AskedPages }

// Tiered is one state with what the tiers of OrbitKV's Manager did in it: a group of requests that were sent alone, or a window.
type Tiered struct {
	Key
	Pass  int // of a window; -1 where passes are taken together
	Tiers *Tiers
}

// Tiered lists the states whose tiers are told, serial ones first. It is empty where no SSD tier had a part in any: memory alone is told by the sources.
func (s *Summary) Tiered() []Tiered {
	var all []Tiered
	uses := false
	add := func(k Key, pass int, t *Tiers) {
		if t != nil {
			all, uses = append(all, Tiered{k, pass, t}), uses || t.UsesSSD()
		}
	}
	for i := range s.Groups {
		add(s.Groups[i].Key, -1, s.Groups[i].Tiers)
	}
	for i := range s.Windows {
		add(s.Windows[i].Key, s.Windows[i].Pass, s.Windows[i].Tiers)
	}
	if !uses {
		return nil
	}
	return all
}

// tierTable says where look-ups found the pages that they asked for, and what the SSD did.
func (t *text) tierTable(s *Summary) {
	var rows [][]string
	for _, each := range s.Tiered() {
		length, atOnce, pass, wrong := none, none, none, ""
		if each.Length > 0 {
			length = fmt.Sprintf("%6d", each.Length)
		}
		if each.Pass >= 0 {
			atOnce, pass = fmt.Sprint(each.Concurrency), fmt.Sprint(each.Pass)
		}
		if !each.Tiers.Sums() {
			wrong = " !"
		}
		u := each.Tiers
		rows = append(rows, []string{
			length, atOnce, each.state(), each.Backend, pass, pages(u.AskedPages) + wrong, pages(u.RAMPages), pages(u.RemotePages), pages(u.SSDPages), pages(u.MissPages),
			size(u.SumSSDReadBytes), size(u.SumSSDWriteBytes), msOr(u.SSDPrefetchP50), pages(float64(u.SSDReadsWithoutRestore)),
		})
	}
	if len(rows) == 0 {
		return
	}
	t.title("Pages that look-ups asked OrbitKV for, by where they were found (decisions, not transfers), and what its SSD did")
	t.table([]string{
		"length", "at once", "state", "backend", "pass", "asked", "ram", "remote", "ssd", "miss", "SSD read", "SSD written", "SSD prefetch p50 (ms, at most)", "reads without restore",
	}, rows)
}

func pages(n float64) string {
	if n == 0 {
		return none
	}
	return fmt.Sprintf("%.0f", n)
}

// tierCautions says where the tiers do not sum to what was asked for.
func tierCautions(s *Summary) []string {
	n := 0
	all := s.Tiered()
	for _, each := range all {
		if !each.Tiers.Sums() {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("in %d of %d states the tiers of OrbitKV's Manager are not as many pages as were asked for: it counts wrongly, and no figure by tier can be trusted", n, len(all))}
}
