package page

import (
	"html/template"
	"image/color"
	"math"
)

// linkRow is one backend and length: what a restore adds to the time to first text beside what the link alone needs for the same bytes.
type linkRow struct {
	backend string
	label   string
	exposed float64 // ms; may be negative
	link    float64 // ms; NaN when the link or the bytes are not known
	note    string  // right of the bars
}

// drawLink draws two bars for each row on one axis that begins at 0.
func drawLink(rows []linkRow) (template.HTML, error) {
	const space, top, bottom = 40.0, 34.0, 30.0
	c, err := newCanvas(figureWidth, top+space*float64(len(rows))+bottom)
	if err != nil {
		return "", err
	}
	var values []float64
	for _, row := range rows {
		values = append(values, row.exposed, row.link)
	}
	left, right, end := labelColumn, figureWidth-valueColumn-60, top+space*float64(len(rows))
	axis := axisOf(values, false).on(left, right)
	c.box(inkBand, left, top, right-left, end-top)
	for _, tick := range axis.ticks(7) {
		at := axis.at(tick)
		c.line(inkGrid, 1, 0, [2]float64{at, top}, [2]float64{at, end})
		c.text(inkMuted, smallText, at, end+14, centred, tickText(tick))
	}
	c.box(inkMuted, left, 9, 12, 8)
	c.text(inkText, normalText, left+18, 17, leftAligned, "exposed restore time, ms")
	c.box(pale(inkMuted), left+190, 9, 12, 8)
	c.text(inkText, normalText, left+208, 17, leftAligned, "the link alone, same bytes, ms")
	for i, row := range rows {
		y := top + space*float64(i)
		ink := styleOf(row.backend).ink
		c.mark(styleOf(row.backend), 10, y+space/2, 4.5, false)
		c.text(inkText, normalText, 22, y+space/2+4, leftAligned, c.fit(normalText, labelColumn-30, row.label))
		c.bar(ink, axis, row.exposed, y+7)
		if !math.IsNaN(row.link) {
			c.bar(pale(ink), axis, row.link, y+21)
		}
		c.text(inkText, smallText, right+10, y+space/2+4, leftAligned, c.fit(smallText, figureWidth-right-12, row.note))
	}
	c.line(inkAxis, 1, 0, [2]float64{axis.at(0), top}, [2]float64{axis.at(0), end})
	return c.finish("Exposed restore time beside the time that the link alone needs")
}

func (c *canvas) bar(ink color.Color, axis scale, value, y float64) {
	from, to := axis.at(0), axis.at(value)
	c.box(ink, math.Min(from, to), y, math.Max(1, math.Abs(to-from)), 12)
}
