package page

import (
	"html/template"
	"math"
	"slices"
)

// dot is one sample of a figure.
type dot struct {
	value float64
	odd   bool // its cache source is another than its phase is meant to show
}

// strip is the samples of one backend in one state, with their median and its interval where the summary gives them.
type strip struct {
	backend           string
	source            string // of the KV; empty where the strip is not of one source
	dots              []dot
	n                 int
	median, low, high float64 // NaN when not known
}

// stripGroup is the strips of one value on the x axis.
type stripGroup struct {
	label  string
	strips []strip
}

// stripPanel is one set of axes.
type stripPanel struct {
	title  string
	unit   string
	groups []stripGroup
}

const (
	figureWidth = 880.0
	// dotsMax bounds the dots of one strip; from more samples, as many are drawn at even ranks, the smallest and the largest among them.
	dotsMax     = 400
	legendSpace = 30.0
	panelSpace  = 262.0
	plotSpace   = 170.0 // of a panel, between its title and its labels
)

// drawStrips draws panels in columns under a legend. With shared, all panels have one y axis, so that states may be compared by eye.
func drawStrips(label string, panels []stripPanel, columns int, shared bool) (template.HTML, error) {
	rows := (len(panels) + columns - 1) / columns
	c, err := newCanvas(figureWidth, legendSpace+panelSpace*float64(rows))
	if err != nil {
		return "", err
	}
	backends, odd := stripBackends(panels)
	c.legend(backends, odd)
	var all []float64
	for _, p := range panels {
		all = append(all, p.values()...)
	}
	width := figureWidth / float64(columns)
	for i, p := range panels {
		axis := axisOf(all, true)
		if !shared {
			axis = axisOf(p.values(), false)
		}
		c.stripPanel(p, axis, float64(i%columns)*width, legendSpace+float64(i/columns)*panelSpace, width)
	}
	return c.finish(label)
}

func stripBackends(panels []stripPanel) (backends []string, odd bool) {
	for _, p := range panels {
		for _, g := range p.groups {
			for _, s := range g.strips {
				if !slices.Contains(backends, s.backend) {
					backends = append(backends, s.backend)
				}
				odd = odd || slices.ContainsFunc(s.dots, func(d dot) bool { return d.odd })
			}
		}
	}
	return backends, odd
}

func (p stripPanel) hasMedians() bool {
	return slices.ContainsFunc(p.groups, func(g stripGroup) bool {
		return slices.ContainsFunc(g.strips, func(s strip) bool { return !math.IsNaN(s.median) })
	})
}

func (p stripPanel) values() []float64 {
	var values []float64
	for _, g := range p.groups {
		for _, s := range g.strips {
			for _, d := range s.dots {
				values = append(values, d.value)
			}
			values = append(values, s.median, s.low, s.high)
		}
	}
	return values
}

// legend names the backends along the top edge.
func (c *canvas) legend(backends []string, odd bool) {
	x := 56.0
	for _, backend := range backends {
		c.mark(styleOf(backend), x+5, 12, 4.5, false)
		c.text(inkText, normalText, x+15, 16, leftAligned, backend)
		x += 15 + c.measure(normalText, backend) + 22
	}
	if odd {
		c.mark(style{ink: inkMuted}, x+5, 12, 4, true)
		c.text(inkMuted, normalText, x+15, 16, leftAligned, "outline: another cache source than this state is meant to show")
	}
}

// frame draws title, grid and labels of a panel's y axis and returns its scale.
func (c *canvas) frame(title, unit string, axis scale, left, top, right, bottom float64) scale {
	y := axis.on(bottom, top)
	c.box(inkBand, left, top, right-left, bottom-top)
	for _, tick := range y.ticks(5) {
		at := y.at(tick)
		c.line(inkGrid, 1, 0, [2]float64{left, at}, [2]float64{right, at})
		c.text(inkMuted, smallText, left-6, at+3.5, rightAligned, tickText(tick))
	}
	if y.low < 0 && y.high > 0 {
		c.line(inkAxis, 1, 0, [2]float64{left, y.at(0)}, [2]float64{right, y.at(0)})
	}
	c.line(inkAxis, 1, 0, [2]float64{left, bottom}, [2]float64{right, bottom})
	c.text(inkText, normalText, left, top-9, leftAligned, title)
	kind := unit
	if y.log {
		kind += ", logarithmic"
	}
	c.text(inkMuted, smallText, left+c.measure(normalText, title)+10, top-9, leftAligned, kind)
	return y
}

func (c *canvas) stripPanel(p stripPanel, axis scale, x, top, width float64) {
	left, right := x+56, x+width-10
	from, to := top+24, top+24+plotSpace
	y := c.frame(p.title, p.unit, axis, left, from, right, to)
	c.text(inkMuted, smallText, left-6, to+15, rightAligned, "n")
	columns := 0
	for _, g := range p.groups {
		columns += max(1, len(g.strips))
	}
	gap := 18.0
	if columns == 0 {
		return
	}
	each := (right - left - gap*float64(len(p.groups))) / float64(columns)
	roomy, labels := each >= 40, to+30
	if roomy && p.hasMedians() {
		labels = to + 56
		c.text(inkMuted, smallText, left-6, to+28, rightAligned, "median")
		c.text(inkMuted, smallText, left-6, to+41, rightAligned, "source")
	}
	at := left
	for i, g := range p.groups {
		span := each*float64(max(1, len(g.strips))) + gap
		if i > 0 {
			c.line(inkAxis, 0.8, 0, [2]float64{at, from}, [2]float64{at, labels})
		}
		for j, s := range g.strips {
			c.strip(s, y, at+gap/2+each*(float64(j)+0.5), each, to, roomy)
		}
		c.text(inkText, smallText, at+span/2, labels, centred, c.fit(smallText, span-4, g.label))
		at += span
	}
}

// strip draws the samples, with a median on the left of the column and median and interval on the right of it, and the numbers under it.
func (c *canvas) strip(s strip, y scale, x, width, bottom float64, roomy bool) {
	look, wide := styleOf(s.backend), math.Min(width, 90)
	centre := x
	if !math.IsNaN(s.median) {
		centre = x - 0.16*wide
	}
	for i, d := range thinned(s.dots) {
		c.mark(look, centre+0.13*wide*jitter(i), y.at(d.value), 3, d.odd)
	}
	if !math.IsNaN(s.median) {
		right := x + 0.2*wide
		if !math.IsNaN(s.low) && !math.IsNaN(s.high) {
			c.line(look.ink, 1.4, 0, [2]float64{right, y.at(s.low)}, [2]float64{right, y.at(s.high)})
			for _, end := range []float64{s.low, s.high} {
				c.line(look.ink, 1.4, 0, [2]float64{right - 3, y.at(end)}, [2]float64{right + 3, y.at(end)})
			}
		}
		c.line(look.ink, 2.6, 0, [2]float64{right - 7, y.at(s.median)}, [2]float64{right + 7, y.at(s.median)})
		if roomy {
			c.text(inkText, smallText, x, bottom+28, centred, milliseconds(s.median))
			c.text(inkMuted, smallText, x, bottom+41, centred, c.fit(smallText, width-2, s.source))
		}
	}
	c.text(inkMuted, smallText, x, bottom+15, centred, grouped(int64(s.n)))
}

// jitter spreads neighbouring samples over -1 to 1, the same way each time.
func jitter(i int) float64 {
	const golden = 0.6180339887498949
	if i == 0 {
		return 0
	}
	_, part := math.Modf(float64(i) * golden)
	return 2*part - 1
}

// thinned returns at most dotsMax dots: every odd one's rank has the same chance as the others', and order is by value when any are left out.
func thinned(dots []dot) []dot {
	if len(dots) <= dotsMax {
		return dots
	}
	sorted := slices.Clone(dots)
	slices.SortFunc(sorted, func(a, b dot) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	kept := make([]dot, dotsMax)
	for i := range kept {
		kept[i] = sorted[i*(len(sorted)-1)/(dotsMax-1)]
	}
	return kept
}
