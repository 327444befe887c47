package report

import (
	"time"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// SummaryFormat is the version of summary.json.
const SummaryFormat = 1

// Summary is summary.json: what a run's final, measured rows amount to. Times are milliseconds, rates are a second, intervals are 95 %.
type Summary struct {
	Format        int                  `json:"format"`
	Path          string               `json:"path"`
	Version       string               `json:"version"` // of orbitkv
	Started       time.Time            `json:"started"` // of the first attempt
	Engine        string               `json:"engine"`
	EngineVersion string               `json:"engine_version"`
	Device        string               `json:"device"`
	Model         record.Model         `json:"model"`
	Workload      string               `json:"workload"`
	Seed          int64                `json:"seed"`
	Part          Part                 `json:"part"`
	Coverage      []Coverage           `json:"coverage"` // of each backend, in the order of the options
	Counts        Counts               `json:"counts"`
	Cautions      []string             `json:"cautions"`      // what makes the figures say less than they seem to
	Outcomes      []string             `json:"outcomes"`      // a sentence for each backend, where something can be said
	Notes         []string             `json:"notes"`         // what must be read beside the figures
	Link          Link                 `json:"link,omitzero"` // left out when it was not measured
	Objectives    Objectives           `json:"objectives,omitzero"`
	Groups        []Group              `json:"groups"`
	Paired        []Pairing            `json:"paired"`
	Agreements    []Agreement          `json:"agreements"` // of every two backends
	Exposed       []Exposed            `json:"exposed"`
	Windows       []Window             `json:"windows"`
	Differing     []Differing          `json:"differing"` // every output that differs from its cold one
	Failures      []Failure            `json:"failures"`
	Drains        []Drain              `json:"drains"`
	Attributions  []record.Attribution `json:"attributions"` // the latest of each request
}

// Part says how much of a plan is measured.
type Part struct {
	Finished int `json:"finished"` // cells
	Planned  int `json:"planned"`  // cells; 0 when the run ended before it planned any
}

// Complete says whether every planned cell is finished.
func (p Part) Complete() bool { return p.Planned > 0 && p.Finished == p.Planned }

// Coverage is the part of one backend.
type Coverage struct {
	Backend string `json:"backend"`
	Part
}

// Counts says what became of the rows that are in no statistic.
type Counts struct {
	Samples          int `json:"samples"`           // rows in all
	Measured         int `json:"measured"`          // final and measured: those of the groups
	Failed           int `json:"failed"`            // of the measured: without a whole answer, so without a latency
	Superseded       int `json:"superseded"`        // measured rows of cells that are unfinished or were finished by another attempt
	Unmeasured       int `json:"unmeasured"`        // warm-up, preparation, pressure and controls
	UnmeasuredFailed int `json:"unmeasured_failed"` // of those, without a whole answer
	Unverified       int `json:"unverified"`        // of the measured
}

// Link is the measured bandwidth between host memory and the device.
type Link struct {
	BytesPerS float64 `json:"bytes_per_s,omitempty"` // 0 when it was not measured
	How       string  `json:"how"`                   // what was timed
}

// Objectives are the limits that a request of the goodput met; 0 where none was set.
type Objectives struct {
	TTFTms float64 `json:"ttft_ms,omitempty"`
	TPOTms float64 `json:"tpot_ms,omitempty"`
}

// Set says whether there is any objective.
func (o Objectives) Set() bool { return o.TTFTms > 0 || o.TPOTms > 0 }

// Key names what a group of samples has in common. Passes are taken together.
type Key struct {
	Backend     string       `json:"backend"`
	Workload    string       `json:"workload"`
	Variant     string       `json:"variant,omitempty"` // partial: percent seen before; concurrent: shared or mixed
	Phase       record.Phase `json:"phase"`
	Length      int          `json:"length"` // prompt tokens
	Concurrency int          `json:"concurrency"`
}

// SourceCount is how many samples came from a source.
type SourceCount struct {
	Source record.Source `json:"source"`
	N      int           `json:"n"`
}

// LengthCount is how many prompts had a length.
type LengthCount struct {
	Length int `json:"length"` // tokens
	N      int `json:"n"`
}

// Group is every measured sample of one key. Its latencies stand one row a source and are never taken together.
type Group struct {
	Key
	N          int             `json:"n"` // failed ones included
	Failed     int             `json:"failed"`
	Expected   []record.Source `json:"expected,omitempty"` // the sources that the phase is meant to have; none where any will do
	Unexpected int             `json:"unexpected"`         // whole answers from another source
	Sources    []SourceCount   `json:"sources"`            // of whole answers
	Rows       []Row           `json:"rows"`
	Outputs    Outputs         `json:"outputs"`
	Tiers      *Tiers          `json:"tiers,omitempty"` // of the samples that have counters of their own; nil where the backend is not OrbitKV
}

// Tiers is what the tiers of OrbitKV's Manager did for some samples or in a window. A page counts where a look-up found it: a decision, not a transfer.
type Tiers struct {
	AskedPages       float64 `json:"asked_pages"` // that look-ups asked for: the four below together
	RAMPages         float64 `json:"ram_pages"`
	RemotePages      float64 `json:"remote_pages"`
	SSDPages         float64 `json:"ssd_pages"`
	MissPages        float64 `json:"miss_pages"`
	SumSSDReadBytes  float64 `json:"sum_ssd_read_bytes"`
	SumSSDWriteBytes float64 `json:"sum_ssd_write_bytes"`
	// SSDPrefetchP50 is what half of the pages that were read took at most, queueing included: the bound of the histogram's bucket in which the median lies.
	SSDPrefetchP50 *float64 `json:"ssd_prefetch_p50_ms,omitempty"`
	// SSDReadsWithoutRestore counts samples, or spans of a window, for which the SSD was read and nothing was restored.
	SSDReadsWithoutRestore int `json:"ssd_reads_without_restore"`
}

// Row is the samples of a group that came from one source.
type Row struct {
	Source  record.Source `json:"source"`
	N       int           `json:"n"`
	TTFT    stat.Estimate `json:"ttft_ms,omitzero"`
	TTFTp95 *float64      `json:"ttft_p95_ms,omitempty"` // nil for fewer than stat.P95Min samples
	TTFTp99 *float64      `json:"ttft_p99_ms,omitempty"` // nil for fewer than stat.P99Min samples
	E2E     stat.Estimate `json:"e2e_ms,omitzero"`
	TPOT    stat.Estimate `json:"tpot_ms,omitzero"` // of the samples with tokens after those of the first text
	// SumRestoredBytes is what the cache service says was restored, over all samples but those that share their counters with others.
	SumRestoredBytes  float64 `json:"sum_restored_bytes"`
	SumExternalTokens int     `json:"sum_external_tokens"` // brought from outside, over all samples
}

// Outputs is how many reused answers were compared with the cold ones.
type Outputs struct {
	Compared  int                    `json:"compared"`
	Differing int                    `json:"differing"`
	Verdicts  map[record.Verdict]int `json:"verdicts,omitempty"` // of the differing; the empty verdict is one without a control yet
}

// Differing is one output that differs from its cold one.
type Differing struct {
	Key
	Pass    int            `json:"pass"`
	Prefix  int            `json:"prefix"`
	Request string         `json:"request"`
	Source  record.Source  `json:"source"`
	Verdict record.Verdict `json:"verdict"` // empty when there was no control yet
	Why     string         `json:"why,omitempty"`
	Reused  int            `json:"reused_tokens"` // -1 when the answer does not say
	// ControlReused is how many tokens the engine's own hit reused, and ControlDiffers whether its text is another than its cold one; nil without a control.
	ControlReused  *int     `json:"control_reused_tokens,omitempty"`
	ControlDiffers *bool    `json:"control_hit_differs,omitempty"`
	SameText       []string `json:"same_text_from,omitempty"` // the other backends that answered the same request with this very text
	Others         int      `json:"others"`                   // backends that have a whole answer to the same request
}

// Side is one backend in a difference.
type Side struct {
	Run     string        `json:"run,omitempty"` // label of the run, in comparisons
	Backend string        `json:"backend"`
	Sources []SourceCount `json:"sources"`          // of the samples in the difference
	TTFT    stat.Estimate `json:"ttft_ms,omitzero"` // of the samples in the difference
	E2E     stat.Estimate `json:"e2e_ms,omitzero"`  // of the same
	TPOT    stat.Estimate `json:"tpot_ms,omitzero"` // of the same, where it is known
	LeftOut []SourceCount `json:"left_out,omitempty"`
	Failed  int           `json:"failed,omitempty"`
}

// Pairing is the difference of TTFT between two backends. After pressure it takes only what the phase is about: restores from outside without a hit in
// device memory, and recomputations on the backend without a cache; other samples are counted in Side.LeftOut.
type Pairing struct {
	Workload    string         `json:"workload"`
	Variant     string         `json:"variant,omitempty"`
	Phase       record.Phase   `json:"phase"`
	Length      int            `json:"length"`
	Concurrency int            `json:"concurrency"`
	A           Side           `json:"a"`
	B           Side           `json:"b"`
	Paired      bool           `json:"paired"`             // same pass and prompt on both sides
	N           int            `json:"n"`                  // pairs; 0 when not paired
	Difference  float64        `json:"difference_ms"`      // paired: median of B - A; else difference of the medians
	Interval    *stat.Interval `json:"interval,omitempty"` // of the difference; nil for fewer than stat.IntervalMin
	Ratio       float64        `json:"ratio"`              // median B / median A of the samples in the difference; 0 when there are none
	Without     int            `json:"without_partner"`    // samples of either side that would count and have no partner
}

// Exposed is what a restore costs a request beyond a hit in device memory.
type Exposed struct {
	Run           string        `json:"run,omitempty"` // label of the run, in comparisons
	Backend       string        `json:"backend"`
	Length        int           `json:"length"`
	AfterPressure stat.Estimate `json:"after_pressure_ms,omitzero"` // external samples alone
	Hit           stat.Estimate `json:"hit_ms,omitzero"`
	HitRun        string        `json:"hit_run,omitempty"`
	HitBackend    string        `json:"hit_backend"` // native, or the backend itself where native has no hit of the length
	HitSources    []SourceCount `json:"hit_sources"`
	// Difference is AfterPressure - Hit, as medians.
	Difference          stat.Difference `json:"exposed_ms"`
	MedianRestoredBytes float64         `json:"median_restored_bytes"` // of one request
	RestoredHow         string          `json:"restored_how"`          // reported by the cache service, or external tokens times the model's bytes
	LinkMs              float64         `json:"link_ms,omitempty"`     // those bytes at the measured link; 0 when it was not measured
	LinkShare           *float64        `json:"link_share,omitempty"`  // LinkMs / exposed; nil without a link or without an exposed time
	Note                string          `json:"note,omitempty"`
}

// Gauge is one watched value around a window.
type Gauge struct {
	Name  string   `json:"name"`
	Start *float64 `json:"start,omitempty"` // nil where it was not read
	End   *float64 `json:"end,omitempty"`
	Peak  *float64 `json:"peak,omitempty"` // largest seen: a lower bound
}

// Window is one cell's spans of one phase, taken together where the cell has several bursts.
type Window struct {
	Key
	Pass             int           `json:"pass"`
	Cell             string        `json:"cell"`
	Spans            int           `json:"spans"`
	Requests         int           `json:"requests"`
	Failed           int           `json:"failed"`
	Stops            []string      `json:"stops"` // why admission ended, each once
	AdmitSeconds     float64       `json:"admit_seconds"`
	DrainSeconds     float64       `json:"drain_seconds"`
	WallSeconds      float64       `json:"wall_seconds"`   // drain included; rates are over this
	RequestsPerS     float64       `json:"requests_per_s"` // whole answers
	OutputTokensPerS float64       `json:"output_tokens_per_s"`
	GoodputPerS      *float64      `json:"goodput_per_s,omitempty"` // whole answers that met the objectives; nil without one
	Good             *int          `json:"good,omitempty"`          // how many those are; nil without an objective
	Lengths          []LengthCount `json:"lengths"`                 // of the prompts of whole answers
	Sources          []SourceCount `json:"sources"`                 // of the samples in the latencies below
	TTFT             stat.Estimate `json:"ttft_ms,omitzero"`
	TTFTp99          *float64      `json:"ttft_p99_ms,omitempty"`
	TPOT             stat.Estimate `json:"tpot_ms,omitzero"`
	TPOTp99          *float64      `json:"tpot_p99_ms,omitempty"`
	ITL              stat.Estimate `json:"itl_ms,omitzero"` // of the gaps between pieces of text of all samples; without an interval, since those of one answer are no independent values
	ITLp99           *float64      `json:"itl_p99_ms,omitempty"`
	Gauges           []Gauge       `json:"gauges"` // by name
	PeakSamples      int           `json:"peak_samples"`
	Outputs          Outputs       `json:"outputs"`
	Tiers            *Tiers        `json:"tiers,omitempty"` // nil where the backend is not OrbitKV
}

// Drain is a record.Drain that says what came out only where something was looked at.
type Drain struct {
	record.Drain
	Outcome *bool `json:"drained,omitempty"` // takes the place of the row's own; nil where nothing was checked
}

// Failure is a record.Failure and what came of it.
type Failure struct {
	record.Failure
	Recovered bool `json:"recovered"` // what it kept from being measured was measured all the same: its cell, or every cell of its backend
}
