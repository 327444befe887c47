package evidence

import (
	"time"

	"orbitkv/bench/load"
)

// Snapshot is one look at every watched metric. A name stands for the sum over its series; where a label tells sources apart the name carries
// it, as in name{label="value"}. A metric that nobody serves has no entry.
type Snapshot struct {
	At     time.Time
	Values map[string]float64
}

// Case is what is known of one request, or of one burst: the answer and the settled counters around it.
type Case struct {
	Engine        string // vllm or sglang
	Backend       string // native, cpu, orbitkv, lmcache or flexkv
	Before, After Snapshot
	Answer        load.Answer
	BytesPerToken int // of KV over all layers and ranks
	PageSize      int // tokens
}
