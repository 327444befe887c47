package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// Print writes the lines as a table, each fix below its line, and a last line that counts the verdicts.
func Print(w io.Writer, lines []Line) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	counts := map[Verdict]int{}
	for _, l := range lines {
		counts[l.Verdict]++
		fmt.Fprintf(table, "%s\t%s\t%s\n", l.Verdict, l.Name, l.Found)
		if l.Fix != "" {
			fmt.Fprintf(table, "\t\t-> %s\n", l.Fix)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d good, %d bad, %d notes\n", counts[Good], counts[Bad], counts[Note])
	return err
}

// PrintJSON writes the lines as one JSON array.
func PrintJSON(w io.Writer, lines []Line) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(lines)
}
