package page

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"strings"
	"sync"

	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font/opentype"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// canvas draws one figure. Its units are pixels at the page's full width, and y grows downwards.
type canvas struct {
	svg    *vgsvg.Canvas
	face   *opentype.Font
	height float64
	width  float64
}

// align says which point of a text its x names.
type align int

const (
	leftAligned align = iota
	centred
	rightAligned
)

// Sizes of text in a figure.
const (
	smallText  = 10.0
	normalText = 11.5
)

// The inks of what is no backend's. A figure lies on a light panel in light and dark pages alike.
var (
	inkText  = color.NRGBA{R: 0x1f, G: 0x29, B: 0x33, A: 0xff}
	inkMuted = color.NRGBA{R: 0x5b, G: 0x67, B: 0x73, A: 0xff}
	inkGrid  = color.NRGBA{R: 0xe3, G: 0xe7, B: 0xeb, A: 0xff}
	inkAxis  = color.NRGBA{R: 0x9a, G: 0xa5, B: 0xb1, A: 0xff}
	inkBand  = color.NRGBA{R: 0xf6, G: 0xf8, B: 0xfa, A: 0xff}
)

// textFont is the font that texts are measured by. The page asks for it or one of equal widths and does not carry it.
var textFont = sync.OnceValues(func() (*opentype.Font, error) { return opentype.Parse(liberationsansregular.TTF) })

func newCanvas(width, height float64) (*canvas, error) {
	face, err := textFont()
	if err != nil {
		return nil, fmt.Errorf("page: the font that figures are measured by: %w", err)
	}
	svg := vgsvg.NewWith(vgsvg.UseWH(vg.Length(width), vg.Length(height)))
	return &canvas{svg: svg, face: face, width: width, height: height}, nil
}

func (c *canvas) point(x, y float64) vg.Point {
	return vg.Point{X: vg.Length(x), Y: vg.Length(c.height - y)}
}

// line draws from point to point; dash is the length of dashes and gaps, 0 for a whole line.
func (c *canvas) line(ink color.Color, width, dash float64, points ...[2]float64) {
	if len(points) < 2 {
		return
	}
	var path vg.Path
	path.Move(c.point(points[0][0], points[0][1]))
	for _, p := range points[1:] {
		path.Line(c.point(p[0], p[1]))
	}
	c.svg.SetColor(ink)
	c.svg.SetLineWidth(vg.Length(width))
	var dashes []vg.Length
	if dash > 0 {
		dashes = []vg.Length{vg.Length(dash), vg.Length(dash)}
	}
	c.svg.SetLineDash(dashes, 0)
	c.svg.Stroke(path)
}

// box fills a rectangle.
func (c *canvas) box(ink color.Color, x, y, width, height float64) {
	var path vg.Path
	path.Move(c.point(x, y))
	path.Line(c.point(x+width, y))
	path.Line(c.point(x+width, y+height))
	path.Line(c.point(x, y+height))
	path.Close()
	c.svg.SetColor(ink)
	c.svg.Fill(path)
}

// mark draws a sample: filled, or its outline alone.
func (c *canvas) mark(s style, x, y, radius float64, hollow bool) {
	var path vg.Path
	switch s.corners {
	case 0:
		path.Move(c.point(x+radius, y))
		path.Arc(c.point(x, y), vg.Length(radius), 0, 2*math.Pi)
	default:
		for corner := range s.corners {
			angle := s.turn + 2*math.Pi*float64(corner)/float64(s.corners)
			p := c.point(x+1.15*radius*math.Cos(angle), y-1.15*radius*math.Sin(angle))
			if corner == 0 {
				path.Move(p)
			} else {
				path.Line(p)
			}
		}
	}
	path.Close()
	if hollow {
		c.svg.SetColor(s.ink)
		c.svg.SetLineWidth(1.3)
		c.svg.SetLineDash(nil, 0)
		c.svg.Stroke(path)
		return
	}
	c.svg.SetColor(s.ink)
	c.svg.Fill(path)
	c.svg.SetColor(inkBand) // an edge keeps marks that lie on one another apart
	c.svg.SetLineWidth(0.6)
	c.svg.SetLineDash(nil, 0)
	c.svg.Stroke(path)
}

// text writes one line whose baseline is y; characters that no figure should hold are made visible.
func (c *canvas) text(ink color.Color, size, x, y float64, a align, s string) {
	s = oneLine(s)
	switch a {
	case centred:
		x -= c.measure(size, s) / 2
	case rightAligned:
		x -= c.measure(size, s)
	case leftAligned:
	}
	c.svg.SetColor(ink)
	c.svg.FillString(c.font(size), c.point(x, y), s)
}

func (c *canvas) font(size float64) font.Face {
	return font.Face{Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)}, Face: c.face}
}

// measure returns the width of a text.
func (c *canvas) measure(size float64, s string) float64 {
	face := c.font(size)
	return face.Width(s).Points()
}

// fit shortens a text to a width, with an ellipsis where something is gone.
func (c *canvas) fit(size, width float64, s string) string {
	s = oneLine(s)
	if c.measure(size, s) <= width {
		return s
	}
	letters := []rune(s)
	for len(letters) > 1 && c.measure(size, string(letters)+"…") > width {
		letters = letters[:len(letters)-1]
	}
	return string(letters) + "…"
}

// headEnd ends the head that the SVG writer puts before its drawing: an XML declaration and namespaces, which a page has no use for.
const headEnd = `xmlns:xlink="http://www.w3.org/1999/xlink">`

// errNoHead says that the SVG writer's head is not what this package knows how to take off.
var errNoHead = errors.New("page: the SVG writer's output does not begin as expected; bench/page must follow the new version of gonum.org/v1/plot")

// finish returns the figure as an element of a page. The label is what a screen reader says.
func (c *canvas) finish(label string) (template.HTML, error) {
	var out bytes.Buffer
	if _, err := c.svg.WriteTo(&out); err != nil {
		return "", fmt.Errorf("page: drawing %q: %w", label, err)
	}
	_, drawing, found := strings.Cut(out.String(), headEnd)
	if !found {
		return "", errNoHead
	}
	head := fmt.Sprintf(`<svg viewBox="0 0 %g %g" style="max-width:%gpx" role="img" aria-label="%s">`,
		c.width, c.height, c.width, template.HTMLEscapeString(oneLine(label)))
	// Everything in the drawing comes from this package's own marks and from texts that the SVG writer escaped.
	return template.HTML(head + drawing), nil
}
