package session

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"orbitkv/internal/arena"
	"orbitkv/internal/cache"
	"orbitkv/internal/metrics"
	"orbitkv/internal/wire"
)

// Bounds of the server.
const (
	connectionsMax = cache.SessionsMax + 64 // open connections, those before their hello included
	helloWait      = 10 * time.Second       // for the first frame of a connection
	arenaRetry     = 50 * time.Millisecond  // until an arena that did not fit the socket is sent again
	acceptPause    = 100 * time.Millisecond // after the kernel refused a connection for want of descriptors or memory
	acceptTell     = 10 * time.Second       // between two lines in the log about it
)

// Config is what a Server works with.
type Config struct {
	Socket            string // path
	Cache             *cache.Cache
	Incarnation       wire.ID16
	PoolBytes         uint64
	SessionOperations uint32
	Metrics           *metrics.Channel
	Log               *slog.Logger
}

// Server is the Manager's end of the channel.
type Server struct {
	cache   *cache.Cache
	config  Config
	metrics *metrics.Channel
	log     *slog.Logger
	socket  *socketFile

	unfinished budget // of operations whose parts have not all come
	unsent     budget // of answers that were not read

	joining  sync.Mutex     // one connection at a time enters its process; taken before mu
	readers  sync.WaitGroup // accept loop and connections
	watchers sync.WaitGroup // one a process

	mu        sync.Mutex
	conns     map[*conn]bool
	taken     uint64 // connections, ever
	processes map[processKey]*process
	arenas    []*arena.Arena // lent, in order
	closing   bool
}

// Listen binds the socket and starts to take connections. The error says what is in the way and what to do.
func Listen(config Config) (*Server, error) {
	socket, err := listen(config.Socket)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cache: config.Cache, config: config, metrics: config.Metrics, log: config.Log, socket: socket,
		unfinished: budget{most: unfinishedBytesMax}, unsent: budget{most: unsentBytesMax},
		conns: map[*conn]bool{}, processes: map[processKey]*process{},
	}
	s.readers.Go(s.accept)
	return s, nil
}

// AddArena sends an arena to every attached session, now and to those that attach later. The cache must lend it already.
func (s *Server) AddArena(a *arena.Arena) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arenas = append(s.arenas, a)
	for c := range s.conns {
		if c.attached.Load() {
			c.out.signal()
		}
	}
}

// arenasFrom returns the lent arenas from position n on.
func (s *Server) arenasFrom(n int) []*arena.Arena {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arenas[n:len(s.arenas):len(s.arenas)]
}

// Connections returns how many connections are open.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// CheckSocket returns nil while the socket's path leads to this Manager; the error says what became of it and what to do.
func (s *Server) CheckSocket() error { return s.socket.check() }

// accept takes connections until the listener is closed.
func (s *Server) accept() {
	var told time.Time
	for {
		conn, err := s.socket.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.metrics.Turned.WithLabelValues(metrics.ReasonSystem).Inc()
			if now := time.Now(); now.Sub(told) >= acceptTell {
				told = now
				s.log.Warn("a connection could not be taken: raise the limit of open files if this stays", "error", err)
			}
			time.Sleep(acceptPause)
			continue
		}
		s.start(conn)
	}
}

// start runs a connection. At the bound it closes the one that has waited longest for its hello to make room, or refuses the new one when all said hello.
func (s *Server) start(nc *net.UnixConn) {
	c, err := newConn(s, nc)
	if err != nil {
		s.log.Warn("a connection could not be used", "error", errors.Join(err, nc.Close()))
		return
	}
	s.mu.Lock()
	var mute *conn
	if len(s.conns) >= connectionsMax && !s.closing {
		mute = s.longestMute()
		delete(s.conns, mute)
	}
	full, closing := len(s.conns) >= connectionsMax, s.closing
	if !full && !closing {
		s.taken++
		c.number = s.taken
		s.conns[c] = true
		s.readers.Go(c.run)
	}
	s.mu.Unlock()
	if mute != nil {
		s.metrics.Turned.WithLabelValues(metrics.ReasonBound).Inc()
		mute.refuse(wire.Errorf(wire.StatusBusy, "no hello came, and as many connections are open as a Manager takes: connect again and say hello at once"))
	}
	if full {
		s.metrics.Turned.WithLabelValues(metrics.ReasonBound).Inc()
		c.refuse(wire.Errorf(wire.StatusBusy, "%d connections are open, the most that a Manager takes: stop some clients", connectionsMax))
	}
	if closing {
		c.refuse(stopping())
	}
}

// longestMute returns the connection that has waited longest for its hello, nil when there is none; with mu held.
func (s *Server) longestMute() (longest *conn) {
	for c := range s.conns {
		if !c.greeted && (longest == nil || c.number < longest.number) {
			longest = c
		}
	}
	return longest
}

// greet says that a connection's hello has come.
func (s *Server) greet(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.greeted = true
}

func stopping() *wire.Error {
	return wire.Errorf(wire.StatusStopping, "the Cache Manager is shutting down: connect again when it is back")
}

// forget takes a connection off the table.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Close tells every client that the Manager stops, closes all connections, removes the socket and waits for every goroutine. A second call
// does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	err := s.socket.close()
	for _, c := range conns {
		c.refuse(stopping())
	}
	s.readers.Wait()
	s.mu.Lock()
	var files []*os.File
	for _, p := range s.processes {
		files = append(files, p.pidfd)
	}
	s.mu.Unlock()
	for _, f := range files {
		if fault := f.Close(); fault != nil && !errors.Is(fault, os.ErrClosed) {
			err = errors.Join(err, fault)
		}
	}
	s.watchers.Wait()
	if err != nil {
		return fmt.Errorf("closing the socket: %w", err)
	}
	return nil
}
