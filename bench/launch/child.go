package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds of waits on a guard.
const (
	guardStartLimit = 30 * time.Second              // for a guard to start its charge
	guardEndLimit   = trackerLimit + 20*time.Second // from the end of the pipe to the end of everything
	guardStopLimit  = stopLimit + guardEndLimit     // from the word to end in order to the end of everything
	afterKillLimit  = 10 * time.Second              // for the kernel to bury what was killed past a guard that is dead
	guardWait       = 5 * time.Second               // from a guard's last report to its own end
)

// child is one process of a stack below its guard.
type child struct {
	process
	log     string // path
	logFrom int64  // where this process's own output begins in it
	kept    map[string]string
	mark    string // in the environment of it and of all that it starts
	started time.Time
	pid     atomic.Int64 // 0 until it runs

	guard   *exec.Cmd
	control *os.File // closing it ends everything

	ended chan struct{} // closed when the charge ended or never began
	gone  chan struct{} // closed when nothing of it is left

	mu      sync.Mutex
	exit    string
	stopped bool // an end was asked for
	closed  bool // control
	left    error
}

// startChild starts a process below a guard, with its output appended to a log. It returns when the process runs. The folder is removed by
// the guard of a measurement that was killed.
func startChild(program, folder string, p process, log string, bounds logBounds) (*child, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of the %s: %w", p.part, err)
	}
	defer out.Close()
	before, err := out.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the log of the %s: %w", p.part, err)
	}
	bounded, err := openBounded(log, bounds)
	if err != nil {
		return nil, fmt.Errorf("watch the log of the %s: %w", p.part, err)
	}
	word, control, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, bounded.finish())
	}
	defer word.Close()
	reports, reporting, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, control.Close(), bounded.finish())
	}

	whole, kept := environmentOf(os.Environ(), p.environment)
	c := &child{process: p, log: log, logFrom: before.Size(), kept: kept, mark: newMark(), control: control, ended: make(chan struct{}), gone: make(chan struct{})}
	c.guard = exec.Command(program, append([]string{GuardVerb, "--"}, p.command...)...)
	c.guard.Env = append(whole, c.mark, folderVariable+"="+folder)
	c.guard.Stdin, c.guard.Stdout, c.guard.Stderr = word, out, out
	c.guard.ExtraFiles = []*os.File{reporting}
	// A session of its own: an interrupt at the terminal is for the measurement to handle, which ends its processes in order.
	c.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.started = time.Now()
	err = c.guard.Start()
	_ = reporting.Close() // the guard's alone: the end of the pipe tells of the guard's end
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the guard of the %s: %w", p.part, err), control.Close(), reports.Close(), bounded.finish())
	}
	begun := make(chan error, 1)
	go c.follow(reports, begun, bounded)
	select {
	case err = <-begun:
	case <-time.After(guardStartLimit):
		err = fmt.Errorf("the guard of the %s did not start it within %v", p.part, guardStartLimit)
	}
	if err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return c, nil
}

// follow reads the guard's reports until its end, and makes sure of the end of what a guard that died left behind.
func (c *child) follow(reports *os.File, begun chan<- error, log *boundedLog) {
	defer close(c.gone)
	defer reports.Close()
	quiet := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() { c.keepLog(log, quiet) })
	defer keeper.Wait()
	defer close(quiet)
	gone := false
	in := bufio.NewScanner(reports)
	for in.Scan() {
		var r guardReport
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			continue // a line that a dying guard cut off
		}
		switch {
		case r.Error != "":
			c.note(r.Error)
			gone = true
			begun <- fmt.Errorf("%s cannot be started: %s", c.command[0], r.Error)
		case r.PID != 0:
			c.pid.Store(int64(r.PID))
			begun <- nil
		case r.Exit != "":
			c.note(r.Exit)
		}
		gone = gone || r.Gone
	}
	if c.pid.Load() == 0 && !gone {
		begun <- errors.New("its guard ended before it could start it: is this the orbitkv program?")
	}
	if !gone {
		c.clean()
	}
	_ = c.guard.Wait() // its charge's end was reported; how the guard itself ended changes nothing
	c.note("its guard ended, and it was killed")
}

// note keeps how the process ended; the first account stands.
func (c *child) note(exit string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exit == "" {
		c.exit = exit
		close(c.ended)
	}
}

// clean kills what a guard that died left behind, and waits until nothing of it lives.
func (c *child) clean() {
	end := time.Now().Add(afterKillLimit)
	for members := marked(c.mark); len(members) > 0; members = marked(c.mark) {
		if time.Now().After(end) {
			c.mu.Lock()
			c.left = fmt.Errorf("processes of the %s are left after SIGKILL: %v", c.part, members)
			c.mu.Unlock()
			return
		}
		signalAll(members, syscall.SIGKILL)
		time.Sleep(killEvery)
	}
}

// howEnded says how the process ended; empty while it runs.
func (c *child) howEnded() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exit
}

// wasStopped says whether its end was asked for.
func (c *child) wasStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// stop ends the process in order, by force after a limit or the guard's own, and returns when nothing of it is left.
func (c *child) stop(limit time.Duration) error {
	c.mu.Lock()
	c.stopped = true
	var err error
	if !c.closed {
		_, err = c.control.Write([]byte{'e'})
	}
	c.mu.Unlock()
	if err != nil {
		return c.kill() // the guard is dead; follow cleans up
	}
	select {
	case <-c.gone:
	case <-time.After(min(limit, guardStopLimit)):
	}
	return c.kill()
}

// abandon has all of the process killed, as an end that nobody asked for; why is how it ended. It does not wait.
func (c *child) abandon(why string) {
	c.note(why)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		_ = c.control.Close() // a pipe: nothing is lost
	}
}

// kill ends the process and all that came from it at once, and returns when nothing of it is left.
func (c *child) kill() error {
	c.mu.Lock()
	c.stopped = true
	if !c.closed {
		c.closed = true
		_ = c.control.Close() // a pipe: nothing is lost
	}
	c.mu.Unlock()
	select {
	case <-c.gone:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.left
	case <-time.After(guardEndLimit):
		return fmt.Errorf("the %s is not gone %v after SIGKILL: look for process %d and its children", c.part, guardEndLimit, c.pid.Load())
	}
}

// report says what the log tells of the end, in one line.
func (c *child) report(what string) string {
	if line := lastReason(tailOf(c.log, c.logFrom)); line != "" {
		return what + ": " + line
	}
	return strings.TrimSpace(what) + "; its log is empty"
}
