package single

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"orbitkv/bench/page"
	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

const missingShown = 10 // names of missing cells that a message has

// Measure does what is asked: it writes the output directory, progress to errs and the tables to out. The error is nil when everything was measured
// and given back; otherwise it says what was refused, failed, interrupted or is missing. What was measured until then is kept and reported.
func Measure(ctx context.Context, ask Ask, host Host, command []string, out, errs io.Writer) error {
	if err := ask.Check(); err != nil {
		return err
	}
	ask.complete()
	r, err := prepare(ctx, ask, host, command, errs)
	if err != nil {
		return err
	}
	defer r.progress.close()
	inPart, cancel := r.inPart(ctx)
	ended := r.all(inPart)
	if r.lacking > 0 {
		r.trouble("%d measured requests failed and have no latency: samples.jsonl says why; they are not asked again here, only in a new folder", r.lacking)
	}
	cancel()
	outcome := outcomeOf(ctx, ended, r.troubles)
	missing := r.missing()
	if err := r.dir.Close(outcome); err != nil {
		return errors.Join(ended, err)
	}
	r.progress.close()
	verdict := r.verdict(outcome, ended, missing)
	if err := Publish(r.dir.Path(), out); err != nil {
		return errors.Join(verdict, err)
	}
	return verdict
}

// outcomeOf names how an attempt ended.
func outcomeOf(ctx context.Context, ended error, troubles []string) string {
	switch {
	case ctx.Err() != nil:
		return Interrupted
	case errors.Is(ended, errPart):
		return Part
	case ended != nil || len(troubles) > 0:
		return Failed
	}
	return Complete
}

// verdict says in one message why an attempt is not complete; nil when it is.
func (r *run) verdict(outcome string, ended error, missing []string) error {
	again := ""
	if len(missing) > 0 {
		shown := missing[:min(len(missing), missingShown)]
		again = fmt.Sprintf("; %d cells are missing (%s", len(missing), strings.Join(shown, ", "))
		if more := len(missing) - len(shown); more > 0 {
			again += fmt.Sprintf(" and %d more", more)
		}
		again += "): the same command with --" + FlagResume + " measures them"
	}
	troubles := ""
	if len(r.troubles) > 0 {
		troubles = ": " + strings.Join(r.troubles, "; ")
	}
	switch outcome {
	case Complete:
		return nil
	case Interrupted:
		return fmt.Errorf("the run in %s was interrupted%s%s", r.dir.Path(), troubles, again)
	case Part:
		if len(missing) == 0 {
			return fmt.Errorf("every cell of the run in %s is measured%s; outputs that differ are still to be asked for on the engine without an external cache, which did not fit into %d s: "+
				"the same command with --%s does that alone", r.dir.Path(), troubles, r.ask.PartSeconds, FlagResume)
		}
		if r.longestCell == 0 {
			again += fmt.Sprintf("; none of them fitted into %d s: give parts more time", r.ask.PartSeconds)
		}
		return fmt.Errorf("this part of the run in %s ended in time%s%s", r.dir.Path(), troubles, again)
	}
	if ended != nil {
		return fmt.Errorf("the run in %s broke off: %w%s%s", r.dir.Path(), ended, troubles, again)
	}
	return fmt.Errorf("the run in %s is not complete%s%s", r.dir.Path(), troubles, again)
}

// missing lists the cells that are not finished.
func (r *run) missing() []string {
	done := r.dir.Done()
	var names []string
	for _, t := range plan(&r.ask) {
		for _, cell := range t.missing(done) {
			names = append(names, cell.Cell)
		}
	}
	return names
}

// prepare looks at the machine, the model and the engine's Python, and opens the output directory.
func prepare(ctx context.Context, ask Ask, host Host, command []string, errs io.Writer) (*run, error) {
	begun := host.Now()
	if err := record.Ready(ask.Output, ask.Resume); err != nil { // The engine's Python, which is asked below, may take a minute.
		return nil, err
	}
	ask.Model = absolute(ask.Model)
	if found, err := exec.LookPath(ask.EnginePython); err == nil {
		ask.EnginePython = absolute(found)
	}
	model, err := host.Model(ask.Model)
	if err != nil {
		return nil, err
	}
	if err := ask.checkModel(model); err != nil {
		return nil, err
	}
	p := newProgress(errs, host.Now)
	p.step("asking " + ask.EnginePython + " what it holds")
	probe, err := host.Probe(ctx, ask.EnginePython, ask.Device)
	if err != nil {
		return nil, err
	}
	manifest := record.Manifest{
		Version: host.Version, Options: ask.Options, Machine: host.Machine(ctx), Model: model, Probe: probe, Plan: map[string]int{}, Notes: ask.notes(model),
	}
	for i, gpu := range manifest.Machine.GPUs {
		if gpu.OtherUses > 0 {
			manifest.Notes = append(manifest.Notes, fmt.Sprintf("%d other processes computed on GPU %d (%s) before the run: its figures are not the backends' alone", gpu.OtherUses, i, gpu.Name))
		}
	}
	for _, note := range manifest.Notes {
		p.line("note: " + note)
	}
	for _, t := range plan(&ask) {
		manifest.Plan[t.backend] += len(t.cells)
	}
	open := record.Create
	if ask.Resume {
		open = record.Reopen
	}
	dir, err := open(ask.Output, manifest, command)
	if err != nil {
		return nil, err
	}
	r := &run{
		ask: ask, host: host, dir: dir, model: model, prompts: prompts{ask.Seed, model.Vocabulary}, progress: p, begun: begun, alone: map[partialKey]*string{},
	}
	if err := r.takeUp(); err != nil {
		return nil, errors.Join(err, dir.Close(Failed))
	}
	return r, nil
}

// takeUp notes where files lie, and what earlier attempts know that this one needs.
func (r *run) takeUp() error {
	for use, path := range map[string]string{"output": r.dir.Path(), "model": r.ask.Model} {
		storage, err := r.host.Storage(use, path)
		if err != nil {
			return err
		}
		err = r.dir.Update(func(m *record.Manifest) {
			for i := range m.Storage {
				if m.Storage[i].Use == use {
					m.Storage[i] = storage
					return
				}
			}
			m.Storage = append(m.Storage, storage)
		})
		if err != nil {
			return err
		}
	}
	if !r.ask.Resume {
		return nil
	}
	kept, err := record.Load(r.dir.Path())
	if err != nil {
		return err
	}
	r.recall(kept)
	for i := range kept.Samples {
		if row := &kept.Samples[i]; row.Measured && row.Error != "" && kept.Final(row.Place) {
			r.lacking++
		}
	}
	r.refused = map[string]bool{}
	for _, failure := range kept.Failures {
		if failure.Stage == record.AtStart {
			r.refused[failure.Cell] = true
		}
	}
	return nil
}

// absolute returns a path that does not depend on the current folder; a run is resumed from any.
func absolute(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// Publish writes what a run's directory amounts to: tables for a person, summary.json and report.html. It works on any directory, finished or not; the error
// names the row of one whose rows contradict each other.
func Publish(path string, out io.Writer) error {
	kept, err := record.Load(path)
	if err != nil {
		return err
	}
	summary, err := report.Summarise(kept)
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(filepath.Join(path, "summary.json"), func(w io.Writer) error { return report.WriteJSON(w, summary) }),
		writeFile(filepath.Join(path, "report.html"), func(w io.Writer) error { return page.Write(w, kept, summary) }),
		report.WriteTables(out, summary), // last: where nobody reads any more, the kernel ends the program
	)
}

// writeFile makes a file that only its owner reads, as the rows are.
func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return errors.Join(write(file), file.Close())
}
