package page

import (
	"fmt"

	"orbitkv/bench/report"
)

var tierTexts = []string{
	"Pages that look-ups asked OrbitKV's Manager for, by where they were found; the columns from RAM to miss sum to those asked for. These are decisions: a page that was found may have been given up before it was restored. " +
		"A request that waits for the SSD looks up more than once, and each look-up counts.",
	"The time of SSD reads is the bound of the histogram's bucket in which the median lies, their wait in the queue included. Reads without a restore are requests, or bursts and windows, for which the SSD was read and nothing was restored.",
}

// tierTable has a row for each state of a backend that tells its tiers.
func tierTable(all []report.Tiered) *table {
	t := &table{Head: []column{
		{Text: "State"},
		{Text: "Length", Number: true},
		{Text: "C", Number: true},
		{Text: "Backend"},
		{Text: "Asked", Unit: "pages", Number: true},
		{Text: "RAM", Number: true},
		{Text: "Remote", Number: true},
		{Text: "SSD", Number: true},
		{Text: "Miss", Number: true},
		{Text: "SSD read", Number: true},
		{Text: "SSD written", Number: true},
		{Text: "SSD prefetch p50", Unit: "ms, at most", Number: true},
		{Text: "Reads without restore", Number: true},
	}}
	for i := range all {
		each, u := &all[i], all[i].Tiers
		length := notKnown
		if each.Length > 0 {
			length = grouped(int64(each.Length))
		}
		state := stateOf(each.Workload, each.Phase, each.Variant)
		if each.Pass >= 0 {
			state += fmt.Sprintf(", window of pass %d", each.Pass)
		}
		t.Rows = append(t.Rows, row{Begins: i > 0 && all[i-1].Phase != each.Phase, Cells: []cell{
			textCell(state),
			numberCell(length),
			countCell(each.Concurrency, false),
			backendCell(each.Backend),
			countCell(int(u.AskedPages), !u.Sums()),
			countCell(int(u.RAMPages), false),
			countCell(int(u.RemotePages), false),
			countCell(int(u.SSDPages), false),
			countCell(int(u.MissPages), false),
			numberCell(size(u.SumSSDReadBytes)),
			numberCell(size(u.SumSSDWriteBytes)),
			optionalCell(u.SSDPrefetchP50),
			countCell(u.SSDReadsWithoutRestore, u.SSDReadsWithoutRestore > 0),
		}})
	}
	return t
}
