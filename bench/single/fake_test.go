package single

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"orbitkv/bench/record"
)

// What a rule lets the fake engine do for the requests whose id it matches.
const (
	claimHit     = "claim_hit"       // the answer claims the whole prompt as cached; no counter moves
	claimRestore = "claim_restore"   // the engine's counters and answer claim an external hit; the cache service restored nothing
	emptyFirst   = "empty_first"     // an event without text comes before the first token
	earlyText    = "early_text"      // text comes with a count of no token
	otherText    = "other_text"      // another text than for the same prompt before
	dieMidStream = "die"             // the process ends after the first piece of text
	breakOff     = "break_off"       // the connection ends after the first piece of text; the engine lives
	breakFirst   = "break_first"     // as break_off, for the first request alone that the rule matches
	fallBack     = "fall_back"       // the counters fall
	cancelRun    = "cancel_run"      // whoever runs the measurement ends it
	holdAnswer   = "hold_the_answer" // the answer never ends
	restoreTail  = "restore_tail"    // all but the last token is restored, as by the connectors of vLLM
	stayInMemory = "stay_in_memory"  // the Manager restores from memory what it should have there no more
	readInVain   = "read_in_vain"    // the Manager reads from the SSD, and the engine computes all the same
	losePages    = "lose_pages"      // the Manager counts more pages that were asked for than it found or missed
)

// rule is one line of a script.
type rule struct {
	When string // part of the request's id
	Do   string
}

// fakeEngine is an engine that generates nothing: a device cache with room for so many pages, an external one without a bound, and counters as the
// real engines serve them. A script makes it lie.
type fakeEngine struct {
	engine, backend string
	page, pages     int
	script          []rule
	die             func()       // ends the process
	dead            atomic.Bool  // it answers nothing any more
	cancel          func()       // ends the measurement
	served          func(served) // tells the cache service
	emptied         func() bool  // the cache service emptied its memory

	mu       sync.Mutex
	device   []string // keys, the least recently used first
	external map[string]bool
	memory   map[string]bool   // those of them that are in the Manager's memory
	prompts  map[string]string // digest of the prompt by the request's id
	counts   map[string]float64
	used     bool // a rule for one request alone
}

// served is what the cache service did for one request, or for all of them.
type served struct {
	Restored       float64 // bytes
	RAM, SSD, Miss int     // pages, by where a look-up found them
	Lost           int     // pages that were asked for and are in none of them
	Read           float64 // bytes of the SSD
	Evicted        int     // pages
}

func (s *served) add(more served) {
	s.Restored, s.Read = s.Restored+more.Restored, s.Read+more.Read
	s.RAM, s.SSD, s.Miss, s.Lost = s.RAM+more.RAM, s.SSD+more.SSD, s.Miss+more.Miss, s.Lost+more.Lost
}

func newFakeEngine(engine, backend string, page, tokens int, script []rule) *fakeEngine {
	f := &fakeEngine{
		engine: engine, backend: backend, page: page, pages: tokens / page, script: script, external: map[string]bool{}, memory: map[string]bool{},
		prompts: map[string]string{}, counts: map[string]float64{}, die: func() {}, cancel: func() {}, served: func(served) {}, emptied: func() bool { return false },
	}
	f.add(0, 0, 0, 0)
	return f
}

// keys are the chained digests of the whole pages of a prompt.
func (f *fakeEngine) keys(tokens []int) []string {
	var keys []string
	sum := sha256.New()
	for i, token := range tokens {
		_ = binary.Write(sum, binary.LittleEndian, int64(token))
		if (i+1)%f.page == 0 {
			keys = append(keys, string(sum.Sum(nil)))
		}
	}
	return keys
}

// forget empties the Manager's memory, and returns how many pages that were.
func (f *fakeEngine) forget() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.memory)
	clear(f.memory)
	return n
}

// look finds what the caches have of a prompt, and keeps the prompt in both.
func (f *fakeEngine) look(tokens []int) (device, external int, found served) {
	if f.emptied() {
		clear(f.memory)
	}
	keys := f.keys(tokens)
	reusable := (len(tokens) - 1) / f.page // one token is always computed
	for device < reusable && slices.Contains(f.device, keys[device]) {
		device++
	}
	for device+external < reusable && f.external[keys[device+external]] {
		if f.memory[keys[device+external]] {
			found.RAM++
		} else {
			found.SSD++
		}
		external++
	}
	found.Miss = reusable - device - external
	for _, key := range slices.Backward(keys) {
		f.device = slices.DeleteFunc(f.device, func(k string) bool { return k == key })
		f.device = append(f.device, key)
		if f.backend != record.Native {
			f.external[key], f.memory[key] = true, true
		}
	}
	if over := len(f.device) - f.pages; over > 0 {
		f.device = slices.Delete(f.device, 0, over)
	}
	found.Read = float64(found.SSD * f.page * tinyBytesPerToken)
	return device * f.page, external * f.page, found
}

// does says whether a rule matches a request.
func (f *fakeEngine) does(id, what string) bool {
	return slices.ContainsFunc(f.script, func(r rule) bool { return r.Do == what && strings.Contains(id, r.When) })
}

// first says whether a rule matches a request and matched none before.
func (f *fakeEngine) first(id, what string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.used || !f.does(id, what) {
		return false
	}
	f.used = true
	return true
}

// words is the text of a prompt's answer, a word a token.
func words(tokens []int, count int, other bool) []string {
	sum := sha256.New()
	_ = binary.Write(sum, binary.LittleEndian, int64(len(tokens)))
	for _, token := range tokens {
		_ = binary.Write(sum, binary.LittleEndian, int64(token))
	}
	digest := sum.Sum(nil)
	all := make([]string, count)
	for i := range all {
		all[i] = fmt.Sprintf(" w%d", digest[i%len(digest)])
	}
	if other {
		all[count-1] = " changed"
	}
	return all
}

// ServeHTTP answers health, metrics and completions in the dialect of either engine.
func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.dead.Load() {
		panic(http.ErrAbortHandler)
	}
	switch r.URL.Path {
	case "/metrics":
		f.metrics(w)
	case "/v1/completions":
		var body struct {
			Prompt []int `json:"prompt"`
			Tokens int   `json:"max_tokens"`
		}
		if json.NewDecoder(r.Body).Decode(&body) == nil {
			f.complete(w, r, r.Header.Get("X-Request-Id"), body.Prompt, body.Tokens)
		}
	case "/generate":
		var body struct {
			ID       string `json:"rid"`
			Prompt   []int  `json:"input_ids"`
			Sampling struct {
				Tokens int `json:"max_new_tokens"`
			} `json:"sampling_params"`
		}
		if json.NewDecoder(r.Body).Decode(&body) == nil {
			f.complete(w, r, body.ID, body.Prompt, body.Sampling.Tokens)
		}
	default:
		fmt.Fprint(w, "{}")
	}
}

// complete streams one answer.
func (f *fakeEngine) complete(w http.ResponseWriter, r *http.Request, id string, tokens []int, output int) {
	device, external, cached := f.count(id, tokens, output)
	if f.does(id, cancelRun) {
		f.cancel()
	}
	if f.does(id, emptyFirst) {
		f.event(w, id, "", "", len(tokens), 0, cached, device, external, false)
	}
	text := ""
	all := words(tokens, output, f.does(id, otherText))
	for i, word := range all {
		text += word
		count := i + 1
		if f.does(id, earlyText) && i == 0 {
			count = 0
		}
		f.event(w, id, word, text, len(tokens), count, cached, device, external, i == output-1)
		if i > 0 {
			continue
		}
		switch {
		case f.does(id, dieMidStream):
			f.dead.Store(true)
			f.die()
			panic(http.ErrAbortHandler)
		case f.does(id, breakOff), f.first(id, breakFirst):
			panic(http.ErrAbortHandler)
		case f.does(id, holdAnswer):
			<-r.Context().Done()
			return
		}
	}
	if f.engine == record.VLLM {
		fmt.Fprintf(w, `data: {"id":"cmpl-%s","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
			id, len(tokens), output, cached)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// count looks a prompt up and moves the counters as a script wants them.
func (f *fakeEngine) count(id string, tokens []int, output int) (device, external, cached int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	device, external, found := f.look(tokens)
	switch {
	case f.does(id, restoreTail):
		external = len(tokens) - 1 - device
	case f.does(id, stayInMemory):
		found.RAM, found.SSD, found.Read = found.RAM+found.SSD, 0, 0
	case f.does(id, readInVain):
		external = 0
	case f.does(id, losePages):
		found.Lost = 3
	}
	f.prompts[id] = strings.Join(f.keys(tokens), "")
	cached = device + external
	switch {
	case f.does(id, claimHit):
		device, external, cached = len(tokens)-1, 0, len(tokens)-1
	case f.does(id, claimRestore):
		external = (len(tokens) - 1) / f.page * f.page
		device, cached = 0, external
		f.add(len(tokens), output, device, external)
	case f.does(id, fallBack):
		f.add(-1_000_000, output, -100_000, -100_000)
	default:
		found.Restored = float64(external * tinyBytesPerToken)
		f.served(found)
		f.add(len(tokens), output, device, external)
	}
	return device, external, cached
}

// event writes one event and flushes it.
func (f *fakeEngine) event(w http.ResponseWriter, id, word, text string, prompt, output, cached, device, external int, last bool) {
	finish := "null"
	if f.engine == record.VLLM {
		if last {
			finish = `"length"`
		}
		fmt.Fprintf(w, `data: {"id":"cmpl-%s","choices":[{"index":0,"text":%q,"finish_reason":%s}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n",
			id, word, finish, prompt, output)
	} else {
		if last {
			finish = fmt.Sprintf(`{"type":"length","length":%d}`, output)
		}
		details := ""
		if cached > 0 {
			details = fmt.Sprintf(`,"cached_tokens_details":{"device":%d,"host":%d}`, device, external)
		}
		fmt.Fprintf(w, `data: {"text":%q,"meta_info":{"id":%q,"finish_reason":%s,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d%s}}`+"\n\n",
			text, id, finish, prompt, output, cached, details)
	}
	_ = http.NewResponseController(w).Flush()
}

// add moves the counters by one request.
func (f *fakeEngine) add(prompt, output, device, external int) {
	grow := func(name string, by int) { f.counts[name] += float64(by) }
	requests := min(prompt, 1)
	if f.engine == record.VLLM {
		grow(`vllm:request_success_total{finished_reason="length"}`, requests)
		grow("vllm:prompt_tokens_total", prompt)
		grow("vllm:generation_tokens_total", output)
		grow("vllm:num_preemptions_total", 0)
		grow("vllm:prefix_cache_queries_total", prompt)
		grow("vllm:prefix_cache_hits_total", device)
		grow(`vllm:prompt_tokens_by_source_total{source="local_compute"}`, prompt-device-external)
		grow(`vllm:prompt_tokens_by_source_total{source="local_cache_hit"}`, device)
		grow(`vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}`, external)
		grow("vllm:num_requests_running", 0)
		grow("vllm:num_requests_waiting", 0)
		grow("vllm:external_prefix_cache_hits_total", external)
		grow("vllm:external_prefix_cache_queries_total", 0)
		if f.backend != record.Native {
			grow("vllm:external_prefix_cache_queries_total", prompt-device)
		}
		return
	}
	f.counts["sglang:max_total_num_tokens"] = float64(f.pages * f.page)
	grow("sglang:num_requests_total", requests)
	grow("sglang:prompt_tokens_total", prompt)
	grow("sglang:generation_tokens_total", output)
	grow(`sglang:cached_tokens_total{cache_source="device"}`, device)
	grow(`sglang:cached_tokens_total{cache_source="host"}`, external)
	grow(`sglang:prefill_effective_tokens_total{mode="input"}`, prompt-device-external)
	grow(`sglang:prefill_effective_tokens_total{mode="device_hit"}`, device)
	grow(`sglang:prefill_effective_tokens_total{mode="host_hit"}`, external)
	grow(`sglang:prefill_effective_tokens_total{mode="storage_hit"}`, 0)
}

// metrics writes the counters.
func (f *fakeEngine) metrics(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.counts)) {
		fmt.Fprintf(w, "%s %g\n", name, f.counts[name])
	}
}

// managerGauges are zero while nobody borrows anything.
var managerGauges = []string{
	`orbitkv_operations{state="waiting"}`, `orbitkv_operations{state="ready"}`, `orbitkv_query_reserved_bytes_by_phase{phase="ready"}`,
	`orbitkv_query_reserved_bytes_by_phase{phase="restoring"}`, "orbitkv_reservations", "orbitkv_inflight_bytes", "orbitkv_query_reserved_bytes",
	"orbitkv_cache_retired_bytes", "orbitkv_abandoned_bytes", "orbitkv_settling_bytes", "orbitkv_stalled_bytes", "orbitkv_quarantined_bytes",
	"orbitkv_pool_used_bytes", "orbitkv_cache_resident_bytes",
}

// managerMetrics writes what a Manager serves that did so much and still leases so much.
func managerMetrics(w io.Writer, done served, leases float64) {
	for _, name := range managerGauges {
		fmt.Fprintf(w, "%s 0\n", name)
	}
	for _, name := range []string{
		"load_failures", "save_bytes", "cache_block_not_mapped", "cache_block_insertions", "pool_alloc_failures", "busy", "query_budget_waits", "query_budget_bypasses",
	} {
		fmt.Fprintf(w, "orbitkv_%s_total 0\n", name)
	}
	fmt.Fprintf(w, "orbitkv_load_bytes_total %g\norbitkv_leases %g\n", done.Restored, leases)
	fmt.Fprintf(w, "orbitkv_cache_block_hits_total %d\norbitkv_cache_block_misses_total %d\n", done.RAM+done.SSD, done.Miss+done.Lost)
	fmt.Fprintf(w, "orbitkv_cache_block_evictions_total %d\n", done.Evicted)
	for tier, pages := range map[string]int{"ram": done.RAM, "ssd": done.SSD, "miss": done.Miss} {
		fmt.Fprintf(w, "orbitkv_cache_tier_block_requests_total{tier=%q} %d\n", tier, pages)
	}
	fmt.Fprintf(w, "orbitkv_ssd_prefetch_bytes_total %g\n# TYPE orbitkv_ssd_prefetch_duration_seconds histogram\n", done.Read)
	for _, bound := range []string{"0.004", "+Inf"} { // each page took between 1 and 4 ms
		fmt.Fprintf(w, "orbitkv_ssd_prefetch_duration_seconds_bucket{le=%q} %d\n", bound, done.SSD)
	}
	fmt.Fprintf(w, "orbitkv_ssd_prefetch_duration_seconds_bucket{le=\"0.001\"} 0\norbitkv_ssd_prefetch_duration_seconds_sum 0\norbitkv_ssd_prefetch_duration_seconds_count %d\n", done.SSD)
}
