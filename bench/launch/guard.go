package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// GuardVerb is the hidden verb of the orbitkv program that runs Guard.
const GuardVerb = "bench-guard"

// Bounds of how a guard ends its charge.
const (
	stopLimit    = 30 * time.Second // from SIGTERM to SIGKILL
	strayLimit   = 5 * time.Second  // for what a charge left behind when it ended on its own, to write its last words
	trackerLimit = 10 * time.Second // for Python's resource trackers to remove the shared memory of the killed
	killEvery    = 50 * time.Millisecond
)

// patience is how long a guard waits before SIGKILL.
type patience struct{ stop, stray, tracker time.Duration }

// folderVariable names the private folder of the stack to a guard, which removes it when the measurement cannot.
const folderVariable = "BENCH_FOLDER"

// guardReports is the descriptor on which a guard writes its reports, one JSON object a line.
const guardReports = 3

// guardReport is one thing that a guard tells the measurement.
type guardReport struct {
	PID   int    `json:"pid,omitempty"`   // of the charge, once it runs
	Error string `json:"error,omitempty"` // why it could not be started
	Exit  string `json:"exit,omitempty"`  // how the charge ended
	Gone  bool   `json:"gone,omitempty"`  // nothing of it is left
}

// Guard runs a command line, its charge, as a session of its own and sees to its end. Its standard input is the pipe that only the
// measurement holds: a byte asks for an end in order, the end of file for an end at once. It returns when every process that came from the
// charge is gone, those in other sessions included: the kernel hands each orphan to the guard, so none can hide. The error says what of
// the guard itself failed.
func Guard(command []string) error {
	return guardCharge(command, patience{stopLimit, strayLimit, trackerLimit})
}

func guardCharge(command []string, limits patience) error {
	if len(command) == 0 {
		return errors.New("the guard was given no command: only a measurement starts it")
	}
	runtime.LockOSThread() // the charge is told of the end of the thread that started it, so that thread must last as long as the guard
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	// Whoever kills every orbitkv by name means the measurement, and needs the guard to live for what is left.
	if err := os.WriteFile("/proc/self/comm", []byte(GuardVerb), 0); err != nil {
		return fmt.Errorf("take a name of its own: %w", err)
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	unix.CloseOnExec(guardReports) // the end of this pipe tells of the guard's end, so nobody else may hold it
	reports := json.NewEncoder(os.NewFile(guardReports, "reports"))

	pid, err := startCharge(command)
	if err != nil {
		return errors.Join(reports.Encode(guardReport{Error: err.Error()}), err)
	}
	g := guard{
		pid: pid, limits: limits, reports: reports, running: true, deadline: time.NewTimer(time.Hour), tick: time.NewTicker(killEvery),
		ended: make(chan syscall.WaitStatus, 1), gone: make(chan struct{}), words: make(chan bool),
	}
	g.deadline.Stop()
	g.tick.Stop()                             // until it kills: a guard must not wake up beside a measurement
	_ = reports.Encode(guardReport{PID: pid}) // a measurement that is gone has closed the other pipe, too, which ends the charge
	go g.reap()
	go g.listen()
	g.watch(asked)
	_ = reports.Encode(guardReport{Gone: true})
	if folder := os.Getenv(folderVariable); folder != "" && g.abandoned {
		return os.RemoveAll(folder)
	}
	return nil
}

// startCharge starts the command in a session of its own, with an empty input and the guard's own output. It dies with the guard, should
// somebody kill the guard and the measurement at once.
func startCharge(command []string) (int, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	process, err := os.StartProcess(path, command, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{null, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	return process.Pid, nil
}

// guard is the state of one Guard; watch alone changes it.
type guard struct {
	pid       int
	limits    patience
	asked     bool // to end in order
	abandoned bool // nobody is left who would tidy up
	reports   *json.Encoder
	running   bool // the charge itself
	killing   time.Time
	deadline  *time.Timer
	tick      *time.Ticker
	ended     chan syscall.WaitStatus // of the charge
	gone      chan struct{}           // closed when no process is left
	words     chan bool               // from the measurement: true asks for an end in order, false for an end at once
}

// reap buries every process that the guard is the parent of, until there is none.
func (g *guard) reap() {
	defer close(g.gone)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD: nobody is left
			return
		case pid == g.pid && (status.Exited() || status.Signaled()):
			g.ended <- status
		}
	}
}

// listen passes on what the measurement says; its last word is the end of the pipe.
func (g *guard) listen() {
	in := bufio.NewReader(os.Stdin)
	for {
		_, err := in.ReadByte()
		g.words <- err == nil
		if err != nil {
			return
		}
	}
}

// watch ends the charge when it is told to, and returns when nothing of it is left.
func (g *guard) watch(asked <-chan os.Signal) {
	for {
		select {
		case <-g.gone:
			g.end()
			return
		case status := <-g.ended:
			g.charge(status)
		case inOrder := <-g.words:
			if !inOrder {
				g.abandoned = true
				g.kill()
				continue
			}
			g.terminate()
		case <-asked:
			g.kill()
		case <-g.deadline.C:
			g.kill()
		case <-g.tick.C:
			g.killRound()
		}
	}
}

// end reports the charge's status if it came with the last process.
func (g *guard) end() {
	select {
	case status := <-g.ended:
		g.charge(status)
	default:
	}
}

// charge takes note that the charge ended. What it left behind has a moment to end as well; after an end in order, the rest of that limit.
func (g *guard) charge(status syscall.WaitStatus) {
	_ = g.reports.Encode(guardReport{Exit: exitText(status)})
	g.running = false
	if !g.asked {
		g.deadline.Reset(g.limits.stray)
	}
}

// terminate asks the charge to end, or what it left behind if it has ended.
func (g *guard) terminate() {
	if !g.killing.IsZero() {
		return
	}
	if g.running {
		_ = syscall.Kill(g.pid, syscall.SIGTERM)
	} else {
		signalAll(descendants(os.Getpid()), syscall.SIGTERM)
	}
	g.asked = true
	g.deadline.Reset(g.limits.stop)
}

// kill begins to end everything by SIGKILL.
func (g *guard) kill() {
	if g.killing.IsZero() {
		g.killing = time.Now()
		g.tick.Reset(killEvery)
		g.killRound()
	}
}

// killRound kills what there is now; a process that starts another meanwhile is met in the next round. Python's resource trackers
// go last: when all others are gone they remove the shared memory that those left, hundreds of megabytes of an engine, and end.
func (g *guard) killRound() {
	var victims []int
	patient := time.Since(g.killing) < g.limits.tracker
	for _, pid := range descendants(os.Getpid()) {
		if !patient || !tracksResources(pid) {
			victims = append(victims, pid)
		}
	}
	signalAll(victims, syscall.SIGKILL)
}

func signalAll(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // one that ended meanwhile is what is wanted
	}
}

func exitText(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("signal %d (%v)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
