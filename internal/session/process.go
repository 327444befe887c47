package session

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

// processesMax bounds the living processes that have connected at least once; each holds one descriptor.
const processesMax = 4096

// processKey names one process for the life of the machine.
type processKey struct {
	pid       int
	startTime uint64
}

// process is one living process that has connected. Server.mu guards conns.
type process struct {
	key     processKey
	id      cache.ProcessID
	pidfd   *os.File
	conns   map[*conn]bool
	readers sync.WaitGroup // of its connections
}

// join adds the connection to its process, which becomes known with its first one. It takes the pidfd over.
func (s *Server) join(c *conn, who peer) (*process, error) {
	s.joining.Lock()
	defer s.joining.Unlock()
	key := processKey{who.pid, who.startTime}
	if p := s.joinKnown(c, key); p != nil {
		return p, unix.Close(who.pidfd)
	}
	if s.processCount() >= processesMax {
		return nil, errors.Join(wire.Errorf(wire.StatusBusy, "%d processes have connected and live, the most that a Manager watches", processesMax), unix.Close(who.pidfd))
	}
	// Non-blocking, so that the runtime's poller takes the file and a waiting process costs no thread.
	if err := unix.SetNonblock(who.pidfd, true); err != nil {
		return nil, errors.Join(wire.Errorf(wire.StatusNoLiveness, "the pidfd of process %d cannot be watched: %v", who.pid, err), unix.Close(who.pidfd))
	}
	p := &process{key: key, pidfd: os.NewFile(uintptr(who.pidfd), fmt.Sprintf("pidfd of %d", who.pid)), conns: map[*conn]bool{c: true}}
	p.id = s.cache.OpenProcess(cache.Process{PID: who.pid, StartTime: who.startTime, Command: who.command, UID: int(who.uid)})
	p.readers.Add(1)
	s.mu.Lock()
	s.processes[key] = p
	s.mu.Unlock()
	s.watchers.Go(func() { s.watch(p) })
	return p, nil
}

func (s *Server) joinKnown(c *conn, key processKey) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.processes[key]
	if p != nil {
		p.conns[c] = true
		p.readers.Add(1)
	}
	return p
}

func (s *Server) processCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.processes)
}

// leave takes a connection that will handle no more frames from its process.
func (s *Server) leave(c *conn) {
	s.mu.Lock()
	delete(c.process.conns, c)
	s.mu.Unlock()
	c.process.readers.Done()
}

// watch waits for the process's end and tells the cache.
func (s *Server) watch(p *process) {
	if err := waitForExit(p.pidfd); err != nil {
		return // the server closed the file: nothing is known about the process, so nothing is freed (I2)
	}
	s.mu.Lock()
	delete(s.processes, p.key)
	for c := range p.conns {
		c.stopReading()
	}
	s.mu.Unlock()
	// What the process wrote before its end is handled first: a commit or a begin that it sent still counts.
	p.readers.Wait()
	s.log.Info("process exited", "pid", p.key.pid)
	s.cache.ProcessExited(p.id) // I1: the kernel's proof, the only one
	if err := p.pidfd.Close(); err != nil {
		s.log.Warn("closing a pidfd", "pid", p.key.pid, "error", err)
	}
}

// waitForExit returns nil when the process has exited, and an error when the file was closed.
func waitForExit(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return exited(int(fd)) })
}
