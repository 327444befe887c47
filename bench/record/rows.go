package record

import "time"

// Phase is the state of the caches in which a request was sent.
type Phase string

// The phases. WarmUp and Pressure are never measured: their requests are kept, marked by Sample.Measured.
const (
	WarmUp        Phase = "warm_up"
	Cold          Phase = "cold"           // a prompt that no cache has seen
	HBMHit        Phase = "hbm_hit"        // the same prompt again, its KV still in device memory
	Pressure      Phase = "pressure"       // disjoint prompts that push everything out of device memory
	AfterPressure Phase = "after_pressure" // the prompt again, after pressure
	// AfterHostEviction is the prompt again after more pressure and after the Manager emptied its memory: what comes from outside comes from the SSD.
	AfterHostEviction Phase = "after_host_eviction"
	Partial           Phase = "partial"   // a prompt whose first part was seen and whose rest is new, after pressure
	Prepare           Phase = "prepare"   // the working set of a sustained window, stored once before it
	Sustained         Phase = "sustained" // a request inside a sustained window
	Control           Phase = "control"   // a prompt repeated on the engine without an external cache, to attribute a difference
)

// Source is where the KV of a request's prompt came from.
type Source string

// The sources. Unverified is a claim without evidence: it is never counted as a hit.
const (
	FromHBM      Source = "hbm"
	FromExternal Source = "external"
	FromBoth     Source = "mixed"
	Miss         Source = "miss"
	Unverified   Source = "unverified"
)

// Place says which cell of the plan a row belongs to.
type Place struct {
	Cell        string `json:"cell"`    // unique in a run, the same in every attempt: backend/pass/workload/...
	Attempt     int    `json:"attempt"` // counts the starts of a run; 1 is the first
	Backend     string `json:"backend"` // native, cpu, orbitkv, lmcache or flexkv
	Pass        int    `json:"pass"`    // 0, or 1 for the reversed half of a pair
	Workload    string `json:"workload"`
	Variant     string `json:"variant,omitempty"` // partial: percent of the prompt that was seen before; concurrent: shared or mixed
	Concurrency int    `json:"concurrency"`       // requests in flight at most
	Length      int    `json:"length,omitempty"`  // prompt tokens; 0 where a cell mixes lengths
	Prefix      int    `json:"prefix"`            // index of the prompt, from which its tokens are drawn; -1 where a cell has many
}

// Sample is one request, as the client saw it. Times are milliseconds from the moment its first byte was written.
type Sample struct {
	Place
	Phase           Phase     `json:"phase"`
	Measured        bool      `json:"measured"`
	Request         string    `json:"request"` // unique in a run; the engine was given it as the request's id
	Started         time.Time `json:"started"`
	PromptIndex     int       `json:"prompt_index"`      // which prompt of the cell, for cells with many
	PromptTokens    int       `json:"prompt_tokens"`     // as sent
	TTFTms          float64   `json:"ttft_ms"`           // first non-empty text at the client; 0 when none came
	E2Ems           float64   `json:"e2e_ms"`            // end of the answer
	ChunkMs         []float64 `json:"chunk_ms"`          // arrival of each piece of non-empty text
	OutputTokens    int       `json:"output_tokens"`     // as the engine counted them
	FirstTextTokens int       `json:"first_text_tokens"` // of those, what had come with the read that held the first text; 0 where that is not known
	Text            string    `json:"text"`
	Error           string    `json:"error,omitempty"` // why the answer is not whole; such a sample has no latency
	Evidence
	MatchesCold *bool `json:"matches_cold,omitempty"` // nil where there is nothing to compare with
}

// TPOTms returns the time per output token, in milliseconds, and whether the sample has one: the time from the first text to the end of the answer, over
// the tokens that came after those of the first text. The first text often has several: an engine holds back what is no whole character yet, and may
// send tokens together, and a client that was busy reads several events at once. A sample has none where nobody counted the tokens of the first text, or none came after them.
func (s *Sample) TPOTms() (float64, bool) {
	after := s.OutputTokens - s.FirstTextTokens
	if s.Error != "" || s.TTFTms == 0 || s.FirstTextTokens < 1 || after < 1 {
		return 0, false
	}
	return (s.E2Ems - s.TTFTms) / float64(after), true
}

// GapsMs returns the times from each piece of text to the next, in milliseconds: the inter-token latency, where an engine sends each token by itself.
// Pieces that came with one read have one time, and so a gap of 0. An answer that is not whole has none.
func (s *Sample) GapsMs() []float64 {
	if s.Error != "" || len(s.ChunkMs) < 2 {
		return nil
	}
	gaps := make([]float64, len(s.ChunkMs)-1)
	for i := range gaps {
		gaps[i] = s.ChunkMs[i+1] - s.ChunkMs[i]
	}
	return gaps
}

// AtOnce says whether the whole answer, of several tokens, came together with its first text: the time to first text was then not seen apart from the
// time of the rest.
func (s *Sample) AtOnce() bool {
	return s.Error == "" && s.OutputTokens > 1 && s.FirstTextTokens == s.OutputTokens
}

// Evidence is what is known of where a prompt's KV came from.
type Evidence struct {
	Source         Source             `json:"source"`
	Why            string             `json:"why,omitempty"`   // for unverified and mixed: what did not add up
	CachedTokens   int                `json:"cached_tokens"`   // what the engine's answer claims in all
	DeviceTokens   int                `json:"device_tokens"`   // of the prompt, found in device memory
	ExternalTokens int                `json:"external_tokens"` // of the prompt, brought from outside
	LoadBytes      float64            `json:"load_bytes"`      // that the cache service says were restored meanwhile
	Deltas         map[string]float64 `json:"deltas,omitempty"`
	Shared         bool               `json:"shared,omitempty"` // the counters cover a burst: no single request owns them
	Tiers          *Tiers             `json:"tiers,omitempty"`  // nil where the backend is not OrbitKV
}

// Tiers is what the tiers of OrbitKV's Manager did meanwhile. A page counts where a look-up found it: a decision, not a transfer.
type Tiers struct {
	AskedPages    float64  `json:"asked_pages"` // that look-ups asked for: the four below together
	RAMPages      float64  `json:"ram_pages"`
	RemotePages   float64  `json:"remote_pages"`
	SSDPages      float64  `json:"ssd_pages"`
	MissPages     float64  `json:"miss_pages"`
	RestoredBytes float64  `json:"restored_bytes"` // that engines told of
	SSDReadBytes  float64  `json:"ssd_read_bytes"`
	SSDWriteBytes float64  `json:"ssd_write_bytes"`
	SSDReads      []Bucket `json:"ssd_reads,omitempty"` // pages that were read, by how long each took, the shortest first
}

// Found returns the pages of all tiers and the misses: as many as were asked for, unless something counts wrongly.
func (t *Tiers) Found() float64 { return t.RAMPages + t.RemotePages + t.SSDPages + t.MissPages }

// Bucket counts what took longer than the bucket before it allows and no longer than this one does.
type Bucket struct {
	UpToMs float64 `json:"up_to_ms,omitempty"` // 0: longer than every other bucket
	N      float64 `json:"n"`
}

// Window is a span of several requests with the counters around it.
type Window struct {
	Place
	Phase        Phase              `json:"phase"`
	Requests     int                `json:"requests"`
	Failed       int                `json:"failed"`
	Stop         string             `json:"stop"` // why admission ended: window, max_requests, burst or failure
	AdmitSeconds float64            `json:"admit_seconds"`
	DrainSeconds float64            `json:"drain_seconds"` // from the last admission to the last answer
	WallSeconds  float64            `json:"wall_seconds"`  // throughput is over this: drain included
	Before       map[string]float64 `json:"before"`
	After        map[string]float64 `json:"after"`
	Peak         map[string]float64 `json:"peak"` // largest seen by the monitor: a lower bound
	PeakSamples  int                `json:"peak_samples"`
	Started      time.Time          `json:"started"`
	Tiers        *Tiers             `json:"tiers,omitempty"` // between Before and After; nil where the backend is not OrbitKV
}

// Finished says that a cell has every row it will have.
type Finished struct {
	Place
	Ended time.Time `json:"ended"`
}

// Failure is a backend that could not be measured, or a cell that broke; never a latency sample.
type Failure struct {
	Place
	Stage  string    `json:"stage"` // start, serve or end
	Part   string    `json:"part"`  // engine, manager, lmcache or client
	Reason string    `json:"reason"`
	Log    string    `json:"log,omitempty"` // in the output directory
	At     time.Time `json:"at"`
}

// Verdict says what explains an output that differs from the cold one.
type Verdict string

// The verdicts.
const (
	EngineReproduces Verdict = "engine_reproduces" // the engine alone gives both outputs: cold like cold, its own hit like the differing one
	EngineUnstable   Verdict = "engine_unstable"   // the engine alone does not give the cold output again
	OtherBoundary    Verdict = "other_boundary"    // the engine's own hit ends at another token, so it can neither clear nor accuse the cache
	Unexplained      Verdict = "unexplained"       // the engine alone gives another output although it reuses as many tokens: suspect the cache
	NotRun           Verdict = "not_run"           // the control could not be made, or not from a cold request; Why says it, and a resumed run tries again
)

// Attribution is the control of one differing prompt on the engine without an external cache.
type Attribution struct {
	Place
	Request     string  `json:"request"` // the sample that differs
	Phase       Phase   `json:"phase"`
	Verdict     Verdict `json:"verdict"`
	Why         string  `json:"why,omitempty"`
	ColdText    string  `json:"cold_text"`
	Differing   string  `json:"differing_text"`
	ControlCold string  `json:"control_cold_text"`
	ControlHit  string  `json:"control_hit_text"`
	// ControlReused is how many tokens the control's hit reused, -1 when its answer does not say; nil without a whole one.
	ControlReused *int `json:"control_reused_tokens,omitempty"`
}

// Drain is the check after the last request of a backend: everything that a request borrows was given back, or not.
type Drain struct {
	Place
	Drained bool               `json:"drained"`
	Checked bool               `json:"checked"` // false where the backend tells nothing of what it holds
	WaitMs  float64            `json:"wait_ms"`
	Values  map[string]float64 `json:"values"` // of every watched gauge, at the end
	Why     string             `json:"why,omitempty"`
}
