package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"orbitkv/bench/record"
)

// Bounds of the wait for a process to be ready.
const (
	readyLimit = 900 * time.Second // a slow machine is no failure, only a dead process or this limit is
	readyEvery = 250 * time.Millisecond
	askLimit   = 10 * time.Second // of one question whether it is ready
	bodyAtMost = 1 << 20          // of its answer
)

// lastShare is the least of a bounded stop that a process keeps while those before it are ended; a Manager or a daemon needs it to remove its shared memory.
const lastShare = 3 * time.Second

const socketPathMax = 107 // bytes of the path of a Unix socket

// Stack is one engine with its cache service. Start makes one; its owner stops it.
type Stack struct {
	spec     Spec
	at       layout
	note     func(record.Launch)
	limit    time.Duration // for each process to be ready
	logs     logBounds
	children []*child // in the order of their start

	died    chan string
	dieOnce sync.Once
	noting  sync.Mutex // of note, and of every launch

	stopOnce sync.Once
	stopErr  error
	watchers sync.WaitGroup
}

// Start starts the cache service of the backend, then the engine, and returns when both are ready. On failure everything that it
// started is ended and the error is a *StartError, or a plain one where the Spec itself is wrong or ctx ended. note is called for each process when
// it has started, is ready and has ended, each time with the same Launch filled further; Part and Started identify it.
func Start(ctx context.Context, s Spec, note func(record.Launch)) (*Stack, error) {
	return start(ctx, s, note, readyLimit, ordinaryLog)
}

func start(ctx context.Context, s Spec, note func(record.Launch), limit time.Duration, logs logBounds) (*Stack, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	// Short and private: the path of a socket may have 108 bytes, and whoever can open it is trusted.
	folder, err := os.MkdirTemp(os.TempDir(), "okv-")
	if err != nil {
		return nil, fmt.Errorf("launch: a folder for the sockets: %w: name one with room by TMPDIR", err)
	}
	if socket := (layout{folder: folder}).socket(); len(socket) > socketPathMax {
		err := fmt.Errorf("launch: the socket %s has a path of %d bytes, the kernel takes %d: name a shorter folder by TMPDIR", socket, len(socket), socketPathMax)
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	k := &Stack{spec: s, at: layout{folder, ports[0], ports[1], ports[2], workerCores()}, note: note, limit: limit, logs: logs, died: make(chan string, 1)}
	processes, err := plan(&s, k.at)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	for i := range processes {
		if err := k.begin(ctx, &processes[i]); err != nil {
			return nil, errors.Join(err, k.end(func(c *child, _ int) error { return c.kill() }))
		}
	}
	return k, nil
}

// begin starts one process and waits until it is ready.
func (k *Stack) begin(ctx context.Context, p *process) error {
	log := k.spec.LogPath(p.part)
	for path, text := range p.files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("launch: %w", err)
		}
	}
	busy := record.Busy{Processors: onlineProcessors(os.DirFS("/")), Before: loadAverage(os.DirFS("/"))}
	c, err := startChild(k.spec.Manager, k.at.folder, *p, log, k.logs)
	if err != nil {
		return &StartError{Part: p.part, Reason: err.Error(), Log: log}
	}
	for path, text := range p.files {
		c.kept["file "+path] = text
	}
	k.children = append(k.children, c)
	launch := &record.Launch{
		Backend: k.spec.Backend, Pass: k.spec.Pass, Attempt: k.spec.Attempt, Part: p.part, Control: k.spec.Control,
		Command: p.command, Environment: c.kept, Log: logName(log), Started: c.started, Busy: busy,
	}
	k.tell(launch, func() {})
	k.watchers.Go(func() { k.watch(launch, c) })
	if err := k.await(ctx, c); err != nil {
		return err
	}
	k.tell(launch, func() { launch.ReadySeconds = time.Since(c.started).Seconds() })
	return nil
}

// logName is a log's path in the output directory, which holds logs one folder deep.
func logName(path string) string {
	return filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
}

// tell changes a launch and hands a copy of it to whoever keeps it.
func (k *Stack) tell(launch *record.Launch, change func()) {
	k.noting.Lock()
	defer k.noting.Unlock()
	change()
	if k.note != nil {
		k.note(*launch)
	}
}

// watch waits for the end of a process, and tells of it when nobody asked for it.
func (k *Stack) watch(launch *record.Launch, c *child) {
	<-c.ended
	exit := c.howEnded()
	if c.wasStopped() {
		<-c.gone
	} else {
		k.dieOnce.Do(func() {
			k.died <- c.report(fmt.Sprintf("the %s ended on its own with %s", c.part, exit))
			close(k.died)
		})
		exit += ", on its own"
	}
	k.tell(launch, func() { launch.Exit, launch.Busy.After = exit, loadAverage(os.DirFS("/")) })
}

// await returns when the process is ready. The error is a *StartError when it died or the limit passed, else that of ctx.
func (k *Stack) await(ctx context.Context, c *child) error {
	limit := time.NewTimer(k.limit)
	defer limit.Stop()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	client := &http.Client{
		Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // another server's health is not this one's
	}
	for {
		switch done, err := c.ready(ctx, client); {
		case err != nil:
			return &StartError{c.part, c.report(err.Error()), c.log}
		case done:
			return nil
		}
		select {
		case <-c.ended:
			<-c.gone // what it left behind has written its last words
			return &StartError{c.part, c.report("it ended with " + c.howEnded() + " while starting"), c.log}
		case <-limit.C:
			return &StartError{c.part, c.report(fmt.Sprintf("it did not answer %s as one that is ready within %v; the last that its log says", c.health, k.limit)), c.log}
		case <-ctx.Done():
			return fmt.Errorf("the start of the %s was broken off: %w", c.part, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// ready says whether a process is. The error says why it never will be.
func (p *process) ready(ctx context.Context, client *http.Client) (bool, error) {
	body, ok := fetch(ctx, client, p.url()+p.health)
	if !ok || p.judge == nil {
		return ok, nil
	}
	return p.judge(body)
}

// fetch returns what a process answers, and whether it answers 200.
func fetch(ctx context.Context, client *http.Client, url string) (body []byte, ok bool) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, false
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, false
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, bodyAtMost))
	return body, err == nil && answer.StatusCode == http.StatusOK
}

// Engine returns the base address of the engine.
func (k *Stack) Engine() string { return k.url(record.PartEngine) }

// Manager returns the base address of the Cache Manager's health, metrics and status; empty without one.
func (k *Stack) Manager() string { return k.url(record.PartManager) }

// Service returns the base address of another cache service, which serves /metrics; empty without one.
func (k *Stack) Service() string { return k.url(record.PartLMCache) }

func (k *Stack) url(part string) string {
	if c := k.part(part); c != nil {
		return c.url()
	}
	return ""
}

// Died receives one text when a process ended although nobody asked it to: which one, how, and what its log says. Then it is closed.
// After an ordinary Stop it stays silent.
func (k *Stack) Died() <-chan string { return k.died }

// Stop ends the engine and then the service: SIGTERM to each, SIGKILL to it and all that came from it 30 s later. When it returns without an error,
// nothing of them is left. It may be called again, and returns the same.
func (k *Stack) Stop() error { return k.StopWithin(time.Duration(len(k.children)) * guardStopLimit) }

// StopWithin is Stop for a caller who has less time: what does not end in order by itself is killed early enough for all to be gone after the limit, as
// far as the kernel buries them at once. Each process that is still to come keeps lastShare, or its equal share of a shorter time.
func (k *Stack) StopWithin(limit time.Duration) error {
	k.stopOnce.Do(func() {
		end := time.Now().Add(min(limit, time.Duration(len(k.children))*guardStopLimit))
		k.stopErr = k.end(func(c *child, after int) error { return c.stop(grace(time.Until(end), after)) })
	})
	return k.stopErr
}

// grace is how long a process may take to end in order, out of the time that is left for it and for those after it.
func grace(left time.Duration, after int) time.Duration {
	return max(0, left-time.Duration(after)*lastShare, left/time.Duration(after+1))
}

// end ends all processes in the opposite order of their start, then removes what they met in. how is told how many come after.
func (k *Stack) end(how func(c *child, after int) error) error {
	var errs []error
	for i := len(k.children) - 1; i >= 0; i-- {
		errs = append(errs, how(k.children[i], i))
	}
	k.watchers.Wait()
	return errors.Join(append(errs, os.RemoveAll(k.at.folder))...)
}
