package report

import (
	"fmt"

	"orbitkv/bench/record"
)

// atOnce says of how many measured samples the whole answer came in one read. Their first text may have come earlier than it was seen.
func atOnce(run *record.Run) []string {
	n, of := 0, 0
	for i := range run.Samples {
		if s := &run.Samples[i]; s.Measured && s.Error == "" && run.Final(s.Place) {
			of++
			if s.AtOnce() {
				n++
			}
		}
	}
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("of %d of %d samples the whole answer came with its first text: their TTFT is that of the whole answer and may be too large, and they have no TPOT. "+
		"The client was late, as on a machine without an idle core, or the engine held its answers back", n, of)}
}
