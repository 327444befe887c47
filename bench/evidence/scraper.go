package evidence

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"orbitkv/bench/record"
)

// Bounds of the looks and waits.
const (
	ReadLimit   = 10 * time.Second       // of one page of metrics; an engine answers it between two steps
	pollEvery   = 100 * time.Millisecond // between two looks of a wait
	quietPolls  = 3                      // equal looks in a row that end a wait
	settleLimit = 60 * time.Second
	DrainLimit  = 30 * time.Second
)

// source is one page of metrics.
type source struct {
	what    string // in errors
	url     string
	watched []watch
}

// Scraper reads the metrics of an engine and of its cache service. Use NewScraper.
type Scraper struct {
	sources []source
	watched []watch // of all sources
	manager *source // nil where there is none
	service bool    // a cache service is read that says what it holds
	http    *http.Client
}

// NewScraper returns a scraper of the engine (vllm or sglang) at a base URL and, where theirs are not empty, of OrbitKV's Manager and of an
// LMCache daemon.
func NewScraper(engine, engineURL, managerURL, serviceURL string) *Scraper {
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: 4 * time.Second}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // Counters of another server are no evidence.
	s := &Scraper{http: &http.Client{Transport: transport, Timeout: ReadLimit, CheckRedirect: stay}}
	name := map[string]string{record.VLLM: "vLLM", record.SGLang: "SGLang"}[engine]
	s.add(source{name, engineURL, engineWatched(engine)})
	if managerURL != "" {
		s.add(source{"the Cache Manager", managerURL, managerWatched})
		s.manager = &s.sources[len(s.sources)-1]
	}
	if serviceURL != "" {
		s.add(source{"the LMCache daemon", serviceURL, daemonWatched})
	}
	s.service = managerURL != "" || serviceURL != ""
	return s
}

func (s *Scraper) add(from source) {
	from.url = strings.TrimRight(from.url, "/") + "/metrics"
	s.sources = append(s.sources, from)
	s.watched = append(s.watched, from.watched...)
}

// Read looks once at every source. The error names the source that did not answer.
func (s *Scraper) Read(ctx context.Context) (Snapshot, error) {
	snapshot := Snapshot{Values: map[string]float64{}}
	for _, from := range s.sources {
		if err := s.read(ctx, from, snapshot.Values); err != nil {
			return Snapshot{}, fmt.Errorf("evidence: %s at %s: %w", from.what, from.url, err)
		}
	}
	snapshot.At = time.Now()
	return snapshot, nil
}

// read adds what one source says to values.
func (s *Scraper) read(ctx context.Context, from source, values map[string]float64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/plain;version=0.0.4")
	response, err := s.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	if err := collect(response.Body, from.watched, values); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, metricsMax))
	return err
}

// Settle waits at least so long, and until nothing is restored or stored and no watched counter moved over 3 looks in a row, and returns the
// last look. After settleLimit its error says what still moved; the look is then returned too.
func (s *Scraper) Settle(ctx context.Context, atLeast time.Duration) (Snapshot, error) {
	look, moving, err := s.quiet(ctx, atLeast, max(settleLimit, atLeast), true, func(now Snapshot) []string { return now.above(s.watched, busy) })
	if err != nil {
		return look, err
	}
	if len(moving) > 0 {
		return look, fmt.Errorf("evidence: the engine and its cache did not settle within %v: %s", settleLimit, list(moving))
	}
	return look, nil
}

// quiet looks again and again until loud finds nothing in 3 looks in a row, between which no counter moved where still is set, and atLeast has
// passed, or until limit. It returns the last look and, at the limit or with an error, what was last found.
func (s *Scraper) quiet(ctx context.Context, atLeast, limit time.Duration, still bool, loud func(Snapshot) []string) (Snapshot, []string, error) {
	begun := time.Now()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	var look Snapshot
	var against []string
	for calm := 0; ; {
		now, err := s.Read(ctx)
		if err != nil {
			return look, against, err
		}
		found := loud(now)
		var moved []string
		if still {
			moved = now.moved(look, s.watched)
		}
		switch {
		case len(found) > 0:
			calm = 0
		case len(moved) > 0:
			calm = 1 // It is the first of the looks that must be equal.
		default:
			calm++
		}
		look = now
		if calm < 2 {
			against = append(found, moved...)
		}
		passed := time.Since(begun)
		switch {
		case calm >= quietPolls && passed >= atLeast:
			return look, nil, nil
		case passed >= limit:
			return look, against, nil
		}
		select {
		case <-ctx.Done():
			return look, against, ctx.Err()
		case <-ticker.C:
		}
	}
}
