package page

import (
	"fmt"
	"html/template"
	"math"
)

// difference is the paired difference of one state and length.
type difference struct {
	label             string
	median, low, high float64 // NaN when not known
	n                 int
}

// contrast is one pair of backends: every difference is of the first less the second.
type contrast struct {
	first, second string
	rows          []difference
}

const (
	rowSpace    = 21.0
	labelColumn = 210.0
	valueColumn = 190.0
)

// drawForest draws one line for each difference about a zero line: left of it the first backend is faster.
func drawForest(p contrast) (template.HTML, error) {
	top, bottom := 44.0, 30.0
	c, err := newCanvas(figureWidth, top+rowSpace*float64(len(p.rows))+bottom)
	if err != nil {
		return "", err
	}
	var values []float64
	for _, row := range p.rows {
		values = append(values, row.median, row.low, row.high)
	}
	left, right, end := labelColumn, figureWidth-valueColumn, top+rowSpace*float64(len(p.rows))
	axis := symmetric(values).on(left, right)
	zero := axis.at(0)
	c.box(inkBand, left, top, right-left, end-top)
	for _, tick := range axis.ticks(7) {
		at := axis.at(tick)
		c.line(inkGrid, 1, 0, [2]float64{at, top}, [2]float64{at, end})
		c.text(inkMuted, smallText, at, end+14, centred, tickText(tick))
	}
	c.line(inkAxis, 1.2, 0, [2]float64{zero, top}, [2]float64{zero, end})
	c.text(styleOf(p.first).ink, normalText, left, top-10, leftAligned, "◂ "+p.first+" is faster")
	c.text(styleOf(p.second).ink, normalText, right, top-10, rightAligned, p.second+" is faster ▸")
	c.text(inkMuted, smallText, right+10, top-10, leftAligned, "ms: median [95 % interval], n")
	for i, row := range p.rows {
		y := top + rowSpace*(float64(i)+0.5)
		look := styleOf(p.second)
		if row.median < 0 {
			look = styleOf(p.first)
		}
		clear := row.low > 0 || row.high < 0 // false also without an interval
		c.text(inkText, smallText, left-10, y+3.5, rightAligned, c.fit(smallText, labelColumn-14, row.label))
		c.text(inkText, smallText, right+10, y+3.5, leftAligned, row.figures())
		if math.IsNaN(row.median) {
			continue
		}
		if !math.IsNaN(row.low) && !math.IsNaN(row.high) {
			c.line(look.ink, 2, 0, [2]float64{axis.at(row.low), y}, [2]float64{axis.at(row.high), y})
		}
		c.mark(look, axis.at(row.median), y, 4.2, !clear)
	}
	return c.finish(fmt.Sprintf("Paired differences of TTFT, %s less %s", p.first, p.second))
}

func (d difference) figures() string {
	interval := ""
	if !math.IsNaN(d.low) && !math.IsNaN(d.high) {
		interval = fmt.Sprintf(" [%s, %s]", plus(d.low), plus(d.high))
	}
	return fmt.Sprintf("%s%s, n=%d", plus(d.median), interval, d.n)
}

// plus writes a difference with its sign.
func plus(v float64) string {
	if v > 0 {
		return "+" + milliseconds(v)
	}
	return milliseconds(v)
}

// symmetric returns a scale with 0 in its middle.
func symmetric(values []float64) scale {
	largest := 0.0
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			largest = math.Max(largest, math.Abs(v))
		}
	}
	if largest == 0 {
		largest = 1
	}
	return scale{low: -1.08 * largest, high: 1.08 * largest}
}
