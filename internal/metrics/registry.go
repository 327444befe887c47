package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"orbitkv/internal/cache"
)

// Registry is every metric of one Manager.
type Registry struct {
	Gatherer    prometheus.Gatherer
	Channel     *Channel
	HTTPRefused *prometheus.CounterVec // connections, requests and verifications that found an HTTP bound reached, by bound
}

// New makes the metrics of a Manager whose cache is read with stats. Go's and the process's own metrics are among them.
func New(stats func() cache.Stats, version string) *Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "orbitkv_build_info", Help: "Always 1; the label is the release.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	reg.MustRegister(build, newCollector(stats))
	httpCounter := prometheus.NewCounterVec(options(httpRefused), httpRefused.labels)
	reg.MustRegister(httpCounter)
	return &Registry{Gatherer: reg, Channel: newChannel(reg), HTTPRefused: httpCounter}
}

// collector reads one snapshot of the cache a scrape.
type collector struct {
	stats        func() cache.Stats
	rows         []row
	descriptions []*prometheus.Desc
}

func newCollector(stats func() cache.Stats) *collector {
	c := &collector{stats: stats}
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
	stats := c.stats()
	for i, r := range c.rows {
		kind := prometheus.GaugeValue
		if r.kind == Counter {
			kind = prometheus.CounterValue
		}
		for _, s := range r.read(stats) {
			if len(r.labels) == 0 {
				out <- prometheus.MustNewConstMetric(c.descriptions[i], kind, s.value)
			} else {
				out <- prometheus.MustNewConstMetric(c.descriptions[i], kind, s.value, s.label)
			}
		}
	}
}
