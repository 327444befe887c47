package admin

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"orbitkv/internal/cache"
)

// Bounds of the HTTP server.
const (
	requestWait   = 10 * time.Second // to read a request
	answerWait    = 60 * time.Second // to write its answer
	idleWait      = 2 * time.Minute  // of a connection between requests
	headBytesMax  = 16 << 10
	scrapesMax    = 4 // gathered at once; more are answered 503
	requestsMax   = 64
	openMax       = 256             // connections, idle ones included: each costs a descriptor that an engine's connection may need
	shutdownGrace = 2 * time.Second // for answers under way when the Manager stops
)

// Config is how the server reads the Manager and what it may tell it.
type Config struct {
	Address string // host:port; the caller has decided who may reach it
	Token   *Token
	Status  func() Status
	Verify  func() []cache.Violation
	Clear   func() (ClearReport, error)
	Cleanup func() cache.CleanupReport
	Metrics prometheus.Gatherer
	Refused *prometheus.CounterVec // what found a bound of the server reached, by bound
	Log     *slog.Logger

	VerifySSD VerifySSD // nil without an SSD tier
}

// Server serves until Close.
type Server struct {
	http     http.Server
	listener net.Listener
	done     chan struct{}
	config   Config
	slots    chan struct{}
	verifies *gate

	verifyingSSD chan struct{} // has room for the one that may run

	mu      sync.Mutex
	open    int               // connections
	waiting map[net.Conn]bool // those of them that wait for a request
}

// Listen binds the address and serves.
func Listen(config Config) (*Server, error) {
	listener, err := net.Listen("tcp", config.Address)
	if err != nil {
		return nil, fmt.Errorf("HTTP address %s: %w: name another one with --http-addr, or `off`", config.Address, err)
	}
	s := &Server{listener: listener, done: make(chan struct{}), config: config, slots: make(chan struct{}, requestsMax), verifies: newGate(), waiting: map[net.Conn]bool{}, verifyingSSD: make(chan struct{}, 1)}
	s.http = http.Server{
		Handler: s.handler(), ReadTimeout: requestWait, WriteTimeout: answerWait, IdleTimeout: idleWait, MaxHeaderBytes: headBytesMax,
		ErrorLog: slog.NewLogLogger(config.Log.Handler(), slog.LevelDebug), ConnState: s.count,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			config.Log.Error("HTTP ended", "error", err)
		}
	}()
	return s, nil
}

// count closes a connection that waits, for its first request or the next one, when more than openMax are open. It takes any of them, so
// that whoever holds many loses most and nobody can keep the others out.
func (s *Server) count(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.open++
		if s.open > openMax {
			s.config.Refused.WithLabelValues("connections").Inc()
			s.closeOne()
		}
		s.waiting[conn] = true
	case http.StateIdle:
		s.waiting[conn] = true
	case http.StateClosed:
		delete(s.waiting, conn)
		s.open--
	}
}

// connKey is the place of a request's connection in its context.
type connKey struct{}

// begin says that a request has come whole enough to be answered. One whose head comes byte by byte waits still.
func (s *Server) begin(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	delete(s.waiting, conn)
}

// closeOne closes one connection that waits; with mu held. Those that are being answered end by themselves.
func (s *Server) closeOne() {
	for conn := range s.waiting {
		delete(s.waiting, conn)
		if err := conn.Close(); err != nil {
			s.config.Log.Debug("closing a connection", "error", err)
		}
		return
	}
}

// Address is where the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Close lets answers under way end and stops.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	<-s.done
	return err
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("GET /verify", s.verify)
	mux.HandleFunc("GET /verify/ssd", s.verifySSD)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.config.Metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesMax, ErrorLog: slog.NewLogLogger(s.config.Log.Handler(), slog.LevelWarn),
	}))
	mux.HandleFunc("POST /cache/clear", s.verb("cache cleared", s.config.Clear))
	mux.HandleFunc("POST /cache/memory/cleanup", s.verb("memory cleaned up", func() (ClearReport, error) {
		return ClearReport{CleanupReport: s.config.Cleanup()}, nil
	}))
	return s.bounded(s.local(mux))
}

// bounded refuses what would wait behind too many other requests. Health is answered always: whoever asks may end the Manager, and the
// whole cache with it, for want of an answer.
func (s *Server) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.begin(r)
		if r.URL.Path == "/healthz" {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			next.ServeHTTP(w, r)
		default:
			s.config.Refused.WithLabelValues("requests").Inc()
			http.Error(w, fmt.Sprintf("%d requests are being answered, the most at once: try again", requestsMax), http.StatusServiceUnavailable)
		}
	})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusOK, "ok")
}

// ready answers 200 once memory can be lent.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	status := s.config.Status()
	if status.SocketError != "" {
		writeText(w, http.StatusServiceUnavailable, status.SocketError)
		return
	}
	pool := status.Pool
	if pool.PopulatedBytes == 0 {
		writeText(w, http.StatusServiceUnavailable, fmt.Sprintf("populating: 0 of %d bytes", pool.ConfiguredBytes))
		return
	}
	writeText(w, http.StatusOK, fmt.Sprintf("ready: %d of %d bytes are populated", pool.PopulatedBytes, pool.ConfiguredBytes))
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	status := s.config.Status()
	status.HTTPAddress = s.Address()
	writeJSON(w, http.StatusOK, status)
}

// Verification is the answer of /verify.
type Verification struct {
	OK         bool              `json:"ok"`
	Violations []cache.Violation `json:"violations"`
}

// verify answers 200 when every invariant of the live cache holds, 500 with what does not, and 503 while another one is asked for.
func (s *Server) verify(w http.ResponseWriter, r *http.Request) {
	var found []cache.Violation
	if err := s.verifies.pass(r.Context(), func() { found = s.config.Verify() }); err != nil {
		if errors.Is(err, errVerifying) {
			s.config.Refused.WithLabelValues("verifications").Inc()
		}
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	code := http.StatusOK
	if len(found) > 0 {
		code = http.StatusInternalServerError
		s.config.Log.Error("the cache breaks its invariants", "violations", len(found), "first", found[0])
	}
	if found == nil {
		found = []cache.Violation{}
	}
	writeJSON(w, code, Verification{OK: len(found) == 0, Violations: found})
}

// Cleanup is the answer of the verbs.
type Cleanup struct {
	EvictedBlocks         uint64 `json:"evicted_blocks"`          // pages that left the index
	EvictedBytes          uint64 `json:"evicted_bytes"`           // their padded footprint
	ReclaimedBytes        uint64 `json:"reclaimed_bytes"`         // of it: free at once
	StillReferencedBlocks uint64 `json:"still_referenced_blocks"` // of them: pages that a lease holds; their bytes come back with its end
	SSDPages              uint64 `json:"ssd_pages"`               // pages that left the SSD
	SSDBytes              uint64 `json:"ssd_bytes"`               // their padded footprint
}

// ClearReport is what emptying memory, and the SSD where it is emptied too, did.
type ClearReport struct {
	cache.CleanupReport
	SSDPages, SSDBytes uint64 // that could be read when the clear began
}

// verb guards a change of state with the token.
func (s *Server) verb(what string, act func() (ClearReport, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.allowed(r) {
			s.demandToken(w, "this changes state")
			return
		}
		report, err := act()
		s.config.Log.Info(what, "evicted_pages", report.EvictedPages, "reclaimed_bytes", report.ReclaimedBytes, "still_referenced_pages", report.StillReferencedPages, "ssd_pages", report.SSDPages, "ssd_bytes", report.SSDBytes)
		if err != nil {
			s.config.Log.Warn(what+", but not on every folder of the SSD", "error", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		writeJSON(w, http.StatusOK, Cleanup{
			EvictedBlocks: report.EvictedPages, EvictedBytes: report.EvictedBytes,
			ReclaimedBytes: report.ReclaimedBytes, StillReferencedBlocks: report.StillReferencedPages,
			SSDPages: report.SSDPages, SSDBytes: report.SSDBytes,
		})
	}
}

func (s *Server) allowed(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(given), []byte(s.config.Token.secret)) == 1
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return // the reader has gone: there is nobody to tell
	}
}
