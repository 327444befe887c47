package page

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

// notKnown stands in a table where there is no figure.
const notKnown = "–"

// cleaned returns text that a page can show: valid UTF-8, terminal colours taken off, and every control or direction character made visible, so
// that what an engine printed cannot change how other text reads.
func cleaned(s string) string {
	s = strings.ToValidUTF8(withoutEscapes(s), "\uFFFD")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return '\uFFFD'
		}
		return r
	}, s)
}

// withoutEscapes takes off terminal sequences of the form ESC [ parameters letter.
func withoutEscapes(s string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "\x1b[")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		end := strings.IndexFunc(rest, func(r rune) bool { return r >= 0x40 && r <= 0x7e })
		if end < 0 {
			return out.String()
		}
		s = rest[end+1:]
	}
}

// oneLine returns cleaned text without line breaks.
func oneLine(s string) string {
	return strings.Join(strings.Fields(cleaned(s)), " ")
}

// sentence writes a line of the summary with a capital and a full stop; one that begins with a backend keeps its name.
func sentence(s string) string {
	s = oneLine(s)
	if name, _, _ := strings.Cut(s, ":"); chipOf(name) == otherChip && s != "" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return s + "."
}

// number writes a value with three significant digits or all of its whole part.
func number(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return notKnown
	case size >= 1000:
		return grouped(int64(math.Round(v)))
	case size >= 100:
		return signed(fmt.Sprintf("%.0f", v))
	case size >= 10:
		return signed(fmt.Sprintf("%.1f", v))
	}
	return signed(fmt.Sprintf("%.2f", v))
}

// signed writes a minus as wide as a plus.
func signed(s string) string { return strings.Replace(s, "-", "\u2212", 1) }

// milliseconds writes a time with one decimal from 10 ms on, so that medians of one table line up.
func milliseconds(v float64) string {
	if math.Abs(v) >= 1000 || math.IsNaN(v) || math.IsInf(v, 0) {
		return number(v)
	}
	if math.Abs(v) < 10 {
		return signed(fmt.Sprintf("%.2f", v))
	}
	return signed(fmt.Sprintf("%.1f", v))
}

// size writes bytes in binary units.
func size(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	at := 0
	for math.Abs(bytes) >= 1024 && at < len(units)-1 {
		bytes, at = bytes/1024, at+1
	}
	if at == 0 {
		return grouped(int64(bytes)) + " B"
	}
	return number(bytes) + " " + units[at]
}

// linkRate writes bytes a second in decimal units, as links are measured.
func linkRate(bytesPerS float64) string { return fmt.Sprintf("%.2f GB/s", bytesPerS/1e9) }

// moment writes a time in UTC; the zero time is not known.
func moment(t time.Time) string {
	if t.IsZero() {
		return notKnown
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// words writes a name of the records as people do: after_pressure becomes after pressure. Short names of technical terms keep their capitals.
func words(name string) string {
	switch name {
	case "hbm_hit":
		return "HBM hit"
	case "hbm":
		return "HBM"
	}
	return strings.ReplaceAll(name, "_", " ")
}

// counted writes a number with a noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(int64(n)) + " " + noun + "s"
}
