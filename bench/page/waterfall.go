package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strings"
)

// Bounds of the waterfalls: the figure shows how a restore passes, not all of them.
const (
	waterfallsMax = 4 // of one process
	processesMax  = 6
	layersMax     = 256 // drawn of one request
)

// event is one record of a timeline. Its time compares with those of the same process only.
type event struct {
	stage string
	at    int64 // ns
	layer int   // -1 where the stage has none
}

// waterfall is the records of one request in one process.
type waterfall struct {
	process string
	request string
	events  []event // in order of time
}

// waterfalls returns, for each process that told of restores, the requests with the most stages. Records without a process, a request, a stage or a time
// are counted and left out: no place on an axis is theirs.
func waterfalls(records []map[string]any) (found []waterfall, unplaced int) {
	type key struct{ process, request string }
	grouped := map[key]*waterfall{}
	var order []*waterfall
	for _, r := range records {
		stage, request := textOf(r["stage"]), textOf(r["request_id"])
		pid, hasPID := wholeOf(r["pid"])
		at, hasTime := wholeOf(r["monotonic_ns"])
		if stage == "" || request == "" || !hasPID || !hasTime {
			unplaced++
			continue
		}
		e := event{stage: stage, at: at, layer: -1}
		if layer, ok := wholeOf(r["layer"]); ok && layer >= 0 && layer < math.MaxInt32 {
			e.layer = int(layer)
		}
		k := key{processName(r, pid), request}
		if grouped[k] == nil {
			grouped[k] = &waterfall{process: k.process, request: request}
			order = append(order, grouped[k])
		}
		grouped[k].events = append(grouped[k].events, e)
	}
	for _, w := range order {
		slices.SortStableFunc(w.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	}
	slices.SortStableFunc(order, func(a, b *waterfall) int { return cmp.Compare(b.stages(), a.stages()) })
	return chosen(order), unplaced
}

func chosen(order []*waterfall) []waterfall {
	shown := map[string]int{}
	var found []waterfall
	for _, w := range order {
		if len(w.events) < 2 || (shown[w.process] == 0 && len(shown) == processesMax) || shown[w.process] == waterfallsMax {
			continue
		}
		shown[w.process]++
		found = append(found, *w)
	}
	slices.SortStableFunc(found, func(a, b waterfall) int { return cmp.Compare(a.process, b.process) })
	return found
}

// processName tells processes apart: a process id may come again in another start.
func processName(r map[string]any, pid int64) string {
	var name []string
	for _, field := range []string{"backend", "engine"} {
		if word := textOf(r[field]); word != "" {
			name = append(name, word)
		}
	}
	for _, field := range []string{"pass", "attempt"} {
		if n, ok := wholeOf(r[field]); ok {
			name = append(name, fmt.Sprintf("%s %d", field, n))
		}
	}
	return strings.Join(append(name, fmt.Sprintf("process %d", pid)), ", ")
}

func textOf(v any) string {
	s, _ := v.(string)
	return s
}

func wholeOf(v any) (int64, bool) {
	switch n := v.(type) {
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < math.MaxInt64
	case int64:
		return n, true
	case int:
		return int64(n), true
	case json.Number:
		whole, err := n.Int64()
		return whole, err == nil
	}
	return 0, false
}

// stages counts the different stages and layers of a request.
func (w *waterfall) stages() int {
	seen := map[event]bool{}
	for _, e := range w.events {
		seen[event{stage: e.stage, layer: e.layer}] = true
	}
	return len(seen)
}

// layers returns, by layer, when its last byte arrived and when the engine passed its wait; 0 and false where no record says it.
func (w *waterfall) layers() (ready, used map[int]int64, last int) {
	ready, used, last = map[int]int64{}, map[int]int64{}, -1
	for _, e := range w.events {
		if e.layer < 0 || e.layer >= layersMax {
			continue
		}
		into := used
		switch e.stage {
		case "layer_ready":
			into = ready
		case "layer_used":
		default:
			continue
		}
		if _, again := into[e.layer]; !again {
			into[e.layer] = e.at
		}
		last = max(last, e.layer)
	}
	return ready, used, last
}

var (
	inkReady = color.NRGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff}
	inkSlack = color.NRGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}
)

// Heights of a waterfall with layers and of one without.
const (
	layersPlot = 150.0
	barePlot   = 34.0
)

// drawWaterfall draws one request: a row for each layer, from the moment its copies were handed over to its last byte, and on to the engine's pass
// of its wait; the other stages stand as lines across.
func drawWaterfall(w waterfall) (template.HTML, error) {
	const top, bottom, left, right = 76.0, 34.0, 64.0, figureWidth - 16
	plot := barePlot
	if _, _, last := w.layers(); last >= 0 {
		plot = layersPlot
	}
	c, err := newCanvas(figureWidth, top+plot+bottom)
	if err != nil {
		return "", err
	}
	first, end := w.events[0].at, w.events[len(w.events)-1].at
	since := func(at int64) float64 { return float64(at-first) / 1e6 }
	x := axisOf([]float64{0, math.Max(since(end), 1e-3)}, false).on(left, right)
	c.box(inkBand, left, top, right-left, plot)
	for _, tick := range x.ticks(9) {
		c.line(inkGrid, 1, 0, [2]float64{x.at(tick), top}, [2]float64{x.at(tick), top + plot})
		c.text(inkMuted, smallText, x.at(tick), top+plot+14, centred, tickText(tick))
	}
	c.text(inkMuted, smallText, right, top+plot+29, rightAligned, "ms since the request's first record in this process")
	if plot == layersPlot {
		c.waterfallLegend(left)
		c.layerRows(w, x, since, top)
	} else {
		c.text(inkMuted, smallText, left, 15, leftAligned, "no layer's record in this process")
	}
	c.stageLines(w, x, since, top, plot)
	return c.finish("Timeline of request " + w.request + " in " + w.process)
}

func (c *canvas) waterfallLegend(x float64) {
	for _, item := range []struct {
		ink  color.Color
		text string
	}{{inkReady, "copies handed over → layer's last byte"}, {inkSlack, "layer ready → engine passed its wait"}} {
		c.box(item.ink, x, 7, 12, 8)
		c.text(inkText, smallText, x+17, 15, leftAligned, item.text)
		x += 17 + c.measure(smallText, item.text) + 22
	}
}

func (c *canvas) layerRows(w waterfall, x scale, since func(int64) float64, top float64) {
	ready, used, last := w.layers()
	submitted := w.events[0].at
	for _, e := range w.events {
		if e.stage == "restore_submit" {
			submitted = e.at
			break
		}
	}
	each := (layersPlot - 8) / float64(last+1)
	for layer := range last + 1 {
		y := top + 4 + each*float64(layer)
		arrived, isReady := ready[layer]
		passed, isUsed := used[layer]
		if isReady {
			c.span(inkReady, x, since(submitted), since(arrived), y, each)
		}
		if isUsed && isReady && passed > arrived {
			c.span(inkSlack, x, since(arrived), since(passed), y, each)
		}
		if isUsed {
			c.box(inkText, x.at(since(passed))-0.8, y, 1.6, math.Max(1, each*0.8))
		}
	}
	c.text(inkMuted, smallText, x.from-6, top+4+each/2+3.5, rightAligned, "layer 0")
	if last > 0 {
		c.text(inkMuted, smallText, x.from-6, top+4+each*(float64(last)+0.5)+3.5, rightAligned, fmt.Sprintf("layer %d", last))
	}
}

func (c *canvas) span(ink color.Color, x scale, from, to, y, height float64) {
	c.box(ink, x.at(from), y, math.Max(0.8, x.at(to)-x.at(from)), math.Max(1, height*0.8))
}

// stageLines marks the stages that are no layer's, their names in three rows so that neighbours do not cover one another.
func (c *canvas) stageLines(w waterfall, x scale, since func(int64) float64, top, plot float64) {
	rowEnds := [3]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1)}
	for _, e := range w.events {
		if e.layer >= 0 {
			continue
		}
		at := x.at(since(e.at))
		c.line(inkText, 1.1, 3, [2]float64{at, top - 4}, [2]float64{at, top + plot})
		name := words(e.stage)
		wide := c.measure(smallText, name)
		from := math.Max(x.from, math.Min(at-wide/2, x.to-wide))
		for row, end := range rowEnds {
			if from > end+6 {
				c.text(inkText, smallText, from, top-9-14*float64(row), leftAligned, name)
				rowEnds[row] = from + wide
				break
			}
		}
	}
}
