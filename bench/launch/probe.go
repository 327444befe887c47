package launch

import (
	"bytes"
	"context"
	_ "embed" // of the program that the engine's Python runs
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"orbitkv/bench/record"
)

//go:embed probe.py
var probeProgram string

const (
	probeLimit  = 5 * time.Minute // importing torch from a cold disk takes a minute
	probeGrace  = 5 * time.Second // for its output after its end
	probeOutput = 1 << 20         // bytes that are kept
	linkMax     = 1e15            // bytes a second: no link is as fast
)

// RunProbe lets the engine's Python say which versions it holds and how fast host memory reaches the device, in bytes a second. It
// imports no engine. The error says what the program that was named for a Python did instead.
func RunProbe(whole context.Context, python, device string) (record.Probe, error) {
	ctx, cancel := context.WithTimeout(whole, probeLimit)
	defer cancel()
	var out, complaints bounded
	c := exec.CommandContext(ctx, python, "-c", probeProgram, device)
	c.Stdout, c.Stderr, c.WaitDelay = &out, &complaints, probeGrace
	c.Env, _ = environmentOf(os.Environ(), commonEnvironment())
	mark := newMark()
	c.Env = append(c.Env, mark)
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) } // its group: a wrapper of a Python has one below it
	// It dies with the measurement, by way of the thread that started it, which must last as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err := c.Run()
	signalAll(marked(mark), syscall.SIGKILL) // what it left behind must not compute beside the measurement
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
