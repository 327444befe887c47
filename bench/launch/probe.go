package launch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed" // of the program that the engine's Python runs
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"orbitkv/bench/record"
)

//go:embed probe.py
var probeProgram string

const (
	probeLimit  = 5 * time.Minute // importing torch from a cold disk takes a minute
	probeOutput = 1 << 20         // bytes that are kept
	linkMax     = 1e15            // bytes a second: no link is as fast
)

// RunProbe lets the engine's Python say which versions it holds and how fast host memory reaches the device, in bytes a second. It
// imports no engine. It runs below a guard, which is the orbitkv program, and leaves no process, however the measurement ends. The error says what the
// program that was named for a Python did instead.
func RunProbe(whole context.Context, program, python, device string) (record.Probe, error) {
	ctx, cancel := context.WithTimeout(whole, probeLimit)
	defer cancel()
	var out, complaints bounded
	err := guarded(ctx, program, []string{python, "-c", probeProgram, device}, &out, &complaints)
	var found record.Probe
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err == nil {
		err = json.Unmarshal([]byte(lines[len(lines)-1]), &found)
	}
	if err == nil {
		err = wrongAnswer(found)
	}
	if err != nil {
		if cause := context.Cause(whole); cause != nil {
			return record.Probe{}, fmt.Errorf("launch: asking %s what it holds was broken off: %w", python, cause)
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end within %v", probeLimit)
		}
		said := lastReason(complaints.String())
		if said == "" {
			said = lastReason(out.String())
		}
		if said != "" {
			said = fmt.Sprintf(", and the last that it said was %q", said)
		}
		return record.Probe{}, fmt.Errorf("launch: %s did not run the probe as the Python of an engine does: %w%s: name the interpreter of the engine's environment", python, err, said)
	}
	return found, nil
}

// guarded runs a command below a guard until it has ended and nothing of it is left; at the end of ctx all of it is killed.
func guarded(ctx context.Context, program string, command []string, out, complaints io.Writer) error {
	word, control, err := os.Pipe()
	if err != nil {
		return err
	}
	defer word.Close()
	defer control.Close()
	reports, reporting, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reports.Close()
	mark := newMark()
	c := exec.CommandContext(ctx, program, append([]string{GuardVerb, "--"}, command...)...)
	c.Env, _ = environmentOf(os.Environ(), commonEnvironment())
	c.Env = append(c.Env, mark)
	c.Stdin, c.Stdout, c.Stderr, c.ExtraFiles = word, out, complaints, []*os.File{reporting}
	c.Cancel, c.WaitDelay = control.Close, guardEndLimit
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt at the terminal is for the measurement to handle
	err = c.Start()
	_ = reporting.Close() // the guard's alone: the end of the pipe tells of the guard's end
	if err != nil {
		return fmt.Errorf("start its guard: %w", err)
	}
	exit := errors.New("its guard ended before it")
	in := bufio.NewScanner(reports)
	for in.Scan() {
		var r guardReport
		if json.Unmarshal(in.Bytes(), &r) != nil {
			continue // a line that a dying guard cut off
		}
		switch r.Exit {
		case "":
			if r.Error != "" {
				exit = errors.New(r.Error)
			}
			continue
		case exitText(0):
			exit = nil
		default:
			exit = errors.New(r.Exit)
		}
		_ = control.Close() // what it left behind must not compute beside the measurement
	}
	err = c.Wait()
	signalAll(marked(mark), syscall.SIGKILL) // past a guard that was killed
	return cmp.Or(exit, err)
}

// wrongAnswer says what of a probe's answer cannot be.
func wrongAnswer(found record.Probe) error {
	switch {
	case found.Python == "":
		return errors.New("its answer names no Python")
	case !(found.LinkBytesPerS >= 0 && found.LinkBytesPerS < linkMax):
		return fmt.Errorf("its answer has a link of %g bytes a second", found.LinkBytesPerS)
	}
	return nil
}

// bounded keeps the first bytes that are written to it.
type bounded struct{ kept bytes.Buffer }

// Write implements io.Writer; what is over the bound is dropped without an error, so that the program is not broken off for it.
func (b *bounded) Write(p []byte) (int, error) {
	if room := probeOutput - b.kept.Len(); room > 0 {
		b.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// String returns what was kept.
func (b *bounded) String() string { return b.kept.String() }
