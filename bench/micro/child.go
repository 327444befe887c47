package micro

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// stopTimeout is how long a child may take to end in order.
const stopTimeout = 20 * time.Second

// child is a process that ends with this one.
type child struct {
	process *os.Process
	exited  chan error // its end, once
}

// startChild starts the program in a process group of its own, so that Ctrl-C in a terminal reaches this process alone, which then ends its
// children in order. Variables of the environment that change a Manager do not reach it: it would not be the one that was asked for.
func startChild(program string, arguments ...string) (*child, error) {
	cmd := exec.Command(program, arguments...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ORBITKV_") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started, exited := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the kernel sends the signal when this thread ends, and the thread waits as long as the child lives
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &child{process: cmd.Process, exited: exited}, nil
}

// stop ends the child; the error says how it ended when that was not in order.
func (c *child) stop() error {
	err := c.process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case exit := <-c.exited:
		return errors.Join(err, exit)
	case <-time.After(stopTimeout):
		return errors.Join(err, fmt.Errorf("process %d did not end within %v of a SIGTERM and was killed", c.process.Pid, stopTimeout), c.process.Kill(), <-c.exited)
	}
}
