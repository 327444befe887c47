package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// Summarise says what a run's rows amount to. A run that is not finished is summarised as far as it came, and says so. It returns an error that names
// the rows when they contradict each other.
func Summarise(run *record.Run) (*Summary, error) {
	if err := check(run); err != nil {
		return nil, err
	}
	m := &run.Manifest
	seed := uint64(m.Options.Seed)
	samples := final(run)
	verdicts := attributed(run)
	s := &Summary{
		Format: SummaryFormat, Path: run.Path, Version: m.Version, Started: m.Started, Engine: m.Options.Engine, EngineVersion: engineVersion(m),
		Device: m.Options.Device, Model: m.Model, Workload: m.Options.Workload, Seed: m.Options.Seed,
		Coverage: listOf(coverage(run)), Counts: counts(run), Link: Link{m.Probe.LinkBytesPerS, m.Probe.LinkHow},
		Objectives: Objectives{m.Options.SLOTTFTms, m.Options.SLOTPOTms},
		Groups:     listOf(groups(samples, m.Options.Backends, verdicts, seed)),
		Paired:     listOf(pairedBackends(samples, m.Options.Backends, seed)),
		Agreements: listOf(agreeingBackends(samples, m.Options.Backends)),
		Exposed:    listOf(exposed("", samples, []side{{"", native, of(samples, native)}}, m, seed)),
		Windows:    listOf(windows(run, samples, verdicts, seed)),
		Differing:  listOf(differing(samples, m.Options.Backends, verdicts)),
		Failures:   listOf(failures(run)), Drains: drains(run), Attributions: listOf(latest(run, verdicts)),
	}
	for _, c := range s.Coverage {
		s.Part.Finished += c.Finished
		s.Part.Planned += c.Planned
	}
	s.Cautions, s.Outcomes, s.Notes = listOf(cautions(s)), listOf(outcomes(s)), listOf(notes(run, s))
	return s, nil
}

// listOf makes no list an empty one, so that programs find a list in every place of one.
func listOf[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// drains says nothing of what came out where nothing was checked.
func drains(run *record.Run) []Drain {
	all := make([]Drain, len(run.Drains))
	for i, d := range run.Drains {
		if d.Values == nil {
			d.Values = map[string]float64{}
		}
		all[i] = Drain{Drain: d}
		if d.Checked {
			all[i].Outcome = new(d.Drained)
		}
	}
	return all
}

// engineVersion is the release of the engine's package, which has a name of its own where it is built for a CPU.
func engineVersion(m *record.Manifest) string {
	return cmp.Or(m.Probe.Packages[m.Options.Engine], m.Probe.Packages[m.Options.Engine+"-cpu"])
}

// WriteJSON writes summary.json, or a comparison in the same form. The error is the writer's.
func WriteJSON[T Summary | Comparison](w io.Writer, value *T) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("writing figures as JSON: %w", err)
	}
	return nil
}

// final lists the rows that count.
func final(run *record.Run) []*record.Sample {
	var all []*record.Sample
	for i := range run.Samples {
		if s := &run.Samples[i]; s.Measured && run.Final(s.Place) {
			all = append(all, s)
		}
	}
	return all
}

// attributed returns the latest attribution of each request.
func attributed(run *record.Run) map[string]*record.Attribution {
	byRequest := map[string]*record.Attribution{}
	for i := range run.Attributions {
		byRequest[run.Attributions[i].Request] = &run.Attributions[i]
	}
	return byRequest
}

// latest leaves out the attributions that a later attempt made again.
func latest(run *record.Run, verdicts map[string]*record.Attribution) []record.Attribution {
	var all []record.Attribution
	for i := range run.Attributions {
		if a := &run.Attributions[i]; verdicts[a.Request] == a {
			all = append(all, *a)
		}
	}
	return all
}

func coverage(run *record.Run) []Coverage {
	finished := map[string]int{}
	for _, cell := range run.Finished {
		finished[cell.Backend]++
	}
	var all []Coverage
	for _, backend := range run.Manifest.Options.Backends {
		all = append(all, Coverage{backend, Part{finished[backend], run.Manifest.Plan[backend]}})
	}
	return all
}

func counts(run *record.Run) Counts {
	c := Counts{Samples: len(run.Samples)}
	for i := range run.Samples {
		s := &run.Samples[i]
		switch {
		case !s.Measured:
			c.Unmeasured++
			if s.Error != "" {
				c.UnmeasuredFailed++
			}
		case !run.Final(s.Place):
			c.Superseded++
		default:
			c.Measured++
			if s.Error != "" {
				c.Failed++
			} else if s.Source == record.Unverified {
				c.Unverified++
			}
		}
	}
	return c
}

// KeyOf returns the group of a row. Where a cell mixes lengths, the prompt of the row decides.
func KeyOf(s *record.Sample) Key {
	return Key{s.Backend, s.Workload, s.Variant, s.Phase, lengthOf(s), s.Concurrency}
}

// phaseOrder is the order in which phases are shown.
var phaseOrder = []record.Phase{record.Cold, record.HBMHit, record.Partial, record.AfterPressure, record.AfterHostEviction, record.Sustained}

// compareKeys orders groups so that the backends of one state stand together.
func compareKeys(a, b Key, backends []string) int {
	return cmp.Or(
		cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Variant, b.Variant), cmp.Compare(a.Concurrency, b.Concurrency), cmp.Compare(a.Length, b.Length),
		cmp.Compare(slices.Index(phaseOrder, a.Phase), slices.Index(phaseOrder, b.Phase)),
		cmp.Compare(slices.Index(backends, a.Backend), slices.Index(backends, b.Backend)),
	)
}

// expected returns the sources that a state is meant to have; nil where any will do. Requests of one shared prompt find each other's KV.
func expected(k Key) []record.Source {
	if k.Variant == shared {
		return nil
	}
	switch k.Phase {
	case record.Cold:
		return []record.Source{record.Miss}
	case record.HBMHit:
		return []record.Source{record.FromHBM}
	case record.AfterPressure, record.AfterHostEviction, record.Partial:
		if k.Backend == native {
			return []record.Source{record.Miss}
		}
		return []record.Source{record.FromExternal}
	}
	return nil
}

func groups(samples []*record.Sample, backends []string, verdicts map[string]*record.Attribution, seed uint64) []Group {
	byKey := map[Key][]*record.Sample{}
	for _, s := range samples {
		byKey[KeyOf(s)] = append(byKey[KeyOf(s)], s)
	}
	var all []Group
	for key, members := range byKey {
		whole := withoutFailed(members)
		g := Group{
			Key: key, N: len(members), Failed: len(members) - len(whole), Expected: expected(key),
			Sources: sources(whole), Rows: []Row{}, Outputs: outputs(whole, verdicts), Tiers: tiersOf(ownTiers(whole)),
		}
		for _, source := range g.Sources {
			if g.Expected != nil && !slices.Contains(g.Expected, source.Source) {
				g.Unexpected += source.N
			}
			g.Rows = append(g.Rows, row(source.Source, from(whole, source.Source), seed))
		}
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b Group) int { return compareKeys(a.Key, b.Key, backends) })
	return all
}

func withoutFailed(samples []*record.Sample) []*record.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s *record.Sample) bool { return s.Error != "" })
}

func from(samples []*record.Sample, source record.Source) []*record.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s *record.Sample) bool { return s.Source != source })
}

// sources counts samples by source, in one order.
func sources(samples []*record.Sample) []SourceCount {
	count := map[record.Source]int{}
	for _, s := range samples {
		count[s.Source]++
	}
	all := []SourceCount{}
	for _, source := range record.Sources {
		if count[source] > 0 {
			all = append(all, SourceCount{source, count[source]})
		}
	}
	return all
}

func row(source record.Source, samples []*record.Sample, seed uint64) Row {
	ttft := ttfts(samples)
	r := Row{
		Source: source, N: len(samples), TTFT: stat.OfMedian(ttft, seed), TTFTp95: stat.Rare(ttft, 0.95), TTFTp99: stat.Rare(ttft, 0.99),
		TPOT: stat.OfMedian(tpots(samples), seed),
	}
	for _, s := range samples {
		if !s.Shared { // The bytes of a burst stand in each of its samples.
			r.SumRestoredBytes += s.LoadBytes
		}
		r.SumExternalTokens += s.ExternalTokens
	}
	r.E2E = stat.OfMedian(e2es(samples), seed)
	return r
}

func ttfts(samples []*record.Sample) []float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, s.TTFTms)
	}
	return all
}

func e2es(samples []*record.Sample) []float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, s.E2Ems)
	}
	return all
}

func tpots(samples []*record.Sample) []float64 {
	var all []float64
	for _, s := range samples {
		if tpot, ok := s.TPOTms(); ok {
			all = append(all, tpot)
		}
	}
	return all
}

func outputs(whole []*record.Sample, verdicts map[string]*record.Attribution) Outputs {
	var o Outputs
	for _, s := range whole {
		if s.MatchesCold == nil {
			continue
		}
		o.Compared++
		if *s.MatchesCold {
			continue
		}
		o.Differing++
		if o.Verdicts == nil {
			o.Verdicts = map[record.Verdict]int{}
		}
		verdict, _ := verdictOf(s, verdicts)
		o.Verdicts[verdict]++
	}
	return o
}

func verdictOf(s *record.Sample, verdicts map[string]*record.Attribution) (record.Verdict, string) {
	if a := verdicts[s.Request]; a != nil {
		return a.Verdict, a.Why
	}
	return "", ""
}

func failures(run *record.Run) []Failure {
	complete := map[string]bool{}
	for _, c := range coverage(run) {
		complete[c.Backend] = c.Complete()
	}
	finished := map[string]bool{}
	for _, cell := range run.Finished {
		finished[cell.Cell] = true
	}
	var all []Failure
	for _, f := range run.Failures {
		missed := f.Stage == record.AtEnd || strings.HasPrefix(f.Cell, controls) // Nothing is measured again that would make up for these.
		all = append(all, Failure{f, !missed && (finished[f.Cell] || complete[f.Backend])})
	}
	return all
}

// notes lists what must be read beside the figures.
func notes(run *record.Run, s *Summary) []string {
	all := slices.Concat(run.Manifest.Notes, run.Notes)
	for i, attempt := range run.Manifest.Attempts {
		switch attempt.Outcome {
		case record.Complete, record.Part:
		case "":
			all = append(all, fmt.Sprintf("attempt %d is still running, or was killed", i+1))
		default:
			all = append(all, fmt.Sprintf("attempt %d ended as %s", i+1, attempt.Outcome))
		}
	}
	if n := s.Counts.Superseded; n > 0 {
		all = append(all, fmt.Sprintf("%d measured requests belong to cells that their attempt did not finish; they are kept in samples.jsonl and are in no figure", n))
	}
	if n := s.Counts.UnmeasuredFailed; n > 0 {
		all = append(all, fmt.Sprintf("%d requests that warm, prepare or press failed; what a phase really met is in the sources of its samples", n))
	}
	all = append(all, atOnce(run)...)
	all = append(all, busy(&run.Manifest)...)
	all = append(all, coldDisagreements(s.Agreements)...)
	waiting := 0
	for _, d := range s.Differing {
		if d.Verdict == "" {
			waiting++
		}
	}
	switch {
	case waiting == 1:
		all = append(all, "1 differing output has no control yet: the same command with --resume asks the engine without an external cache")
	case waiting > 1:
		all = append(all, fmt.Sprintf("%d differing outputs have no control yet: the same command with --resume asks the engine without an external cache", waiting))
	}
	for _, drain := range s.Drains {
		if drain.Checked && !drain.Drained {
			all = append(all, fmt.Sprintf("backend %s, pass %d, attempt %d did not give everything back: %s", drain.Backend, drain.Pass, drain.Attempt, drain.Why))
		}
	}
	return all
}
