package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
)

// view is what the template shows. Its strings are texts; only SVG and Style are markup, and both come from this package.
type view struct {
	Kind     string // what the page is
	Title    string
	Facts    []string
	Findings []finding
	Sections []section
	Footer   string
	Style    template.CSS
}

// finding is one thing to know before reading on.
type finding struct {
	Mark mark
	Text string
}

// mark says how a finding is to be taken.
type mark string

const (
	good  mark = "good"
	look  mark = "look"
	plain mark = "plain" // neither
)

// Sign stands before a finding, so that it is not told by its colour alone.
func (m mark) Sign() string {
	switch m {
	case good:
		return "✓"
	case look:
		return "!"
	}
	return "•"
}

// judged is a finding that is good, or one to look at.
func judged(ok bool, text string) finding {
	if ok {
		return finding{good, text}
	}
	return finding{look, text}
}

type section struct {
	ID    string
	Title string
	Intro []string
	Parts []part
}

// part is a piece of a section; what is empty is left out.
type part struct {
	Title   string
	Text    []string
	Facts   []fact
	Narrow  bool // the facts are short and stand in two columns
	Table   *table
	Figures []figure
	Logs    []logText
}

type fact struct{ Name, Value string }

// figure is one drawing with what a reader must know beside it.
type figure struct {
	SVG     template.HTML
	Caption []string
}

// logText is text that must keep its lines.
type logText struct{ Name, Text string }

type table struct {
	Head []column
	Rows []row
}

type column struct {
	Text, Unit string
	Number     bool
}

type row struct {
	Begins bool // a rule stands above it
	Cells  []cell
}

type cell struct {
	Text, Small        string
	Chip               string // class of a backend's colour
	Number, Look, Code bool
}

//go:embed page.html
var pageText string

//go:embed page.css
var styleText string

var pageTemplate = template.Must(template.New("report").Parse(pageText))

// styleSheet returns the page's style with one class for each backend's colour.
func styleSheet() template.CSS {
	var sheet strings.Builder
	sheet.WriteString(styleText)
	for _, backend := range slices.Sorted(maps.Keys(styles)) {
		fmt.Fprintf(&sheet, ".%s { background: %s; }\n", chipOf(backend), hex(styles[backend].ink))
	}
	fmt.Fprintf(&sheet, ".%s { background: %s; }\n", otherChip, hex(styleOf("").ink))
	// The sheet is this package's own file and names and colours of its own table.
	return template.CSS(sheet.String())
}

const otherChip = "backend-other"

// chipOf returns the class of a backend's colour; what is no known backend never becomes a class name.
func chipOf(backend string) string {
	if _, known := styles[backend]; known {
		return "backend-" + backend
	}
	return otherChip
}

// Cells of the kinds that tables are made of.
func textCell(s string) cell          { return cell{Text: cleaned(s)} }
func codeCell(s string) cell          { return cell{Text: cleaned(s), Code: true} }
func numberCell(s string) cell        { return cell{Text: s, Number: true} }
func backendCell(backend string) cell { return cell{Text: oneLine(backend), Chip: chipOf(backend)} }

func countCell(n int, look bool) cell   { return cell{Text: grouped(int64(n)), Number: true, Look: look} }
func intervalCell(s, small string) cell { return cell{Text: s, Small: small, Number: true} }
