package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// none stands where there is nothing to say.
const none = "-"

// text builds a page for a terminal; it is written in one piece.
type text struct{ bytes.Buffer }

func (t *text) line(format string, args ...any) {
	t.WriteString(strings.Map(visible, fmt.Sprintf(format, args...)) + "\n")
}

func (t *text) title(format string, args ...any) {
	t.line("\n"+format, args...)
}

// table writes rows below a head, without the columns in which no row says anything. Numbers come padded to equal widths, so that they stand
// right-aligned under their unit.
func (t *text) table(head []string, rows [][]string) {
	says := make([]bool, len(head))
	for _, row := range rows {
		for i, cell := range row {
			says[i] = says[i] || !slices.Contains([]string{"", none}, strings.TrimSpace(cell))
		}
	}
	w := tabwriter.NewWriter(t, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		var cells []string
		for i, cell := range row {
			if says[i] {
				cells = append(cells, strings.Map(visible, strings.ReplaceAll(cell, "\n", " ")))
			}
		}
		fmt.Fprintln(w, "  "+strings.Join(cells, "\t"))
	}
	w.Flush()
}

// visible replaces what would move a terminal's cursor or change its colours: reasons hold lines of engines' logs.
func visible(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// to writes the page, without spaces at the ends of its lines.
func (t *text) to(w io.Writer) error {
	lines := strings.Split(t.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n"))
	return err
}

// ms is a time in milliseconds.
func ms(value float64) string { return fmt.Sprintf("%9.2f", value) }

func msOr(value *float64) string {
	if value == nil {
		return fmt.Sprintf("%9s", none)
	}
	return ms(*value)
}

// median is an estimate without its interval.
func median(e stat.Estimate) string {
	if e.N == 0 {
		return msOr(nil)
	}
	return ms(e.Median)
}

// interval is the 95 % interval in brackets.
func interval(i *stat.Interval) string {
	if i == nil {
		return none
	}
	return fmt.Sprintf("[%.2f, %.2f]", i.Low, i.High)
}

// signed is a difference in milliseconds.
func signed(value float64) string { return fmt.Sprintf("%+9.2f", value) }

// size is a number of bytes.
func size(bytes float64) string {
	if bytes == 0 {
		return none
	}
	for _, unit := range []struct {
		bytes float64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if bytes >= unit.bytes {
			return fmt.Sprintf("%.1f %s", bytes/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%.0f B", bytes)
}

// rate is bytes a second as links are measured; it is empty where there is none.
func rate(bytesPerS float64) string {
	if bytesPerS == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f GB/s", bytesPerS/1e9)
}

// listed lists sources with their numbers.
func listed(sources []SourceCount) string {
	var all []string
	for _, s := range sources {
		all = append(all, fmt.Sprintf("%d %s", s.N, s.Source))
	}
	if len(all) == 0 {
		return none
	}
	return strings.Join(all, ", ")
}

// StateWords names a phase with its workload's variant. The cold prompts of the partial workload are new as a whole.
func StateWords(workload, variant string, p record.Phase) string {
	words := strings.ReplaceAll(strings.ReplaceAll(string(p), "hbm", "HBM"), "_", " ")
	switch {
	case variant == "":
		return words
	case p == record.Partial:
		return words + ", " + variant + " % seen before"
	case workload == partial:
		return words + ", beside " + variant + " % seen before"
	}
	return words + ", " + variant
}

func (k *Key) state() string { return StateWords(k.Workload, k.Variant, k.Phase) }

// verdictWords says in words what explains differing outputs.
var verdictWords = []struct {
	verdict record.Verdict
	words   string
}{
	{record.Unexplained, "unexplained by the engine alone: suspect the cache"},
	{record.OtherBoundary, "the engine's own hit ends elsewhere: no proof either way"},
	{record.EngineReproduces, "the engine alone gives both texts"},
	{record.EngineUnstable, "the engine alone does not give the cold text"},
	{record.NotRun, "the control could not be made"},
	{"", "no control yet"},
}

// VerdictWords says a verdict in words.
func VerdictWords(v record.Verdict) string {
	for _, known := range verdictWords {
		if known.verdict == v {
			return known.words
		}
	}
	return string(v)
}

// outputWords says how reused answers compare with cold ones.
func outputWords(o Outputs) string {
	switch {
	case o.Compared == 0:
		return none
	case o.Differing == 0:
		return fmt.Sprintf("%d same", o.Compared)
	}
	return fmt.Sprintf("%d of %d differ", o.Differing, o.Compared)
}

// why says what explains the answers that differ.
func (o Outputs) why() string {
	var all []string
	for _, v := range verdictWords {
		if n := o.Verdicts[v.verdict]; n > 0 {
			all = append(all, fmt.Sprintf("%d: %s", n, v.words))
		}
	}
	return strings.Join(all, "; ")
}
