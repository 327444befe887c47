package report

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"orbitkv/bench/record"
)

// faultsMax is how many faults an error names.
const faultsMax = 20

// The names of workloads and backends that rules depend on.
const (
	latency    = record.WorkloadLatency
	partial    = record.WorkloadPartial
	concurrent = record.WorkloadConcurrent
	sustained  = record.WorkloadSustained
	shared     = record.Shared
	native     = record.Native
	controls   = record.ControlCells + "/" // begins the cells in which differing outputs are attributed
)

// faults collects what contradicts.
type faults struct {
	named []error
	more  int
}

func (f *faults) add(format string, args ...any) {
	if len(f.named) == faultsMax {
		f.more++
		return
	}
	f.named = append(f.named, fmt.Errorf(format, args...))
}

func (f *faults) err(path string) error {
	if len(f.named) == 0 {
		return nil
	}
	if f.more > 0 {
		f.named = append(f.named, fmt.Errorf("and %d faults more", f.more))
	}
	return fmt.Errorf("%s contradicts itself and is not summarised; correct nothing by hand, and as --resume measures no finished cell again, measure again in a new folder:\n%w", path, errors.Join(f.named...))
}

// check refuses a run whose rows cannot all be true.
func check(run *record.Run) error {
	var f faults
	requests := map[string]bool{}
	for i := range run.Samples {
		s := &run.Samples[i]
		if s.Request == "" || requests[s.Request] {
			f.add("%s: its request has no name or is there twice", rowName(s))
		}
		requests[s.Request] = true
		if why := wrongPlace(run, s); why != "" {
			f.add("%s: %s", rowName(s), why)
		}
		if why := wrongTimes(s); why != "" {
			f.add("%s: %s", rowName(s), why)
		}
		if s.Measured && s.Error == "" {
			if why := wrongSource(s); why != "" {
				f.add("%s: %s", rowName(s), why)
			}
		}
	}
	byCell := finalByCell(run)
	for i := range run.Finished {
		cell := run.Finished[i]
		checkCell(&f, run, cell.Place, byCell[cell.Cell])
	}
	for _, c := range coverage(run) {
		if c.Planned > 0 && c.Finished > c.Planned {
			f.add("backend %s: %d cells are finished, %d were planned", c.Backend, c.Finished, c.Planned)
		}
	}
	return f.err(run.Path)
}

func rowName(s *record.Sample) string {
	return fmt.Sprintf("samples.jsonl, request %q (cell %s, phase %s)", s.Request, s.Cell, s.Phase)
}

// finalByCell returns the measured rows that count, by cell.
func finalByCell(run *record.Run) map[string][]*record.Sample {
	byCell := map[string][]*record.Sample{}
	for _, s := range final(run) {
		byCell[s.Cell] = append(byCell[s.Cell], s)
	}
	return byCell
}

// wrongPlace says what a row's place has that the run was never asked for.
func wrongPlace(run *record.Run, s *record.Sample) string {
	o := &run.Manifest.Options
	switch {
	case s.Attempt < 1 || s.Attempt > len(run.Manifest.Attempts):
		return fmt.Sprintf("attempt %d, the run was started %d times", s.Attempt, len(run.Manifest.Attempts))
	case !s.Measured:
		return ""
	case !slices.Contains(o.Backends, s.Backend):
		return fmt.Sprintf("backend %q was not asked for", s.Backend)
	case s.Pass < 0 || s.Pass > 1:
		return fmt.Sprintf("pass %d, there are 0 and 1", s.Pass)
	case s.Workload == latency || s.Workload == partial:
		switch {
		case s.Prefix < 0 || s.Prefix >= o.Repeats:
			return fmt.Sprintf("prefix index %d is outside of 0 to %d", s.Prefix, o.Repeats-1)
		case s.PromptTokens != s.Length:
			return fmt.Sprintf("a prompt of %d tokens in a cell of length %d", s.PromptTokens, s.Length)
		}
	case s.PromptIndex < 0:
		return fmt.Sprintf("prompt index %d", s.PromptIndex)
	}
	if length := lengthOf(s); !slices.Contains(o.Lengths, length) {
		return fmt.Sprintf("length %d was not asked for", length)
	}
	return ""
}

// lengthOf is the length of a row's prompt, also in cells that mix lengths.
func lengthOf(s *record.Sample) int {
	if s.Length > 0 {
		return s.Length
	}
	return s.PromptTokens
}

// wrongTimes says what no clock can have shown.
func wrongTimes(s *record.Sample) string {
	last := 0.0
	for _, at := range append(slices.Clone(s.ChunkMs), s.TTFTms, s.E2Ems, s.LoadBytes) {
		if math.IsNaN(at) || math.IsInf(at, 0) || at < 0 {
			return fmt.Sprintf("%v is no time or count", at)
		}
	}
	for _, at := range s.ChunkMs {
		if at < last {
			return fmt.Sprintf("a piece of text at %g ms came after one at %g ms", at, last)
		}
		last = at
	}
	switch {
	case s.Error != "":
		return ""
	case s.TTFTms == 0 && s.Measured:
		return "its answer is whole and has no first text"
	case s.TTFTms > s.E2Ems || last > s.E2Ems:
		return fmt.Sprintf("text came at %g ms, after the answer's end at %g ms", max(s.TTFTms, last), s.E2Ems)
	case s.OutputTokens < 1:
		return "its answer is whole and has no token"
	case s.FirstTextTokens < 0 || s.FirstTextTokens > s.OutputTokens:
		return fmt.Sprintf("%d of its %d tokens came with its first text", s.FirstTextTokens, s.OutputTokens)
	}
	return ""
}

// wrongSource says how a row's source contradicts its own evidence. In a burst no request owns the counters.
func wrongSource(s *record.Sample) string {
	device, external := s.DeviceTokens > 0, s.ExternalTokens > 0 || s.LoadBytes > 0
	ok := false
	switch s.Source {
	case record.FromHBM:
		ok = device && s.ExternalTokens <= 0
	case record.FromExternal:
		ok = !device && external
	case record.FromBoth:
		ok = device && external
	case record.Miss:
		ok = !device && !external
	case record.Unverified:
		ok = true
	default:
		return fmt.Sprintf("there is no source %q", s.Source)
	}
	if !ok && !s.Shared {
		return fmt.Sprintf("its source is %s, and its evidence says %d tokens of the device, %d from outside and %g bytes restored",
			s.Source, s.DeviceTokens, s.ExternalTokens, s.LoadBytes)
	}
	return ""
}

// prompt tells the prompts of one cell apart.
type prompt struct {
	phase         record.Phase
	length, index int
}

// checkCell compares a finished cell's rows with what its workload sends.
func checkCell(f *faults, run *record.Run, place record.Place, samples []*record.Sample) {
	seen := map[prompt]*record.Sample{}
	for _, s := range samples {
		p := prompt{s.Phase, s.Length, s.PromptIndex}
		if other := seen[p]; other != nil && place.Workload != sustained {
			f.add("%s: request %q is the same prompt in the same phase", rowName(s), other.Request)
		}
		seen[p] = s
	}
	var phases []record.Phase
	switch place.Workload {
	case latency:
		phases = []record.Phase{record.Cold, record.HBMHit, record.AfterPressure}
		if run.Manifest.Options.Evicts(place.Backend) {
			phases = append(phases, record.AfterHostEviction)
		}
	case partial:
		phases = []record.Phase{record.Cold, record.Partial}
	default:
		checkWindows(f, run, place, samples)
	}
	for _, phase := range phases {
		if !slices.ContainsFunc(samples, func(s *record.Sample) bool { return s.Phase == phase }) {
			f.add("cell %s is finished and has no measured sample of phase %s", place.Cell, phase)
		}
	}
	for _, s := range samples {
		if !slices.Contains([]record.Phase{record.HBMHit, record.AfterPressure, record.AfterHostEviction}, s.Phase) || s.Error != "" {
			continue
		}
		cold := seen[prompt{record.Cold, s.Length, s.PromptIndex}]
		switch {
		case cold == nil || cold.Error != "":
		case s.MatchesCold == nil:
			f.add("%s: it does not say whether its output matches the cold one", rowName(s))
		case *s.MatchesCold != (s.Text == cold.Text):
			f.add("%s: it says matches_cold %v, and the texts say otherwise", rowName(s), *s.MatchesCold)
		}
	}
}

// checkWindows compares the windows of a finished cell with the samples in them.
func checkWindows(f *faults, run *record.Run, place record.Place, samples []*record.Sample) {
	type count struct{ requests, failed int }
	windows, rows := map[record.Phase]count{}, map[record.Phase]count{}
	for i := range run.Windows {
		w := &run.Windows[i]
		if w.Cell != place.Cell || w.Attempt != place.Attempt {
			continue
		}
		for _, seconds := range []float64{w.AdmitSeconds, w.DrainSeconds, w.WallSeconds} {
			if math.IsNaN(seconds) || math.IsInf(seconds, 0) || seconds < 0 {
				f.add("windows.jsonl, cell %s, phase %s: %v is no time", w.Cell, w.Phase, seconds)
			}
		}
		if w.WallSeconds == 0 && w.Requests > 0 {
			f.add("windows.jsonl, cell %s, phase %s: %d requests in no time", w.Cell, w.Phase, w.Requests)
		}
		c := windows[w.Phase]
		windows[w.Phase] = count{c.requests + w.Requests, c.failed + w.Failed}
	}
	for _, s := range samples {
		c := rows[s.Phase]
		c.requests++
		if s.Error != "" {
			c.failed++
		}
		rows[s.Phase] = c
	}
	if len(windows) == 0 {
		f.add("cell %s is finished and has no window", place.Cell)
	}
	for phase, w := range windows {
		if rows[phase] != w {
			f.add("windows.jsonl, cell %s, phase %s: %d requests with %d failed, and the samples are %d with %d failed",
				place.Cell, phase, w.requests, w.failed, rows[phase].requests, rows[phase].failed)
		}
	}
	for phase := range rows {
		if _, ok := windows[phase]; !ok {
			f.add("cell %s has samples of phase %s and no window of it", place.Cell, phase)
		}
	}
}
