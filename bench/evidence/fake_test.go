package evidence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"orbitkv/bench/record"
)

// Bases of the fake sources.
const (
	engineAt  = "http://engine"
	managerAt = "http://manager"
	daemonAt  = "http://daemon"
)

// pages serves metrics without a network. Each look at a source gives it the number of the look, from 1.
type pages struct {
	mu     sync.Mutex
	looks  map[string]int
	values map[string]map[string]float64
	change map[string]func(look int, values map[string]float64) error
}

// newPages serves every watched metric of every source as 0.
func newPages(engine string) *pages {
	p := &pages{looks: map[string]int{}, values: map[string]map[string]float64{}, change: map[string]func(int, map[string]float64) error{}}
	for base, watched := range map[string][]watch{engineAt: engineWatched(engine), managerAt: managerWatched, daemonAt: daemonWatched} {
		p.values[base] = map[string]float64{}
		for _, w := range watched {
			p.values[base][w.key()] = 0
		}
	}
	return p
}

// RoundTrip implements http.RoundTripper.
func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	base := "http://" + r.URL.Host
	if r.URL.Path != "/metrics" || p.values[base] == nil {
		return nil, fmt.Errorf("nobody serves %s", r.URL)
	}
	p.looks[base]++
	status := http.StatusOK
	if change := p.change[base]; change != nil {
		if err := change(p.looks[base], p.values[base]); errors.Is(err, errBusy) {
			status = http.StatusServiceUnavailable
		} else if err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(page(p.values[base])))}, nil
}

var errBusy = errors.New("busy")

func page(values map[string]float64) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&text, "%s %g\n", name, values[name])
	}
	return text.String()
}

// scraper returns a scraper of the fake sources at some bases; the engine is always one.
func (p *pages) scraper(engine string, bases ...string) *Scraper {
	at := map[string]string{}
	for _, base := range bases {
		at[base] = base
	}
	s := NewScraper(engine, engineAt, at[managerAt], at[daemonAt])
	s.http = &http.Client{Transport: p, Timeout: ReadLimit}
	return s
}

// until returns a change that gives a metric a value up to and including a look, and another one after it.
func until(look int, name string, first, then float64) func(int, map[string]float64) error {
	return func(n int, values map[string]float64) error {
		values[name] = then
		if n <= look {
			values[name] = first
		}
		return nil
	}
}

// rising returns a change that moves a metric with each look up to one.
func rising(look int, name string) func(int, map[string]float64) error {
	return func(n int, values map[string]float64) error {
		values[name] = float64(min(n, look))
		return nil
	}
}

// holds fails unless an error says all of the words.
func holds(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// after returns a context that ends then.
func after(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// vllmOrbit is the usual pair of sources.
func vllmOrbit() (*pages, *Scraper) {
	p := newPages(record.VLLM)
	return p, p.scraper(record.VLLM, managerAt)
}
