package report

import (
	"fmt"
	"slices"
	"strings"

	"orbitkv/bench/record"
)

// Agreement is how many requests two backends answered with the same text. Unlike a Pairing it takes every source: what a cache gives back must be
// what the engine would have computed, wherever it was kept.
type Agreement struct {
	Workload    string       `json:"workload"`
	Variant     string       `json:"variant,omitempty"`
	Phase       record.Phase `json:"phase"`
	Length      int          `json:"length"`
	Concurrency int          `json:"concurrency"`
	A           Answers      `json:"a"`
	B           Answers      `json:"b"`
	N           int          `json:"n"`    // requests that both answered whole
	Same        int          `json:"same"` // of them, with the same text
}

// Answers is one backend in an agreement.
type Answers struct {
	Run     string        `json:"run,omitempty"` // label of the run, in comparisons
	Backend string        `json:"backend"`
	Sources []SourceCount `json:"sources"`    // of the answers that were compared
	Least   int           `json:"reused_min"` // tokens that an answer reused; -1 when it does not say
	Most    int           `json:"reused_max"` // tokens
	samples []*record.Sample
}

// correspondence names a request whichever backend it was sent to.
type correspondence struct {
	state
	pass, prefix, prompt int
	turn                 int // counts the requests for one prompt in a window, in the order of their admission
}

// named is a sample with the name of its request.
type named struct {
	correspondence
	*record.Sample
}

// correspondences names the requests of samples in their order.
func correspondences(samples []*record.Sample) []named {
	type asked struct {
		backend string
		correspondence
	}
	turns := map[asked]int{}
	var all []named
	for _, s := range samples {
		k := KeyOf(s)
		at := correspondence{state{k.Workload, k.Variant, k.Phase, k.Length, k.Concurrency}, s.Pass, s.Prefix, s.PromptIndex, 0}
		before := asked{s.Backend, at}
		at.turn = turns[before]
		turns[before]++
		all = append(all, named{at, s})
	}
	return all
}

// answered returns the whole answers by the names of their requests.
func answered(samples []*record.Sample) map[correspondence]*record.Sample {
	all := map[correspondence]*record.Sample{}
	for _, n := range correspondences(samples) {
		if n.Error == "" {
			all[n.correspondence] = n.Sample
		}
	}
	return all
}

// agreeingBackends compares the answers of every two backends of a run, the earlier named as A.
func agreeingBackends(samples []*record.Sample, backends []string) []Agreement {
	var all []Agreement
	for i, a := range backends {
		for _, b := range backends[i+1:] {
			all = append(all, agreements(side{"", a, of(samples, a)}, side{"", b, of(samples, b)})...)
		}
	}
	return all
}

// agreements compares the answers of two backends in every state that both have.
func agreements(a, b side) []Agreement {
	left, right := answered(a.samples), answered(b.samples)
	byState := map[state]*Agreement{}
	for at, x := range left {
		y := right[at]
		if y == nil {
			continue
		}
		each := byState[at.state]
		if each == nil {
			each = &Agreement{
				Workload: at.workload, Variant: at.variant, Phase: at.phase, Length: at.length, Concurrency: at.concurrency,
				A: Answers{Run: a.run, Backend: a.backend}, B: Answers{Run: b.run, Backend: b.backend},
			}
			byState[at.state] = each
		}
		each.N++
		if x.Text == y.Text {
			each.Same++
		}
		each.A.samples, each.B.samples = append(each.A.samples, x), append(each.B.samples, y)
	}
	var all []Agreement
	for _, each := range byState {
		each.A.describe()
		each.B.describe()
		all = append(all, *each)
	}
	slices.SortFunc(all, func(x, y Agreement) int { return compareKeys(x.key(), y.key(), nil) })
	return all
}

// describe says where the prompts of the answers came from, and lets the samples go.
func (a *Answers) describe() {
	a.Sources, a.Least, a.Most = sources(a.samples), a.samples[0].CachedTokens, a.samples[0].CachedTokens
	for _, s := range a.samples {
		a.Least, a.Most = min(a.Least, s.CachedTokens), max(a.Most, s.CachedTokens)
	}
	a.samples = nil
}

func (a *Agreement) key() Key {
	return Key{Workload: a.Workload, Variant: a.Variant, Phase: a.Phase, Length: a.Length, Concurrency: a.Concurrency}
}

// otherPrompts says why the prompts of a cell are others in the second of two runs of one workload; empty where they are the same.
func otherPrompts(a, b *record.Options) string {
	switch {
	case a.Seed != b.Seed:
		return fmt.Sprintf("seed %d and run A has %d", b.Seed, a.Seed)
	case a.Workload == partial && a.PageSize != b.PageSize: // Such a prompt stops being the one seen before at the end of a page.
		return fmt.Sprintf("pages of %d tokens and run A of %d", b.PageSize, a.PageSize)
	}
	return ""
}

// samePrompts says whether requests of the same name asked two runs for the same prompt and for as many tokens.
func samePrompts(a, b *record.Options) bool {
	windows := a.Workload != sustained || a.WorkingSet == b.WorkingSet && a.ReuseRatio == b.ReuseRatio && slices.Equal(a.Lengths, b.Lengths)
	return otherPrompts(a, b) == "" && a.OutputTokens == b.OutputTokens && windows
}

// differing lists the outputs that differ from their cold ones, each with the backends that gave the same request the same text.
func differing(samples []*record.Sample, backends []string, verdicts map[string]*record.Attribution) []Differing {
	answers := map[string]map[correspondence]*record.Sample{}
	for _, backend := range backends {
		answers[backend] = answered(of(samples, backend))
	}
	var all []Differing
	for _, n := range correspondences(samples) {
		if n.Error != "" || n.MatchesCold == nil || *n.MatchesCold {
			continue
		}
		d := Differing{Key: KeyOf(n.Sample), Pass: n.Pass, Prefix: n.Prefix, Request: n.Request, Source: n.Source, Reused: n.CachedTokens}
		d.Verdict, d.Why = verdictOf(n.Sample, verdicts)
		if a := verdicts[n.Request]; a != nil && a.ControlReused != nil {
			differs := a.ControlHit != a.ControlCold
			d.ControlReused, d.ControlDiffers = a.ControlReused, &differs
		}
		for _, backend := range backends {
			other := answers[backend][n.correspondence]
			if backend == n.Backend || other == nil {
				continue
			}
			d.Others++
			if other.Text == n.Text {
				d.SameText = append(d.SameText, backend)
			}
		}
		all = append(all, d)
	}
	return all
}

// coldDisagreements says which backends make the engine compute otherwise even where nothing is reused: what differs then is not their caches' doing.
// Bursts are left out, as their batches are never alike.
func coldDisagreements(all []Agreement) []string {
	type total struct{ same, n int }
	totals := map[[2]string]*total{}
	var order [][2]string
	for i := range all {
		a := &all[i]
		if a.Phase != record.Cold || a.Concurrency > 1 {
			continue
		}
		if totals[a.pair()] == nil {
			totals[a.pair()] = &total{}
			order = append(order, a.pair())
		}
		totals[a.pair()].same += a.Same
		totals[a.pair()].n += a.N
	}
	var notes []string
	for _, pair := range order {
		if t := totals[pair]; t.same < t.n {
			notes = append(notes, fmt.Sprintf("%s and %s gave only %d of %d cold prompts the same text, although nothing was reused: the engine computes otherwise beside one of them, "+
				"so other texts of the two say nothing of their caches", pair[0], pair[1], t.same, t.n))
		}
	}
	return notes
}

// agreementTable says of every two backends and each state how many outputs are the same, a column a length.
func (t *text) agreementTable(all []Agreement) {
	if len(all) == 0 {
		return
	}
	t.title("Outputs of the same request: how many are the same text, whatever their sources")
	lengths := lengthsOf(all)
	head := []string{"A", "B", "state", "at once"}
	for _, length := range lengths {
		head = append(head, fmt.Sprintf("%6d", length))
	}
	var rows [][]string
	var pairs []string
	for _, both := range ByPair(all) {
		rows = append(rows, agreementRows(both, lengths)...)
		pairs = append(pairs, Together(both))
	}
	t.table(head, rows)
	for _, line := range pairs {
		t.line("  %s", line)
	}
}

// ByPair parts agreements by their two backends, in their order.
func ByPair(all []Agreement) [][]Agreement {
	var pairs [][]Agreement
	for i := range all {
		if i == 0 || all[i].pair() != all[i-1].pair() {
			pairs = append(pairs, nil)
		}
		last := len(pairs) - 1
		pairs[last] = append(pairs[last], all[i])
	}
	return pairs
}

// Together says of the agreements of two backends what they amount to.
func Together(all []Agreement) string {
	same, n := 0, 0
	for i := range all {
		same += all[i].Same
		n += all[i].N
	}
	a, b := labelled(all[0].A.Run, all[0].A.Backend), labelled(all[0].B.Run, all[0].B.Backend)
	if same == n {
		return fmt.Sprintf("%s and %s: the same text in all %d corresponding requests", a, b, n)
	}
	return fmt.Sprintf("%s and %s: the same text in %d of %d corresponding requests", a, b, same, n)
}

// pair names the two backends of an agreement.
func (a *Agreement) pair() [2]string {
	return [2]string{labelled(a.A.Run, a.A.Backend), labelled(a.B.Run, a.B.Backend)}
}

func lengthsOf(all []Agreement) []int {
	var lengths []int
	for i := range all {
		lengths = append(lengths, all[i].Length)
	}
	slices.Sort(lengths)
	return slices.Compact(lengths)
}

// agreementRows are the rows of two backends: one a state, with the sources of all its lengths.
func agreementRows(all []Agreement, lengths []int) [][]string {
	type place struct {
		state       string
		concurrency int
	}
	var order []place
	members := map[place][]*Agreement{}
	for i := range all {
		p := place{StateWords(all[i].Workload, all[i].Variant, all[i].Phase), all[i].Concurrency}
		if members[p] == nil {
			order = append(order, p)
		}
		members[p] = append(members[p], &all[i])
	}
	var rows [][]string
	for _, p := range order {
		atOnce := none
		if w := members[p][0].Workload; w == concurrent || w == sustained {
			atOnce = fmt.Sprint(p.concurrency)
		}
		var a, b []Answers
		cells := map[int]string{}
		for _, each := range members[p] {
			a, b = append(a, each.A), append(b, each.B)
			cells[each.Length] = fmt.Sprintf("%d of %d", each.Same, each.N)
		}
		row := []string{answersName(a), answersName(b), p.state, atOnce}
		for _, length := range lengths {
			if cells[length] == "" {
				cells[length] = none
			}
			row = append(row, cells[length])
		}
		rows = append(rows, row)
	}
	return rows
}

// answersName is a backend with the sources of its answers.
func answersName(all []Answers) string {
	var from []string
	for _, source := range record.Sources {
		if slices.ContainsFunc(all, func(a Answers) bool {
			return slices.ContainsFunc(a.Sources, func(s SourceCount) bool { return s.Source == source })
		}) {
			from = append(from, string(source))
		}
	}
	return fmt.Sprintf("%s (%s)", labelled(all[0].Run, all[0].Backend), strings.Join(from, ", "))
}
