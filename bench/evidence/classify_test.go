package evidence

import (
	"maps"
	"strings"
	"testing"

	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

const (
	testPage  = 64
	testBytes = 2048 // of a token
	testWhole = 512  // tokens of the prompt
	testMost  = 448  // of them that can be cached: all but the page of the last token
)

// facts are what one request did, from which every counter of a truthful engine and its cache follows.
type facts struct {
	engine, backend  string
	device, external float64
}

// truthful returns the case of one request whose sources all say the same.
func truthful(f facts) Case {
	before := map[string]float64{}
	for _, w := range append(append(append([]watch{}, engineWatched(f.engine)...), managerWatched...), daemonWatched...) {
		before[w.key()] = 1000
	}
	after := maps.Clone(before)
	move := func(name string, by float64) { after[name] += by }
	c := Case{Engine: f.engine, Backend: f.backend, BytesPerToken: testBytes, PageSize: testPage}
	c.Answer = load.Answer{PromptTokens: testWhole, OutputTokens: 8, CachedTokens: int(f.device + f.external), DeviceTokens: -1, ExternalTokens: -1}
	if f.engine == record.VLLM {
		move(vllmFinished, 1)
		move(vllmPrompt, testWhole)
		move(vllmQueries, testWhole)
		move(vllmHits, f.device)
		move(vllmLocal, f.device)
		move(vllmOuterHits, f.external)
		move(vllmOuter, f.external)
	} else {
		c.Answer.DeviceTokens, c.Answer.ExternalTokens = int(f.device), int(f.external)
		move(sglangFinished, 1)
		move(sglangPrompt, testWhole)
		move(series(sglangPrefill, "mode", "device_hit"), f.device)
		move(series(sglangPrefill, "mode", "host_hit"), f.external)
		move(series(sglangCached, "cache_source", "device"), f.device)
		move(series(sglangCached, "cache_source", "host"), f.external)
	}
	switch f.backend {
	case record.OrbitKV:
		move(managerLoadBytes, f.external*testBytes)
	case record.LMCache:
		move(daemonChunks, f.external/testPage)
	case "cpu":
		move(vllmLoadBytes, f.external*testBytes)
		move(sglangLoadBytes, f.external*testBytes)
	}
	if f.backend != "cpu" { // Only the engine's own cache in host memory makes these.
		for _, name := range []string{vllmLoadBytes, sglangLoadBytes} {
			delete(before, name)
			delete(after, name)
		}
	}
	c.Before, c.After = Snapshot{Values: before}, Snapshot{Values: after}
	return c
}

func TestSources(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{record.VLLM, record.SGLang} {
		for _, backend := range []string{record.Native, record.CPU, record.OrbitKV, record.LMCache, "flexkv"} {
			cases := []struct {
				device, external float64
				want             record.Source
			}{
				{0, 0, record.Miss}, {testMost, 0, record.FromHBM}, {0, testMost, record.FromExternal}, {testPage, testMost - testPage, record.FromBoth},
			}
			for _, k := range cases {
				if backend == record.Native && k.external > 0 {
					continue
				}
				c := truthful(facts{engine, backend, k.device, k.external})
				e := Classify(c)
				if e.Source != k.want || (e.Why != "") != (k.want == record.FromBoth) {
					t.Errorf("%s with %s, %g and %g tokens: %s (%s), want %s", engine, backend, k.device, k.external, e.Source, e.Why, k.want)
				}
				if e.DeviceTokens != int(k.device) || e.ExternalTokens != int(k.external) || e.CachedTokens != int(k.device+k.external) || e.Shared {
					t.Errorf("%s with %s: %+v", engine, backend, e)
				}
				bytes := 0.0
				if backend == record.CPU || backend == record.OrbitKV {
					bytes = k.external * testBytes
				}
				if e.LoadBytes != bytes {
					t.Errorf("%s with %s: %g bytes, want %g", engine, backend, e.LoadBytes, bytes)
				}
			}
		}
	}
}

// TestDoubts changes one fact of a truthful case at a time: the verdict is unverified and says which fact did not add up.
func TestDoubts(t *testing.T) {
	t.Parallel()
	vllmRestored := facts{record.VLLM, record.OrbitKV, 0, testMost}
	vllmMiss := facts{record.VLLM, record.OrbitKV, 0, 0}
	sglangRestored := facts{record.SGLang, record.OrbitKV, 0, testMost}
	sglangMiss := facts{record.SGLang, record.OrbitKV, 0, 0}
	moves := func(name string, by float64) func(*Case) { return func(c *Case) { c.After.Values[name] += by } }
	gone := func(name string) func(*Case) { return func(c *Case) { delete(c.After.Values, name) } }
	answers := func(change func(*load.Answer)) func(*Case) { return func(c *Case) { change(&c.Answer) } }
	cases := []struct {
		name   string
		facts  facts
		change func(*Case)
		why    string
	}{
		{"a miss that is reported as a hit", vllmMiss, answers(func(a *load.Answer) { a.CachedTokens = testMost }), "claims 448 cached tokens, its counters show 0"},
		{"a hit that is reported as a miss", vllmRestored, answers(func(a *load.Answer) { a.CachedTokens = 0 }), "claims 0 cached tokens, its counters show 448"},
		{"an answer that does not say", vllmRestored, answers(func(a *load.Answer) { a.CachedTokens = -1 }), "does not say how many tokens"},
		{"a device claim", sglangMiss, answers(func(a *load.Answer) { a.DeviceTokens = 64 }), "claims 64 tokens from the device"},
		{"an outside claim", sglangMiss, answers(func(a *load.Answer) { a.ExternalTokens = 64 }), "claims 64 tokens from outside"},
		{"a claim without a split", sglangRestored, answers(func(a *load.Answer) { a.DeviceTokens, a.ExternalTokens = -1, -1 }), "does not split"},
		{"another request ended", vllmRestored, moves(vllmFinished, 1), "finished 2 requests meanwhile, not 1"},
		{"no request ended", vllmRestored, moves(vllmFinished, -1), "finished 0 requests meanwhile, not 1"},
		{"another request began", vllmRestored, moves(vllmPrompt, 100), "counted 612 prompt tokens meanwhile, not 512"},
		{"another request ended", sglangRestored, moves(sglangFinished, 1), "finished 2 requests meanwhile, not 1"},
		{"another request's prompt", sglangRestored, moves(sglangPrompt, 7), "counted 519 prompt tokens"},
		{"two look-ups", vllmRestored, moves(vllmQueries, testWhole), "looked up 1024 tokens, the prompts have 512"},
		{"the scheduler found more", vllmRestored, moves(vllmHits, 64), "found 64 tokens on the device and 448 outside"},
		{"fewer were used", vllmRestored, moves(vllmOuter, -64), "first tokens were counted with 0 and 384"},
		{"the scheduler found more", sglangRestored, moves(series(sglangPrefill, "mode", "storage_hit"), 64), "found 0 tokens on the device and 512 outside"},
		{"fewer were used", sglangRestored, moves(series(sglangCached, "cache_source", "host"), -64), "counted with 0 and 384"},
		{"a preemption", vllmRestored, moves(vllmPreemptions, 1), "1 requests were preempted"},
		{"a retraction", sglangRestored, moves(sglangRetracted, 2), "2 requests were retracted"},
		{"too few bytes", vllmRestored, moves(managerLoadBytes, -1), "448 tokens from outside are 917504 bytes, and orbitkv_load_bytes_total moved by 917503"},
		{"no bytes", sglangRestored, moves(managerLoadBytes, -testMost*testBytes), "moved by 0"},
		{"bytes without tokens", vllmMiss, moves(managerLoadBytes, testPage*testBytes), "moved by 131072, and no token came from outside"},
		{"a page too many", sglangRestored, moves(managerLoadBytes, testPage*testBytes+1), "more than the 448 tokens"},
		{"a failed copy", vllmRestored, moves(managerFailedLoads, 3), "3 pages whose copy failed"},
		{"vLLM's own cache: too few bytes", facts{record.VLLM, "cpu", 0, testMost}, moves(vllmLoadBytes, -1), vllmLoadBytes + " moved by 917503"},
		{"HiCache: too few bytes", facts{record.SGLang, "cpu", 0, testMost}, moves(sglangLoadBytes, -1), sglangLoadBytes + " moved by 917503"},
		{"LMCache: too few chunks", facts{record.VLLM, record.LMCache, 0, testMost}, moves(daemonChunks, -1), "LMCache loaded 6 chunks of 64"},
		{"LMCache: chunks without tokens", facts{record.SGLang, record.LMCache, 0, 0}, moves(daemonChunks, 1), "LMCache loaded 1 chunks, and no token"},
		{"outside of nothing", facts{record.VLLM, record.Native, 0, testMost}, func(*Case) {}, "started without an external cache"},
		{"an absent counter", vllmMiss, gone(vllmOuterHits), vllmOuterHits + " is not served"},
		{"an absent Manager", vllmMiss, gone(managerLoadBytes), managerLoadBytes + " is not served"},
		{"an absent daemon", facts{record.VLLM, record.LMCache, 0, 0}, gone(daemonChunks), daemonChunks + " is not served"},
		{"a counter that fell", vllmMiss, moves(managerLoadBytes, -1), "fell from 1000 to 999"},
		{
			"another engine's counters", sglangRestored, func(c *Case) { c.After.Values = map[string]float64{} }, sglangFinished + " is not served",
		},
	}
	for _, k := range cases {
		c := truthful(k.facts)
		k.change(&c)
		e := Classify(c)
		if e.Source != record.Unverified || !strings.Contains(e.Why, k.why) {
			t.Errorf("%s, %s: %s (%s), want unverified that says %q", k.facts.engine, k.name, e.Source, e.Why, k.why)
		}
	}
}

// TestSGLangRestoresOnePageMore is no doubt: SGLang brings the page of the last token too and computes that token.
func TestSGLangRestoresOnePageMore(t *testing.T) {
	t.Parallel()
	c := truthful(facts{record.SGLang, record.OrbitKV, 0, testMost})
	c.After.Values[managerLoadBytes] += testPage * testBytes
	if e := Classify(c); e.Source != record.FromExternal || e.LoadBytes != testWhole*testBytes {
		t.Errorf("%+v", e)
	}
}

// burst returns the case of several requests, and their answers.
func burst(of ...facts) (Case, []load.Answer) {
	c := truthful(of[0])
	answers := []load.Answer{c.Answer}
	for _, f := range of[1:] {
		one := truthful(f)
		for name, by := range one.After.Deltas(one.Before) {
			c.After.Values[name] += by
		}
		answers = append(answers, one.Answer)
	}
	return c, answers
}

func TestBursts(t *testing.T) {
	t.Parallel()
	of := func(engine string, device, external float64) facts {
		return facts{engine, record.OrbitKV, device, external}
	}
	hbm, outer, both, miss := record.FromHBM, record.FromExternal, record.FromBoth, record.Miss
	cases := []struct {
		facts []facts
		want  []record.Source
	}{
		{[]facts{of(record.VLLM, 0, 0), of(record.VLLM, 0, 0)}, []record.Source{miss, miss}},
		{[]facts{of(record.VLLM, testMost, 0), of(record.VLLM, 0, 0)}, []record.Source{hbm, miss}},
		{[]facts{of(record.VLLM, 0, testMost), of(record.VLLM, 0, 0)}, []record.Source{outer, miss}},
		{[]facts{of(record.VLLM, 0, testMost), of(record.VLLM, testMost, 0), of(record.VLLM, 0, 0)}, []record.Source{both, both, miss}},
		{[]facts{of(record.SGLang, 0, testMost), of(record.SGLang, testMost, 0), of(record.SGLang, 0, 0)}, []record.Source{outer, hbm, miss}},
	}
	for _, k := range cases {
		c, answers := burst(k.facts...)
		for i, e := range ClassifyBurst(c, answers) {
			if e.Source != k.want[i] || !e.Shared {
				t.Errorf("%v: answer %d is %s (%s), want %s", k.facts, i, e.Source, e.Why, k.want[i])
			}
			f := k.facts[i]
			if e.Source != both && (e.DeviceTokens != int(f.device) || e.ExternalTokens != int(f.external)) {
				t.Errorf("%v: answer %d has %d and %d tokens", k.facts, i, e.DeviceTokens, e.ExternalTokens)
			}
		}
	}
}

func TestDoubtsOfBursts(t *testing.T) {
	t.Parallel()
	restored := facts{record.SGLang, record.OrbitKV, 0, testMost}
	cases := []struct {
		change func(*Case, []load.Answer)
		why    string // empty: no doubt
	}{
		// Both requests may wait for one restore.
		{func(c *Case, _ []load.Answer) { c.After.Values[managerLoadBytes] -= testMost * testBytes }, ""},
		{func(c *Case, _ []load.Answer) { c.After.Values[managerLoadBytes] -= testMost*testBytes + 1 }, "448 tokens from outside are 917504 bytes"},
		{func(c *Case, _ []load.Answer) { c.After.Values[managerLoadBytes] += 2 * testPage * testBytes }, ""},
		{func(c *Case, _ []load.Answer) { c.After.Values[managerLoadBytes] += 2*testPage*testBytes + 1 }, "a page of each request"},
		{func(c *Case, _ []load.Answer) { c.After.Values[sglangFinished]++ }, "finished 3 requests meanwhile, not 2"},
		{func(_ *Case, a []load.Answer) { a[1].CachedTokens-- }, "claims 895 cached tokens, its counters show 896"},
		{func(_ *Case, a []load.Answer) { a[0].CachedTokens = -1 }, "does not say how many"},
	}
	for _, k := range cases {
		c, answers := burst(restored, restored)
		k.change(&c, answers)
		for _, e := range ClassifyBurst(c, answers) {
			if unsure := e.Source == record.Unverified; unsure != (k.why != "") || !strings.Contains(e.Why, k.why) {
				t.Errorf("%s (%s), want a doubt that says %q", e.Source, e.Why, k.why)
			}
		}
	}
	c, answers := burst(facts{record.VLLM, record.OrbitKV, 0, testMost}, facts{record.VLLM, record.OrbitKV, 0, testMost})
	c.After.Values[managerLoadBytes] = c.Before.Values[managerLoadBytes] + testPage*testBytes - 1
	for _, e := range ClassifyBurst(c, answers) {
		if e.Source != record.Unverified || !strings.Contains(e.Why, "64 tokens from outside are 131072 bytes") {
			t.Errorf("%s (%s), want a doubt about less than one page", e.Source, e.Why)
		}
	}
}
