package evidence

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// metricsMax bounds one page of metrics, bytes.
	metricsMax = 8 << 20
	// valueMax bounds what a metric says, below zero too: no count of bytes comes near it, and every difference of two values is a number.
	valueMax = 1 << 62
)

// Snapshot is one look at every watched metric. A name stands for the sum over its series; where a label tells sources apart the name carries
// it, as in name{label="value"}. A metric that nobody serves has no entry.
type Snapshot struct {
	At     time.Time
	Values map[string]float64
}

// Deltas returns what changed from an earlier look, by metric. A metric that only one of them has is left out: how much it changed is unknown.
func (s Snapshot) Deltas(before Snapshot) map[string]float64 {
	deltas := map[string]float64{}
	for name, value := range s.Values {
		if old, known := before.Values[name]; known && old != value {
			deltas[name] = value - old
		}
	}
	return deltas
}

// collect reads a page of Prometheus' text form and adds the watched metrics to values.
func collect(page io.Reader, watched []watch, values map[string]float64) error {
	limited := &io.LimitedReader{R: page, N: metricsMax + 1}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(limited)
	if limited.N <= 0 {
		return fmt.Errorf("its page of metrics is longer than %d bytes", metricsMax)
	}
	if err != nil {
		return fmt.Errorf("its page of metrics is not understood: %w", err)
	}
	for _, w := range watched {
		if w.histogram != "" {
			for _, m := range families[w.histogram].GetMetric() {
				values[w.key()] += float64(m.GetHistogram().GetSampleCount())
				for _, b := range m.GetHistogram().GetBucket() { // each holds those before it, too
					values[bucketKey(w.histogram, b.GetUpperBound())] += float64(b.GetCumulativeCount())
				}
			}
			continue
		}
		sum, found := 0.0, w.after != "" && families[w.after] != nil
		for _, m := range families[w.name].GetMetric() {
			if w.label != "" && !labelled(m.GetLabel(), w.label, w.value) {
				continue
			}
			found = true
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
		if !(math.Abs(sum) <= valueMax) {
			return fmt.Errorf("its %s is %g, which no count can be", w.key(), sum)
		}
		if found {
			values[w.key()] = sum
		}
	}
	return nil
}

// bucketKey is the name of the entry of one bucket.
func bucketKey(histogram string, bound float64) string {
	return series(histogram+"_bucket", "le", strconv.FormatFloat(bound, 'g', -1, 64))
}

// labelled reports whether a series has a label with a value.
func labelled[L interface {
	GetName() string
	GetValue() string
}](labels []L, name, value string) bool {
	return slices.ContainsFunc(labels, func(l L) bool { return l.GetName() == name && l.GetValue() == value })
}

// moved names the counters that differ from an earlier look.
func (s Snapshot) moved(before Snapshot, watched []watch) []string {
	var names []string
	for _, w := range watched {
		if w.kind != counter {
			continue
		}
		now, is := s.Values[w.key()]
		then, was := before.Values[w.key()]
		if is != was || now != then {
			names = append(names, fmt.Sprintf("%s from %g to %g", w.key(), then, now))
		}
	}
	return names
}

// above names the gauges of some kinds that are not zero, and what an LMCache daemon has in flight.
func (s Snapshot) above(watched []watch, kinds ...kind) []string {
	var names []string
	for _, w := range watched {
		if value := s.Values[w.key()]; value != 0 && slices.Contains(kinds, w.kind) {
			names = append(names, fmt.Sprintf("%s is %g", w.key(), value))
		}
	}
	flights := s.inFlight()
	for _, what := range slices.Sorted(maps.Keys(flights)) {
		if n := flights[what]; n != 0 {
			names = append(names, fmt.Sprintf("%s is %g", what, n))
		}
	}
	return names
}

// inFlight returns how many transfers of an LMCache daemon were begun and have not ended; empty where there is none.
func (s Snapshot) inFlight() map[string]float64 {
	flights := map[string]float64{}
	for _, pair := range daemonPairs {
		begun, known := s.Values[pair.begun]
		if ended, also := s.Values[pair.ended]; known && also {
			flights[pair.what] = begun - ended
		}
	}
	return flights
}

// list joins what is said of several things, at most five of them.
func list(things []string) string {
	const most = 5
	if len(things) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(things[:most], ", "), len(things)-most)
	}
	return strings.Join(things, ", ")
}
