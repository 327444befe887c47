package page

import (
	"cmp"
	"encoding/json"
	"html/template"
	"image/color"
	"math"
	"slices"
	"time"

	"orbitkv/internal/trace"
)

// Bounds of the waterfalls of a report: the figure shows how a restore passes, not all of them.
const (
	waterfallsMax = 4 // of one process
	processesMax  = 6
)

// waterfall is what happened to one request by one clock.
type waterfall struct {
	request *trace.Request
	lane    *trace.Lane
}

// waterfalls returns, for each process that told of restores, the requests with the most stages. Records that cannot be read, such as those without a
// process, a request, a stage or a time, are counted and left out: no place on an axis is theirs.
func waterfalls(records []map[string]any) (found []waterfall, unplaced int) {
	c := trace.NewCollector()
	for _, r := range records {
		text, err := json.Marshal(r)
		if err != nil {
			unplaced++
			continue
		}
		record, err := trace.Parse(text)
		if err != nil {
			unplaced++
			continue
		}
		c.Add(record)
	}
	all := c.Trace()
	unplaced += all.Left.Requests + all.Left.Events + all.Left.Processes
	var lanes []waterfall
	for _, q := range all.Requests {
		for i := range q.Lanes {
			lanes = append(lanes, waterfall{q, &q.Lanes[i]})
		}
	}
	slices.SortStableFunc(lanes, func(a, b waterfall) int { return cmp.Compare(b.stages(), a.stages()) })
	return chosen(lanes), unplaced
}

func chosen(lanes []waterfall) []waterfall {
	shown := map[string]int{}
	var found []waterfall
	for _, w := range lanes {
		process := w.process()
		if len(w.lane.Events) < 2 || (shown[process] == 0 && len(shown) == processesMax) || shown[process] == waterfallsMax {
			continue
		}
		shown[process]++
		found = append(found, w)
	}
	slices.SortStableFunc(found, func(a, b waterfall) int { return cmp.Compare(a.process(), b.process()) })
	return found
}

// process names the processes of a waterfall's clock.
func (w waterfall) process() string { return w.lane.Clock() }

// stages counts the different stages and layers of a request.
func (w waterfall) stages() int {
	type step struct {
		stage string
		layer int32
	}
	seen := map[step]bool{}
	for i := range w.lane.Events {
		seen[step{w.lane.Events[i].Stage, w.lane.Events[i].Layer}] = true
	}
	return len(seen)
}

// layers returns, by layer, when its last byte arrived and when the engine passed its wait; absent where no record says it.
func (w waterfall) layers() (ready, used map[int]int64, last int) {
	ready, used, last = map[int]int64{}, map[int]int64{}, -1
	for i := range w.lane.Events {
		e := &w.lane.Events[i]
		into := used
		switch {
		case e.Layer < 0:
			continue
		case e.Stage == trace.LayerReady:
			into = ready
		case e.Stage != trace.LayerUsed:
			continue
		}
		layer := int(e.Layer)
		if _, again := into[layer]; !again {
			into[layer] = e.At
		}
		last = max(last, layer)
	}
	return ready, used, last
}

var (
	inkReady = color.NRGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff}
	inkSlack = color.NRGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}
	inkWait  = color.NRGBA{R: 0x5b, G: 0x67, B: 0x73, A: 0xff}
	inkDisk  = color.NRGBA{R: 0x9c, G: 0x3f, B: 0x7a, A: 0xff}
	inkCopy  = color.NRGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
)

// spans are the times of a request that have a bar of their own, where both ends are known.
var spans = []struct {
	from, to, name string
	ink            color.Color
}{
	{trace.Queued, trace.FirstUse, "until its first step", inkWait},
	{trace.ReadStart, trace.HostReady, "SSD to memory", inkDisk},
	{trace.RestoreSubmit, trace.GPUReady, "memory to device", inkCopy},
}

// Heights of a waterfall's parts.
const (
	layersPlot = 150.0
	spanPlot   = 20.0
	barePlot   = 14.0
)

// drawWaterfall draws one request by one clock: a bar for each span, then a row for each layer, from the moment its copies were handed over to its last
// byte, and on to the engine's pass of its wait; the other stages stand as lines across.
func drawWaterfall(w waterfall) (template.HTML, error) {
	const top, bottom, left, right = 90.0, 34.0, 122.0, figureWidth - 16
	bars := w.bars()
	plot := barePlot + spanPlot*float64(len(bars))
	layersTop := top + plot
	_, _, last := w.layers()
	if last >= 0 {
		plot += layersPlot
	}
	c, err := newCanvas(figureWidth, top+plot+bottom)
	if err != nil {
		return "", err
	}
	first := w.lane.Events[0].At
	since := func(at int64) float64 { return float64(at-first) / 1e6 }
	x := axisOf([]float64{0, math.Max(float64(w.lane.Span())/1e6, 1e-3)}, false).on(left, right)
	c.box(inkBand, left, top, right-left, plot)
	for _, tick := range x.ticks(9) {
		c.line(inkGrid, 1, 0, [2]float64{x.at(tick), top}, [2]float64{x.at(tick), top + plot})
		c.text(inkMuted, smallText, x.at(tick), top+plot+14, centred, tickText(tick))
	}
	c.text(inkMuted, smallText, right, top+plot+29, rightAligned, "ms since the request's first record by this clock")
	c.stageLines(w, x, since, top, plot)
	c.spanBars(bars, x, top+barePlot/2)
	if last >= 0 {
		c.waterfallLegend(left)
		c.layerRows(w, x, since, layersTop)
	}
	return c.finish("Timeline of request " + w.request.ID + " in " + w.process())
}

// spanBar is one span of one request, in ms since its first record.
type spanBar struct {
	name     string
	ink      color.Color
	from, to float64
}

// bars returns the spans that a request has. What was done several times, as by the ranks or after a preemption, is one from its first beginning.
func (w waterfall) bars() []spanBar {
	var bars []spanBar
	for _, s := range spans {
		if from, to, ok := w.lane.Between(s.from, s.to); ok {
			bars = append(bars, spanBar{s.name, s.ink, float64(from) / float64(time.Millisecond), float64(to) / float64(time.Millisecond)})
		}
	}
	return bars
}

// spanBars draws spans with their names at the left and their lengths in them, or behind where they are too short.
func (c *canvas) spanBars(bars []spanBar, x scale, top float64) {
	for i, bar := range bars {
		y := top + spanPlot*float64(i)
		c.box(bar.ink, x.at(bar.from), y+3, math.Max(1, x.at(bar.to)-x.at(bar.from)), spanPlot-6)
		c.text(inkMuted, smallText, x.from-6, y+spanPlot/2+3.5, rightAligned, bar.name)
		text := milliseconds(bar.to-bar.from) + " ms"
		if wide := c.measure(smallText, text); x.at(bar.to)-x.at(bar.from) > wide+12 {
			c.text(inkBand, smallText, x.at(bar.to)-6, y+spanPlot/2+3.5, rightAligned, text)
		} else {
			c.text(inkText, smallText, math.Min(x.at(bar.to)+6, x.to-wide), y+spanPlot/2+3.5, leftAligned, text)
		}
	}
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
	submitted := w.lane.Events[0].At
	if at := slices.IndexFunc(w.lane.Events, func(e trace.Event) bool { return e.Stage == trace.RestoreSubmit }); at >= 0 {
		submitted = w.lane.Events[at].At
	}
	each := (layersPlot - 8) / float64(last+1)
	for layer := range last + 1 {
		y := top + 4 + each*float64(layer)
		arrived, isReady := ready[layer]
		passed, isUsed := used[layer]
		if isReady {
			c.span(inkReady, x, since(min(submitted, arrived)), since(arrived), y, each)
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
		c.text(inkMuted, smallText, x.from-6, top+4+each*(float64(last)+0.5)+3.5, rightAligned, "layer "+grouped(int64(last)))
	}
}

func (c *canvas) span(ink color.Color, x scale, from, to, y, height float64) {
	c.box(ink, x.at(from), y, math.Max(0.8, x.at(to)-x.at(from)), math.Max(1, height*0.8))
}

// stageLines marks the stages that are no layer's, their names in four rows so that neighbours do not cover one another.
func (c *canvas) stageLines(w waterfall, x scale, since func(int64) float64, top, plot float64) {
	rowEnds := [4]float64{math.Inf(-1), math.Inf(-1), math.Inf(-1), math.Inf(-1)}
	for i := range w.lane.Events {
		e := &w.lane.Events[i]
		if e.Layer >= 0 {
			continue
		}
		at := x.at(since(e.At))
		c.line(inkText, 1.1, 3, [2]float64{at, top - 4}, [2]float64{at, top + plot})
		name := words(e.Stage)
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
