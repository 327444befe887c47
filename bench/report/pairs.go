package report

import (
	"slices"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// side is the samples of one backend of one run.
type side struct {
	run     string
	backend string
	samples []*record.Sample
}

// state is what the two sides of a difference have in common.
type state struct {
	workload, variant string
	phase             record.Phase
	length            int
	concurrency       int
}

// partner is one prompt of a state.
type partner struct{ pass, prefix int }

func of(samples []*record.Sample, backend string) []*record.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s *record.Sample) bool { return s.Backend != backend })
}

// pairedBackends compares every two backends of a run, the earlier named as A.
func pairedBackends(samples []*record.Sample, backends []string, seed uint64) []Pairing {
	var all []Pairing
	for i, a := range backends {
		for _, b := range backends[i+1:] {
			all = append(all, pairings(side{"", a, of(samples, a)}, side{"", b, of(samples, b)}, true, seed)...)
		}
	}
	return all
}

// counted says whether a sample is what its phase is about, so that a difference may take it. A hit in device memory with a small restore is still a
// hit: vLLM's connectors restore the tail that the device never shares.
func counted(s *record.Sample) bool {
	if s.Phase == record.HBMHit && s.Source == record.FromBoth {
		return true
	}
	return slices.Contains(expected(KeyOf(s)), s.Source)
}

// byState returns the samples of prompts that are one cell each.
func byState(samples []*record.Sample) map[state][]*record.Sample {
	all := map[state][]*record.Sample{}
	for _, s := range samples {
		if s.Workload == latency || s.Workload == partial {
			at := state{s.Workload, s.Variant, s.Phase, s.Length, s.Concurrency}
			all[at] = append(all[at], s)
		}
	}
	return all
}

// pairings compares two backends in every state that both have.
func pairings(a, b side, paired bool, seed uint64) []Pairing {
	left, right := byState(a.samples), byState(b.samples)
	var all []Pairing
	for at := range left {
		if len(right[at]) == 0 {
			continue
		}
		p := Pairing{Workload: at.workload, Variant: at.variant, Phase: at.phase, Length: at.length, Concurrency: at.concurrency, Paired: paired}
		x, y := split(&p.A, a, left[at]), split(&p.B, b, right[at])
		if paired {
			x, y, p.Without = match(x, y)
			p.N = len(x)
			e := stat.OfPairs(ttfts(x), ttfts(y), seed)
			p.Difference, p.Interval = e.Median, e.Interval
		} else {
			d := stat.OfDifference(ttfts(x), ttfts(y), seed)
			p.Difference, p.Interval = d.Median, d.Interval
		}
		p.A.measure(x, seed)
		p.B.measure(y, seed)
		if p.A.TTFT.Median > 0 {
			p.Ratio = p.B.TTFT.Median / p.A.TTFT.Median
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(x, y Pairing) int { return compareKeys(x.key(), y.key(), nil) })
	return all
}

// measure adds what the samples of a difference say of one side.
func (s *Side) measure(samples []*record.Sample, seed uint64) {
	s.Sources = sources(samples)
	s.TTFT, s.E2E, s.TPOT = stat.OfMedian(ttfts(samples), seed), stat.OfMedian(e2es(samples), seed), stat.OfMedian(tpots(samples), seed)
}

func (p *Pairing) key() Key {
	return Key{Workload: p.Workload, Variant: p.Variant, Phase: p.Phase, Length: p.Length, Concurrency: p.Concurrency}
}

// split notes what a difference leaves out of a side and returns the rest.
func split(to *Side, from side, samples []*record.Sample) []*record.Sample {
	whole := withoutFailed(samples)
	to.Run, to.Backend, to.Failed = from.run, from.backend, len(samples)-len(whole)
	var in, out []*record.Sample
	for _, s := range whole {
		if counted(s) {
			in = append(in, s)
		} else {
			out = append(out, s)
		}
	}
	to.LeftOut = sources(out)
	return in
}

// match returns the samples of both sides that are the same prompt in the same pass, in one order, and how many have no partner.
func match(a, b []*record.Sample) (x, y []*record.Sample, without int) {
	partners := map[partner]*record.Sample{}
	for _, s := range b {
		partners[partner{s.Pass, s.Prefix}] = s
	}
	for _, s := range a {
		if other := partners[partner{s.Pass, s.Prefix}]; other != nil {
			x, y = append(x, s), append(y, other)
		}
	}
	return x, y, len(a) + len(b) - 2*len(x)
}

// serial returns the whole latency samples of a length and phase that came from one of some sources.
func serial(samples []*record.Sample, length int, phase record.Phase, wanted ...record.Source) []*record.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s *record.Sample) bool {
		return s.Workload != latency || s.Length != length || s.Phase != phase || s.Error != "" || !slices.Contains(wanted, s.Source)
	})
}

// exposed tells what the restores of a run cost beyond hits in device memory, for every backend and length that has both. The hits are those of
// native, the first of these sides that has any of the length.
func exposed(run string, samples []*record.Sample, natives []side, m *record.Manifest, seed uint64) []Exposed {
	var all []Exposed
	for _, length := range m.Options.Lengths {
		for _, backend := range m.Options.Backends {
			own := of(samples, backend)
			restored := serial(own, length, record.AfterPressure, record.FromExternal)
			e := Exposed{Run: run, Backend: backend, Length: length}
			var hits []*record.Sample
			for _, n := range natives {
				if hits = serial(n.samples, length, record.HBMHit, record.FromHBM); len(hits) > 0 {
					e.HitRun, e.HitBackend = n.run, n.backend
					break
				}
			}
			if len(hits) == 0 {
				hits, e.HitRun, e.HitBackend = serial(own, length, record.HBMHit, record.FromHBM, record.FromBoth), run, backend
				e.Note = "native has no hit of this length; the backend's own hits may wait for its saves"
			}
			if len(restored) == 0 || len(hits) == 0 {
				continue
			}
			e.AfterPressure, e.Hit, e.HitSources = stat.OfMedian(ttfts(restored), seed), stat.OfMedian(ttfts(hits), seed), sources(hits)
			e.Difference = stat.OfDifference(ttfts(hits), ttfts(restored), seed)
			e.MedianRestoredBytes, e.RestoredHow = restoredBytes(restored, m.Model.BytesPerToken)
			e.shareLink(m.Probe.LinkBytesPerS)
			all = append(all, e)
		}
	}
	return all
}

// restoredBytes returns the median of what a request restored, and how that is known.
func restoredBytes(samples []*record.Sample, bytesPerToken int) (bytes float64, how string) {
	var reported, computed []float64
	for _, s := range samples {
		if s.LoadBytes > 0 {
			reported = append(reported, s.LoadBytes)
		}
		computed = append(computed, float64(s.ExternalTokens)*float64(bytesPerToken))
	}
	if len(reported) == len(samples) {
		return stat.Median(reported), "reported by the cache service"
	}
	return stat.Median(computed), "external tokens times the model's bytes a token"
}

// shareLink relates the exposed time to the time that the bytes need on the measured link.
func (e *Exposed) shareLink(bytesPerS float64) {
	if bytesPerS <= 0 || e.MedianRestoredBytes <= 0 {
		return
	}
	e.LinkMs = e.MedianRestoredBytes / bytesPerS * 1000
	if e.Difference.Median > 0 {
		share := e.LinkMs / e.Difference.Median
		e.LinkShare = &share
	}
}
