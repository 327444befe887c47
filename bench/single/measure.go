package single

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"orbitkv/bench/page"
	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// Measure does what is asked: it writes the output directory, progress to errs and the tables to out. The error is nil when everything was measured
// and given back; otherwise it says what was refused, failed, interrupted or is missing. What was measured until then is kept and reported.
func Measure(ctx context.Context, ask Ask, host Host, command []string, out, errs io.Writer) error {
	if err := ask.Check(); err != nil {
		return err
	}
	ask.complete()
	p := newProgress(errs, host.Now)
	defer p.close()
	r, err := prepare(ctx, ask, host, command, p)
	if err != nil {
		return err
	}
	inPart, cancel := r.inPart(ctx)
	ended := r.all(inPart)
	if r.lacking > 0 {
		r.trouble(fmt.Sprintf("%d measured requests failed and have no latency", r.lacking), "samples.jsonl says why; they are not asked again here, only in a new folder")
	}
	cancel()
	outcome := outcomeOf(ctx, ended, r.troubles)
	lacks := r.lacks()
	if err := r.dir.Close(outcome); err != nil {
		return errors.Join(ended, err)
	}
	p.close() // the tables come after it
	verdict := r.verdict(outcome, ended, lacks)
	if err := Publish(r.dir.Path(), out); err != nil {
		return errors.Join(verdict, err)
	}
	return verdict
}

// outcomeOf names how an attempt ended.
func outcomeOf(ctx context.Context, ended error, troubles []string) string {
	switch {
	case ctx.Err() != nil:
		return record.Interrupted
	case errors.Is(ended, errPart):
		return record.Part
	case ended != nil || len(troubles) > 0:
		return record.Failed
	}
	return record.Complete
}

// verdict says in one message why an attempt is not complete; nil when it is. The reasons of its troubles were told when they came.
func (r *run) verdict(outcome string, ended error, missing lacks) error {
	again := missing.remedy()
	troubles := ""
	if len(r.troubles) > 0 {
		troubles = ": " + strings.Join(r.troubles, "; ") + " (why is said above)"
	}
	switch outcome {
	case record.Complete:
		return nil
	case record.Interrupted:
		return fmt.Errorf("the run in %s was interrupted%s%s", r.dir.Path(), troubles, again)
	case record.Part:
		if len(missing.open)+len(missing.stranded) == 0 {
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

// lacks are the cells that are not finished, counted by backend in the order of the plan.
type lacks struct {
	open     []lack // that the same run can still measure
	stranded []lack // whose backend could not start
}

type lack struct {
	backend string
	cells   int
}

// lacks counts the cells that are not finished.
func (r *run) lacks() (all lacks) {
	done := r.dir.Done()
	for _, t := range plan(&r.ask) {
		to := &all.open
		if r.stranded[t.name()] {
			to = &all.stranded
		}
		cells := len(t.missing(done))
		if cells == 0 {
			continue
		}
		if i := slices.IndexFunc(*to, func(l lack) bool { return l.backend == t.backend }); i >= 0 {
			(*to)[i].cells += cells
			continue
		}
		*to = append(*to, lack{t.backend, cells})
	}
	return all
}

// remedy says how many cells are missing and how they are measured; nothing when none is. What a backend needs to start is most often a package, and a run
// with other packages is another run.
func (l lacks) remedy() (text string) {
	if len(l.open) > 0 {
		text += "; " + listed(l.open) + " missing: the same command with --" + FlagResume + " measures them"
	}
	if len(l.stranded) > 0 {
		text += "; " + listed(l.stranded) + " missing, whose backend did not start: mend it and measure in a new folder; --" + FlagResume + " goes on only with the same packages"
	}
	return text
}

// listed counts cells, as in "15 cells of flexkv and 1 cell of native are".
func listed(all []lack) string {
	var parts []string
	cells := 0
	for _, l := range all {
		word := "cells"
		if l.cells == 1 {
			word = "cell"
		}
		parts = append(parts, fmt.Sprintf("%d %s of %s", l.cells, word, l.backend))
		cells += l.cells
	}
	if cells == 1 {
		return parts[0] + " is"
	}
	return strings.Join(parts, " and ") + " are"
}

// prepare looks at the machine, the model and the engine's Python, and opens the output directory.
func prepare(ctx context.Context, ask Ask, host Host, command []string, p *progress) (*run, error) {
	begun := host.Now()
	if err := record.Ready(ask.Output, ask.Resume); err != nil { // The engine's Python, which is asked below, may take a minute.
		return nil, err
	}
	ask.Model = absolute(ask.Model)
	if err := ask.findPython(); err != nil {
		return nil, err
	}
	if err := ask.checkHostMemory(host.Memory); err != nil {
		return nil, err
	}
	if !ask.Resume { // else what an earlier attempt left is removed first
		if err := ask.checkDisk(host.DiskFree); err != nil {
			return nil, err
		}
	}
	model, err := host.Model(ask.Model)
	if err != nil {
		return nil, err
	}
	if err := ask.checkModel(model); err != nil {
		return nil, err
	}
	p.step("asking " + ask.EnginePython + " what it holds")
	probe, err := host.Probe(ctx, ask.EnginePython, ask.Device)
	if err != nil {
		return nil, err
	}
	if err := ask.checkProbe(probe); err != nil {
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
		stranded: map[string]bool{}, told: map[string]bool{},
	}
	if err := r.takeUp(); err != nil {
		return nil, errors.Join(err, dir.Close(record.Failed))
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
		if err := r.keepStorage(storage); err != nil {
			return err
		}
	}
	if !r.ask.Resume {
		return nil
	}
	if err := r.tidyTiers(); err != nil {
		return err
	}
	if err := r.ask.checkDisk(r.host.DiskFree); err != nil {
		return err
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

// keepStorage keeps where something lies, in the place of what an earlier start said of it.
func (r *run) keepStorage(storage record.Storage) error {
	return r.dir.Update(func(m *record.Manifest) {
		for i := range m.Storage {
			if m.Storage[i].Use == storage.Use {
				m.Storage[i] = storage
				return
			}
		}
		m.Storage = append(m.Storage, storage)
	})
}

// findPython makes the path of the engine's Python one that does not depend on the current folder.
func (a *Ask) findPython() error {
	if found, err := exec.LookPath(a.EnginePython); err == nil {
		a.EnginePython = absolute(found)
	} else if info, err := os.Stat(a.EnginePython); err == nil && info.IsDir() {
		return fmt.Errorf("--engine-python: %s is a folder: name the Python in it, such as %s", a.EnginePython, filepath.Join(a.EnginePython, "bin", "python"))
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

// writeFile makes a file that only its owner reads, as the rows are, or leaves the one that was there as it is.
func writeFile(path string, write func(io.Writer) error) error {
	folder, name := filepath.Split(path)
	file, err := os.CreateTemp(folder, "."+name+"-") // with the mode 0600
	if err == nil {
		err = errors.Join(write(file), file.Sync(), file.Close())
		if err == nil {
			err = os.Rename(file.Name(), path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%s was not written, no row is lost: %w: make room, then `orbitkv bench report %s`", path, err, filepath.Clean(folder))
	case err != nil:
		return fmt.Errorf("%s was not written, no row is lost: %w", path, err)
	}
	return nil
}
