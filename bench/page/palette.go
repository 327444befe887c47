package page

import (
	"fmt"
	"image/color"
	"math"

	"orbitkv/bench/record"
)

// style is how one backend looks in every figure: a colour that people with any colour vision tell apart, and a shape besides.
type style struct {
	ink     color.NRGBA
	corners int     // of its mark; 0 is a circle
	turn    float64 // of the first corner, radians
}

// Colours are of Okabe and Ito's set, with grey for the engine alone.
var styles = map[string]style{
	record.Native:  {ink: color.NRGBA{R: 0x55, G: 0x5b, B: 0x61, A: 0xff}},
	record.CPU:     {ink: color.NRGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}, corners: 4, turn: math.Pi / 4},
	record.OrbitKV: {ink: color.NRGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}, corners: 4},
	record.LMCache: {ink: color.NRGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}, corners: 3, turn: math.Pi / 2},
	record.FlexKV:  {ink: color.NRGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}, corners: 3, turn: -math.Pi / 2},
}

// styleOf returns a backend's looks; a backend that is not known gets one look of its own.
func styleOf(backend string) style {
	if s, ok := styles[backend]; ok {
		return s
	}
	return style{ink: color.NRGBA{R: 0xb8, G: 0x86, B: 0x0b, A: 0xff}, corners: 5, turn: math.Pi / 2}
}

// pale returns a colour on the way to white. It is opaque: the SVG writer rounds colours that are not.
func pale(ink color.NRGBA) color.NRGBA {
	part := func(v uint8) uint8 { return uint8((2*int(v) + 3*0xff) / 5) }
	return color.NRGBA{R: part(ink.R), G: part(ink.G), B: part(ink.B), A: 0xff}
}

// hex writes a colour for a style sheet.
func hex(ink color.NRGBA) string {
	return fmt.Sprintf("#%02x%02x%02x", ink.R, ink.G, ink.B)
}
