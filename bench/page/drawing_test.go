package page

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestAxes holds every value, keeps ticks inside, in order and few, and never divides by nothing.
func TestAxes(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range 2000 {
		values := make([]float64, random.IntN(6))
		for i := range values {
			values[i] = math.Pow(10, 12*random.Float64()-6)
			if random.IntN(4) == 0 {
				values[i] = -values[i]
			}
			if random.IntN(8) == 0 {
				values[i] = []float64{0, math.NaN(), math.Inf(1), math.Inf(-1)}[random.IntN(4)]
			}
		}
		for name, s := range map[string]scale{
			"log": axisOf(values, true), "linear": axisOf(values, false), "tight": tightAxisOf(values), "symmetric": symmetric(values),
		} {
			where := fmt.Sprintf("seed %d, round %d, %s axis of %v", seed, round, name, values)
			s = s.on(100, 0)
			if !(s.low < s.high) || math.IsInf(s.high-s.low, 0) {
				t.Fatalf("%s: from %g to %g", where, s.low, s.high)
			}
			for _, v := range values {
				if at := s.at(v); !math.IsNaN(v) && (math.IsNaN(at) || at < 0 || at > 100) {
					t.Fatalf("%s: %g is at %g", where, v, at)
				}
				if !math.IsNaN(v) && !math.IsInf(v, 0) && (v < s.low || v > s.high) {
					t.Fatalf("%s: %g is outside of %g to %g", where, v, s.low, s.high)
				}
			}
			ticks := s.ticks(5)
			if len(ticks) == 0 || len(ticks) > 14 {
				t.Fatalf("%s: ticks %v", where, ticks)
			}
			for i, tick := range ticks {
				if i > 0 && tick <= ticks[i-1] || tick < s.low-1e-9*(s.high-s.low) || tick > s.high+1e-9*(s.high-s.low) || tickText(tick) == "\u22120" {
					t.Fatalf("%s: from %g to %g has ticks %v", where, s.low, s.high, ticks)
				}
			}
		}
	}
}

// TestTickText reads as people write numbers.
func TestTickText(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.1 + 0.2: "0.3", -20: "\u221220", 1e6: "1,000,000", 2500: "2500", -12345: "\u221212,345"} {
		if got := tickText(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

// TestThinned keeps the ends and the bound.
func TestThinned(t *testing.T) {
	dots := make([]dot, 10_001)
	for i := range dots {
		dots[i].value = float64((i * 7919) % len(dots))
	}
	kept := thinned(dots)
	if len(kept) != dotsMax || kept[0].value != 0 || kept[len(kept)-1].value != 10_000 {
		t.Errorf("%d of %d dots, from %v to %v", len(kept), len(dots), kept[0], kept[len(kept)-1])
	}
	if ranks := thinnedRanks(10_001); len(ranks) != dotsMax || ranks[0] != 0 || ranks[len(ranks)-1] != 10_000 {
		t.Errorf("%d ranks, from %d to %d", len(ranks), ranks[0], ranks[len(ranks)-1])
	}
	if few := thinned(dots[:dotsMax]); &few[0] != &dots[0] {
		t.Error("few dots are copied or reordered")
	}
}

// TestMarks draws a mark for each sample, an outline where its source is odd, and the n of the strip.
func TestMarks(t *testing.T) {
	one := strip{backend: "orbitkv", source: "external", n: 3, dots: []dot{{10, false}, {11, false}, {12, true}}, median: 11, low: 10, high: 12}
	svg, err := drawStrips("x", []stripPanel{{title: "after pressure", unit: "ms", groups: []stripGroup{{"1,024 tokens", []strip{one}}}}}, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	ink := strings.ToUpper(hex(styles["orbitkv"].ink))
	// One mark of the legend and two samples are filled; the outline, the whisker, its two ends and the median are lines.
	if filled, lines := strings.Count(string(svg), "style=\"fill:"+ink+"\""), strings.Count(string(svg), ";stroke:"+ink); filled != 3 || lines != 5 {
		t.Errorf("%d filled marks and %d lines", filled, lines)
	}
	for _, want := range []string{">3</text>", ">11.0</text>", ">external</text>", "outline: another cache source"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the figure does not have %q", want)
		}
	}
}

// TestUnknownValues draws differences and bars of which parts are not known.
func TestUnknownValues(t *testing.T) {
	nan := math.NaN()
	forest, err := drawForest(contrast{"orbitkv", "native", []difference{{"cold", nan, nan, nan, 0}, {"after", -3, nan, nan, 2}}})
	if err != nil {
		t.Fatal(err)
	}
	link, err := drawLink([]linkRow{{"orbitkv", "orbitkv", -1, nan, ""}})
	if err != nil {
		t.Fatal(err)
	}
	for _, svg := range []string{string(forest), string(link)} {
		if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("a figure has a coordinate that is no number: %s", svg)
		}
	}
}

func event0(stage, request string, pid, at int64) map[string]any {
	return map[string]any{"stage": stage, "request_id": request, "engine": "vllm", "pid": float64(pid), "monotonic_ns": float64(at)}
}

// TestWaterfalls never brings the times of two processes onto one axis, and bounds what is drawn.
func TestWaterfalls(t *testing.T) {
	records := []map[string]any{
		event0("gpu_ready", "a", 2, 900), event0("queued", "a", 1, 5), event0("restore_submit", "a", 2, 100), event0("first_use", "a", 1, 7),
		{"stage": "queued"},
		event0("queued", "alone", 3, 1),
	}
	found, unplaced := waterfalls(records)
	if len(found) != 2 || unplaced != 1 {
		t.Fatalf("%d waterfalls, %d unplaced: %v", len(found), unplaced, found)
	}
	for _, w := range found {
		if len(w.lane.Events) != 2 || w.lane.Span() < 0 || w.lane.Span() > 1000 {
			t.Errorf("%s has %v", w.process(), w.lane.Events)
		}
	}
	again := event0("queued", "a", 1, 50)
	again["attempt"] = float64(2)
	if found, _ = waterfalls(append(records, again)); len(found) != 2 || len(found[0].lane.Events) != 2 {
		t.Errorf("a process id of another start joined the first: %v", found)
	}
	var many []map[string]any
	for pid := range int64(20) {
		for request := range 20 {
			name := fmt.Sprint("r", request)
			many = append(many, event0("queued", name, pid, 1), event0("gpu_ready", name, pid, 2))
		}
	}
	if found, _ = waterfalls(many); len(found) != waterfallsMax*processesMax {
		t.Errorf("%d waterfalls of many", len(found))
	}
}
