package evidence

import (
	"fmt"
	"strings"

	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// Case is what is known of one request, or of one burst: the answer and the settled counters around it.
type Case struct {
	Engine        string // vllm or sglang
	Backend       string // native, cpu, orbitkv, lmcache or flexkv
	Before, After Snapshot
	Answer        load.Answer
	BytesPerToken int // of KV over all layers and ranks
	PageSize      int // tokens
	// Evicted says that OrbitKV's Manager had emptied its memory before: what came from outside must have been read from the SSD.
	Evicted bool
}

// Classify says where the KV of a request's prompt came from. The counters must have settled before and after it, and nothing else may have run.
func Classify(c Case) record.Evidence {
	l := newLedger(c)
	a := c.Answer
	l.requests(1, float64(a.PromptTokens))
	counted := l.counted()
	l.claims(a, counted)
	l.service(counted.external)
	l.bytes(counted.external, counted.external, 1)
	tiers := l.tiers(counted.external)
	evidence := record.Evidence{
		CachedTokens: max(a.CachedTokens, 0), DeviceTokens: int(counted.device), ExternalTokens: int(counted.external),
		LoadBytes: max(l.loaded, 0), Deltas: l.deltas, Tiers: tiers,
	}
	evidence.Source, evidence.Why = l.verdict(counted.device, counted.external)
	return evidence
}

// ClassifyBurst says it for each whole answer of a burst, whose counters cover all of them; Case.Answer is not used. Where the engine's answers do not
// split what they claim and the counters show both sources, an answer with cached tokens is mixed, and Why says that the split is the burst's.
func ClassifyBurst(c Case, answers []load.Answer) []record.Evidence {
	l := newLedger(c)
	var sum load.Answer
	largest := 0.0
	for _, a := range answers {
		sum = added(sum, a)
		largest = max(largest, float64(a.ExternalTokens))
	}
	l.requests(float64(len(answers)), float64(sum.PromptTokens))
	counted := l.counted()
	l.claims(sum, counted)
	l.service(counted.external)
	if largest <= 0 {
		largest = float64(c.PageSize) // The answers do not split their claims: something came for at least one of them.
	}
	l.bytes(largest, counted.external, len(answers))
	tiers := l.tiers(min(largest, counted.external))
	evidence := make([]record.Evidence, len(answers))
	for i, a := range answers {
		e := record.Evidence{CachedTokens: max(a.CachedTokens, 0), LoadBytes: max(l.loaded, 0), Deltas: l.deltas, Tiers: tiers, Shared: true}
		device, external, how := split(a, counted)
		e.Source, e.Why = l.verdict(device, external)
		if how == "" {
			e.DeviceTokens, e.ExternalTokens = int(device), int(external)
		} else if e.Source == record.FromBoth {
			e.Why = how
		}
		evidence[i] = e
	}
	return evidence
}

// added sums what two answers claim; what one of them does not say, the sum does not say.
func added(sum, a load.Answer) load.Answer {
	plus := func(x, y int) int {
		if x < 0 || y < 0 {
			return -1
		}
		return x + y
	}
	sum.PromptTokens += a.PromptTokens
	sum.CachedTokens = plus(sum.CachedTokens, a.CachedTokens)
	sum.DeviceTokens = plus(sum.DeviceTokens, a.DeviceTokens)
	sum.ExternalTokens = plus(sum.ExternalTokens, a.ExternalTokens)
	return sum
}

// split returns what one answer of a burst had from the device and from outside. how says why the split is not its own.
func split(a load.Answer, counted tokens) (device, external float64, how string) {
	cached := float64(max(a.CachedTokens, 0))
	switch {
	case a.DeviceTokens >= 0 && a.ExternalTokens >= 0:
		return float64(a.DeviceTokens), float64(a.ExternalTokens), ""
	case counted.external == 0:
		return cached, 0, ""
	case counted.device == 0:
		return 0, cached, ""
	default:
		return cached, cached, fmt.Sprintf("the burst had %g tokens from the device and %g from outside; the answer does not split its own %g",
			counted.device, counted.external, cached)
	}
}

// tokens is how much of a prompt, or of a burst's prompts, came from where, by the engine's counters.
type tokens struct{ device, external float64 }

// ledger compares the sources of facts and keeps what does not add up.
type ledger struct {
	c      Case
	deltas map[string]float64
	doubts []string
	prompt float64 // tokens of all prompts that the counters should cover
	loaded float64 // bytes that were restored; -1 where nobody counts them
}

func newLedger(c Case) *ledger { return &ledger{c: c, deltas: c.After.Deltas(c.Before), loaded: -1} }

func (l *ledger) doubt(format string, a ...any) {
	l.doubts = append(l.doubts, fmt.Sprintf(format, a...))
}

// delta returns how much a counter moved. One that is absent, or that fell, is a doubt.
func (l *ledger) delta(name string) float64 {
	before, was := l.c.Before.Values[name]
	after, is := l.c.After.Values[name]
	switch {
	case !was || !is:
		l.doubt("%s is not served", name)
		return 0
	case after < before:
		l.doubt("%s fell from %g to %g: its owner was started anew", name, before, after)
		return 0
	}
	return after - before
}

// serves reports whether a counter is served before and after.
func (l *ledger) serves(name string) bool {
	_, was := l.c.Before.Values[name]
	_, is := l.c.After.Values[name]
	return was && is
}

// requests checks that the counters cover so many requests with so many prompt tokens and no others.
func (l *ledger) requests(n, prompt float64) {
	finished, prompts := vllmFinished, vllmPrompt
	if l.c.Engine == record.SGLang {
		finished, prompts = sglangFinished, sglangPrompt
	}
	l.prompt = prompt
	if got := l.delta(finished); got != n {
		l.doubt("the engine finished %g requests meanwhile, not %g: its counters cover others", got, n)
	}
	if got := l.delta(prompts); got != prompt {
		l.doubt("the engine counted %g prompt tokens meanwhile, not %g: its counters cover others", got, prompt)
	}
}

// counted returns what the engine's counters show, once two sets of them agree.
func (l *ledger) counted() tokens {
	if l.c.Engine == record.SGLang {
		return l.countedSGLang()
	}
	return l.countedVLLM()
}

// countedVLLM compares what the scheduler found when it admitted requests with what was counted when their first tokens came.
func (l *ledger) countedVLLM() tokens {
	found := tokens{l.delta(vllmHits), l.delta(vllmOuterHits)}
	if used := (tokens{l.delta(vllmLocal), l.delta(vllmOuter)}); used != found {
		l.doubt("the scheduler found %g tokens on the device and %g outside, the prompts' first tokens were counted with %g and %g",
			found.device, found.external, used.device, used.external)
	}
	if looked := l.delta(vllmQueries); looked != l.prompt {
		l.doubt("the scheduler looked up %g tokens, the prompts have %g: a prompt was looked up twice, or another request's was", looked, l.prompt)
	}
	if n := l.delta(vllmPreemptions); n != 0 {
		l.doubt("%g requests were preempted, and what they computed anew is not told apart", n)
	}
	return found
}

// countedSGLang compares what the scheduler counted when prefills began with what was counted when answers ended.
func (l *ledger) countedSGLang() tokens {
	mode := func(name string) float64 { return l.delta(series(sglangPrefill, "mode", name)) }
	cached := func(name string) float64 { return l.delta(series(sglangCached, "cache_source", name)) }
	found := tokens{mode("device_hit"), mode("host_hit") + mode("storage_hit")}
	if used := (tokens{cached("device"), cached("host") + cached("storage")}); used != found {
		l.doubt("the scheduler found %g tokens on the device and %g outside, the ended requests were counted with %g and %g",
			found.device, found.external, used.device, used.external)
	}
	if n := l.delta(sglangRetracted); n != 0 {
		l.doubt("%g requests were retracted, and what they computed anew is not told apart", n)
	}
	return found
}

// claims compares what answers say with what counters show.
func (l *ledger) claims(a load.Answer, counted tokens) {
	if a.CachedTokens < 0 {
		l.doubt("the engine's answer does not say how many tokens were cached")
	} else if sum := counted.device + counted.external; float64(a.CachedTokens) != sum {
		l.doubt("the engine's answer claims %d cached tokens, its counters show %g", a.CachedTokens, sum)
	}
	if a.DeviceTokens >= 0 && float64(a.DeviceTokens) != counted.device {
		l.doubt("the engine's answer claims %d tokens from the device, its counters show %g", a.DeviceTokens, counted.device)
	}
	if a.ExternalTokens >= 0 && float64(a.ExternalTokens) != counted.external {
		l.doubt("the engine's answer claims %d tokens from outside, its counters show %g", a.ExternalTokens, counted.external)
	}
	if l.c.Engine == record.SGLang && (a.DeviceTokens < 0 || a.ExternalTokens < 0) {
		l.doubt("the engine's answer does not split its cached tokens by source")
	}
}

// verdict names the source. With any doubt it is unverified, whatever the numbers are.
func (l *ledger) verdict(device, external float64) (record.Source, string) {
	switch {
	case len(l.doubts) > 0:
		return record.Unverified, strings.Join(l.doubts, "; ")
	case device > 0 && external > 0:
		return record.FromBoth, fmt.Sprintf("%g tokens from the device and %g from outside", device, external)
	case device > 0:
		return record.FromHBM, ""
	case external > 0:
		return record.FromExternal, ""
	default:
		return record.Miss, ""
	}
}
