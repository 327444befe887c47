package page

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
)

// curve is the values of one backend and source in one state.
type curve struct {
	backend string
	source  string
	odd     bool // the source is another than the state is meant to show
	values  []float64
}

// curvePanel is the distributions of one state and length.
type curvePanel struct {
	title  string
	curves []curve
}

const curveSpace = 196.0 // the height of a panel

// drawCurves draws empirical distributions: at each value, which share of the samples took at most so long. The x axes differ.
func drawCurves(label string, panels []curvePanel, columns int) (template.HTML, error) {
	rows := (len(panels) + columns - 1) / columns
	c, err := newCanvas(figureWidth, legendSpace+curveSpace*float64(rows))
	if err != nil {
		return "", err
	}
	var backends []string
	for _, p := range panels {
		for _, each := range p.curves {
			if !slices.Contains(backends, each.backend) {
				backends = append(backends, each.backend)
			}
		}
	}
	c.legend(backends, false)
	width := figureWidth / float64(columns)
	for i, p := range panels {
		c.curvePanel(p, float64(i%columns)*width, legendSpace+float64(i/columns)*curveSpace, width)
	}
	return c.finish(label)
}

func (c *canvas) curvePanel(p curvePanel, x, top, width float64) {
	left, right, from, to := x+46, x+width-12, top+24, top+24+118
	y := c.frame(p.title, "ms", scale{high: 1}, left, from, right, to)
	var all []float64
	var counts []string
	for _, each := range p.curves {
		all = append(all, each.values...)
		count := fmt.Sprintf("%s %d", each.backend, len(each.values))
		if each.odd {
			count += " (" + each.source + ")"
		}
		counts = append(counts, count)
	}
	axis := tightAxisOf(all).on(left, right)
	for _, tick := range axis.ticks(5) {
		at := axis.at(tick)
		c.line(inkGrid, 1, 0, [2]float64{at, from}, [2]float64{at, to})
		c.text(inkMuted, smallText, at, to+14, centred, tickText(tick))
	}
	for _, each := range p.curves {
		c.curve(each, axis, y)
	}
	c.text(inkMuted, smallText, left, to+29, leftAligned, c.fit(smallText, width-50, "n: "+strings.Join(counts, ", ")))
}

// curve draws a step for each value, and the backend's mark on the steps where they are few enough to be told apart.
func (c *canvas) curve(each curve, x, y scale) {
	if len(each.values) == 0 {
		return
	}
	look, dash := styleOf(each.backend), 0.0
	if each.odd {
		dash = 4
	}
	sorted := slices.Sorted(slices.Values(each.values))
	steps := thinnedRanks(len(sorted))
	points := [][2]float64{{x.from, y.at(0)}, {x.at(sorted[0]), y.at(0)}}
	before := 0.0
	for _, i := range steps {
		share := float64(i+1) / float64(len(sorted))
		at := x.at(sorted[i])
		points = append(points, [2]float64{at, y.at(before)}, [2]float64{at, y.at(share)})
		before = share
	}
	points = append(points, [2]float64{x.to, y.at(1)})
	c.line(look.ink, 1.8, dash, points...)
	const marksMax = 12
	if len(sorted) <= marksMax {
		for i, v := range sorted {
			c.mark(look, x.at(v), y.at(float64(i+1)/float64(len(sorted))), 2.6, each.odd)
		}
	}
}

// thinnedRanks returns at most dotsMax ranks of n, the first and the last among them.
func thinnedRanks(n int) []int {
	kept := min(n, dotsMax)
	ranks := make([]int, kept)
	for i := range ranks {
		ranks[i] = i
		if n > dotsMax {
			ranks[i] = i * (n - 1) / (kept - 1)
		}
	}
	return ranks
}
