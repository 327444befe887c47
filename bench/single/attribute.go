package single

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"orbitkv/bench/record"
)

// difference is a sample whose text is not the one that was given to the same prompt before.
type difference struct {
	row  record.Sample
	cold string // the text that it was compared with; empty when its row is not there
}

// attribute gives every output that differs its verdict, by asking the engine alone for the same prompt where that is needed. What an earlier attempt
// attributed stays; a control that could not be made then is tried again.
func (r *run) attribute(ctx context.Context) error {
	kept, err := record.Load(r.dir.Path())
	if err != nil {
		return err
	}
	byPass := map[int][]difference{}
	for _, d := range differences(kept, &r.ask) {
		if verdict, why, known := byItself(d); known {
			if err := r.keepVerdict(d, record.Attribution{Verdict: verdict, Why: why}); err != nil {
				return err
			}
			continue
		}
		byPass[d.row.Pass] = append(byPass[d.row.Pass], d)
	}
	for pass := range 2 {
		if len(byPass[pass]) == 0 {
			continue
		}
		if !r.fits(r.longestStart) {
			return errPart
		}
		if err := r.control(ctx, pass, byPass[pass]); err != nil {
			return err
		}
	}
	return nil
}

// differences lists the final samples that differ and have no verdict yet.
func differences(kept *record.Run, a *Ask) []difference {
	attributed := map[string]bool{}
	for i := range kept.Attributions {
		attributed[kept.Attributions[i].Request] = kept.Attributions[i].Verdict != record.NotRun
	}
	colds := coldTexts(kept)
	var all []difference
	for i := range kept.Samples {
		row := kept.Samples[i]
		if row.MatchesCold == nil || *row.MatchesCold || attributed[row.Request] || !kept.Final(row.Place) {
			continue
		}
		all = append(all, difference{row, colds[compared(&row)]})
	}
	return all
}

// compared names what a row's text was compared with.
func compared(row *record.Sample) string {
	if row.Workload == record.WorkloadPartial {
		return fmt.Sprintf("partial/%d/%s/%d", row.Length, row.Variant, row.Prefix)
	}
	return fmt.Sprintf("%s/a%d/%d/%d", row.Cell, row.Attempt, row.Length, row.PromptIndex)
}

// coldTexts returns the texts that others are compared with.
func coldTexts(kept *record.Run) map[string]string {
	texts := map[string]string{}
	for i := range kept.Samples {
		row := &kept.Samples[i]
		isCold := row.Phase == record.Cold || row.Phase == record.Prepare
		if row.Workload == record.WorkloadPartial {
			isCold = row.Backend == record.Native && row.Phase == record.Partial && row.Source == record.Miss
		}
		name := compared(row)
		if _, known := texts[name]; isCold && !known && row.Error == "" && kept.Final(row.Place) {
			texts[name] = row.Text
		}
	}
	return texts
}

// byItself gives the verdict of a difference that needs no control: the engine without an external cache made it.
func byItself(d difference) (verdict record.Verdict, why string, known bool) {
	if d.row.Backend != record.Native {
		return "", "", false
	}
	if d.row.Source == record.Miss {
		return record.EngineUnstable, "it computed the whole prompt again, without an external cache", true
	}
	return record.EngineReproduces, "both texts are of the engine without an external cache", true
}

// keepVerdict writes an attribution for a difference.
func (r *run) keepVerdict(d difference, a record.Attribution) error {
	a.Place, a.Request, a.Phase, a.ColdText, a.Differing = d.row.Place, d.row.Request, d.row.Phase, d.cold, d.row.Text
	a.Attempt = r.dir.Attempt()
	return r.dir.Attribution(a)
}

// control starts the engine alone and asks it for every differing prompt of a pass, cold and again.
func (r *run) control(ctx context.Context, pass int, all []difference) error {
	r.progress.line(fmt.Sprintf("%d outputs of pass %d differ: asking the engine without an external cache for the same prompts", len(all), pass))
	at := record.Place{Cell: fmt.Sprintf("%s/p%d", record.ControlCells, pass), Attempt: r.dir.Attempt(), Backend: record.Native, Pass: pass, Workload: r.ask.Workload, Prefix: -1}
	s, inner, stop, err := r.start(ctx, record.Native, pass, true)
	if err != nil {
		return errors.Join(r.failed(ctx, at, err), r.unattributed(ctx, all, err))
	}
	err = s.warmUp(inner)
	pairs := map[string]pair{} // by prompt: one prompt that differs twice is asked for once
	for i := range all {
		if err == nil {
			err = s.controlOne(inner, at, all[i], pairs)
		}
		if err != nil {
			err = errors.Join(r.failed(ctx, at, err), r.unattributed(ctx, all[i:], err))
			break
		}
	}
	return errors.Join(err, r.ended(at, stop()))
}

// unattributed keeps that the control of differences could not be made, unless the run is at its end: then a resumed one makes it.
func (r *run) unattributed(ctx context.Context, all []difference, cause error) error {
	if ctx.Err() != nil {
		return nil
	}
	var errs []error
	for _, d := range all {
		errs = append(errs, r.keepVerdict(d, record.Attribution{Verdict: record.NotRun, Why: cause.Error()}))
	}
	return errors.Join(errs...)
}

// pair is what the engine alone says to one prompt: cold, and as a hit.
type pair struct{ cold, hit record.Sample }

// controlOne asks the engine alone for one prompt, cold and as a hit of its own, and keeps the verdict.
func (s *stage) controlOne(ctx context.Context, at record.Place, d difference, pairs map[string]pair) error {
	name, tokens := s.promptOf(&d.row)
	p, known := pairs[name]
	if !known {
		place := at
		place.Length, place.Prefix, place.Variant = d.row.Length, d.row.Prefix, d.row.Variant
		place.Cell = at.Cell + "/" + name
		q := query{place: place, phase: record.Control, prompt: d.row.PromptIndex, tokens: tokens, output: s.ask.OutputTokens}
		var err error
		if p.cold, err = s.serial(ctx, q); err != nil {
			return err
		}
		if err = s.beforeHit(ctx, q, name); err != nil {
			return err
		}
		if p.hit, err = s.serial(ctx, q); err != nil {
			return err
		}
		pairs[name] = p
	}
	verdict, why := judge(d, p)
	a := record.Attribution{Verdict: verdict, Why: why, ControlCold: p.cold.Text, ControlHit: p.hit.Text}
	if p.hit.Error == "" {
		a.ControlReused = &p.hit.CachedTokens
	}
	return s.keepVerdict(d, a)
}

// beforeHit brings device memory into the state in which the engine's own hit ends where the differing sample's did, as far as the engine alone can be
// brought there. In general it is what the cold request left: all pages but the one with the last token. SGLang restores the same pages, and so does
// vLLM where a prompt's last page is not full or a connector leaves that page out. A partial prompt was restored as far as the prompt that was seen before it
// goes: that one is asked for anew after pressure, so that the control's hit ends with it, too, and uses KV that was computed in the same request.
//
// A hit in the midst of a prompt that was computed whole, and one that leaves a single token of a full last page (what vLLM's connectors
// restore, alone or as the tail of a hit in device memory), cannot be made on the engine alone: vLLM always computes the page with the last token. Nor can
// the batches of a burst or a window. There the verdict is OtherBoundary, or says what ran beside the sample.
func (s *stage) beforeHit(ctx context.Context, q query, name string) error {
	if q.place.Workload != record.WorkloadPartial {
		return nil
	}
	if err := s.pressure(ctx, q.place, name); err != nil {
		return err
	}
	q.phase = record.Prepare
	q.tokens, _ = s.prompts.partialPrompts(partialKeyOf(q.place), s.ask.PageSize)
	_, err := s.serial(ctx, q)
	return err
}

// judge compares what the engine alone says with a difference. An answer depends on where reuse ends, as the kernels that compute the rest round by its
// shape: what the engine says at one boundary neither clears nor accuses a cache at another.
func judge(d difference, p pair) (verdict record.Verdict, why string) {
	own := "equals its cold answer"
	if p.hit.Text != p.cold.Text {
		own = "differs from its cold answer, too"
	}
	reused := d.row.CachedTokens
	warm := max(p.cold.CachedTokens, p.cold.DeviceTokens+p.cold.ExternalTokens) // Either the answer or the counters may say so.
	switch {
	case p.cold.Error != "" || p.hit.Error != "":
		return record.NotRun, strings.TrimSpace("the control's requests failed: " + p.cold.Error + " " + p.hit.Error)
	case warm > 0:
		return record.NotRun, fmt.Sprintf("the control's first request reused %d tokens, so that it was not cold", warm)
	case p.cold.Text != d.cold:
		return record.EngineUnstable, "the engine alone gives the cold prompt another text than this backend did, although neither reused anything" + beside(&d.row)
	case p.hit.Text == d.row.Text:
		return record.EngineReproduces, ""
	case reused == 0:
		return record.Unexplained, "it reused nothing, as the engine alone in its cold answer, which is another" + beside(&d.row)
	case reused < 0 || p.hit.CachedTokens < 0:
		return record.Unexplained, "the answers do not say how many tokens they reused; the engine's own hit " + own + beside(&d.row)
	case reused != p.hit.CachedTokens:
		return record.OtherBoundary, fmt.Sprintf("it reused %d tokens and the engine's own hit %d, which %s: "+
			"the rest was computed in another shape, so that rounding may explain it; no proof for or against the cache", reused, p.hit.CachedTokens, own)
	default:
		return record.Unexplained, fmt.Sprintf("the engine alone reuses the same %d tokens and gives another text; its hit %s%s", reused, own, beside(&d.row))
	}
}

// beside says of a sample that ran in a batch that its control did not.
func beside(row *record.Sample) string {
	if row.Concurrency <= 1 {
		return ""
	}
	return fmt.Sprintf("; it ran beside up to %d others, and the control alone", row.Concurrency-1)
}

// promptOf draws the prompt of a row again, from its place alone.
func (s *stage) promptOf(row *record.Sample) (name string, tokens []int) {
	switch row.Workload {
	case record.WorkloadPartial:
		key := partialKeyOf(row.Place)
		_, tokens = s.prompts.partialPrompts(key, s.ask.PageSize)
		name = key.name()
	case record.WorkloadConcurrent:
		name = concurrentName(row.Place, row.PromptIndex)
		tokens = s.prompts.draw(row.Length, name)
	case record.WorkloadSustained:
		name = s.sustainedName(row.Concurrency, row.PromptIndex)
		tokens = s.prompts.draw(row.Length, name)
	default:
		name = latencyName(row.Length, row.Prefix)
		tokens = s.prompts.draw(row.Length, name)
	}
	return name, tokens
}
