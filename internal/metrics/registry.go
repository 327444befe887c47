package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"orbitkv/internal/cache"
	"orbitkv/internal/ssd"
)

// Registry is every metric of one Manager.
type Registry struct {
	Gatherer    prometheus.Gatherer
	Channel     *Channel
	HTTPRefused *prometheus.CounterVec // connections, requests and verifications that found an HTTP bound reached, by bound
}

// Tier is how the numbers of the SSD tier are read.
type Tier struct {
	Stats          func() ssd.Stats
	DemandsDropped func() uint64 // queries whose pages the store was not told of
}

// New makes the metrics of a Manager whose cache is read with stats and whose SSD tier with tier, nil where there is none. Go's and the process's own
// metrics are among them.
func New(stats func() cache.Stats, tier *Tier, version string) *Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "orbitkv_build_info", Help: "Always 1; the label is the release.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	reg.MustRegister(build, newCollector(stats, tier))
	httpCounter := prometheus.NewCounterVec(options(httpRefused), httpRefused.labels)
	reg.MustRegister(httpCounter)
	return &Registry{Gatherer: reg, Channel: newChannel(reg), HTTPRefused: httpCounter}
}

// collector reads one snapshot of cache and SSD tier a scrape.
type collector struct {
	stats        func() cache.Stats
	tier         *Tier // nil without an SSD tier
	rows         []row
	descriptions []*prometheus.Desc
}

func newCollector(stats func() cache.Stats, tier *Tier) *collector {
	c := &collector{stats: stats, tier: tier}
	for _, r := range table {
		if r.read != nil {
			c.rows = append(c.rows, r)
			c.descriptions = append(c.descriptions, prometheus.NewDesc(r.name, r.help, r.labels, nil))
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descriptions {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	now := snapshot{cache: c.stats()}
	if c.tier != nil {
		stats := c.tier.Stats()
		now.ssd, now.demandsDropped = &stats, c.tier.DemandsDropped()
	}
	for i, r := range c.rows {
		for _, s := range r.read(now) {
			out <- r.metric(c.descriptions[i], s)
		}
	}
}

// metric makes one sample what Prometheus takes.
func (r row) metric(description *prometheus.Desc, s sample) prometheus.Metric {
	var labels []string
	if len(r.labels) > 0 {
		labels = []string{s.label}
	}
	switch r.kind {
	case Histogram:
		return prometheus.MustNewConstHistogram(description, s.durations.Count, s.durations.Sum, buckets(s.durations), labels...)
	case Counter:
		return prometheus.MustNewConstMetric(description, prometheus.CounterValue, s.value, labels...)
	}
	return prometheus.MustNewConstMetric(description, prometheus.GaugeValue, s.value, labels...)
}

// buckets counts as Prometheus does: each bucket with all that are below it.
func buckets(h ssd.Histogram) map[float64]uint64 {
	counts := map[float64]uint64{}
	var below uint64
	for i, bound := range ssd.DurationBounds {
		below += h.Counts[i]
		counts[bound] = below
	}
	return counts
}
