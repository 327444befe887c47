package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"orbitkv/internal/cache"
	"orbitkv/internal/ssd"
)

// rig is a server whose Manager is made of the members that a test sets.
type rig struct {
	*testing.T
	server      *Server
	token       *Token
	populated   atomic.Uint64
	socketError atomic.Value // string
	broken      atomic.Bool
	verbs       atomic.Uint64
	verifying   func() // called by each verification
	uncleared   error  // of each clear
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, verifying: func() {}}
	var err error
	if r.token, err = OpenToken(filepath.Join(t.TempDir(), "token"), false); err != nil {
		t.Fatal(err)
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"bound"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(refused)
	act := func() cache.CleanupReport {
		r.verbs.Add(1)
		return cache.CleanupReport{EvictedPages: 1, EvictedBytes: 2, ReclaimedBytes: 3, StillReferencedPages: 4}
	}
	r.server, err = Listen(Config{
		Address: "127.0.0.1:0", Token: r.token, Metrics: registry, Refused: refused, Log: slog.New(slog.DiscardHandler), Cleanup: act,
		Clear: func() (ClearReport, error) {
			return ClearReport{CleanupReport: act(), SSDPages: 5, SSDBytes: 6}, r.uncleared
		},
		Status: func() Status {
			lost, _ := r.socketError.Load().(string)
			return Status{Health: "ok", SocketError: lost, Pool: Pool{ConfiguredBytes: 10, PopulatedBytes: r.populated.Load()}}
		},
		Verify: func() []cache.Violation {
			r.verifying()
			if r.broken.Load() {
				return []cache.Violation{{Invariant: 6, Text: "a page was freed"}}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.server.Close(), r.token.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// ask sends a request and returns its status and body.
func (r *rig) ask(method, path, authorization string) (int, string) {
	r.Helper()
	request, err := http.NewRequest(method, "http://"+r.server.Address()+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func (r *rig) want(method, path, authorization string, code int, part string) {
	r.Helper()
	if got, body := r.ask(method, path, authorization); got != code || !strings.Contains(body, part) {
		r.Errorf("%s %s: %d %q, want %d with %q", method, path, got, body, code, part)
	}
}

func TestReadyMeansThatMemoryCanBeLent(t *testing.T) {
	r := newRig(t)
	r.want("GET", "/healthz", "", 200, "ok")
	r.want("GET", "/readyz", "", 503, "0 of 10 bytes")
	r.populated.Store(4)
	r.want("GET", "/readyz", "", 200, "4 of 10 bytes")
	r.socketError.Store("the socket is gone")
	r.want("GET", "/readyz", "", 503, "gone")
	r.want("GET", "/status", "", 200, `"populated_bytes": 4`)
	r.want("GET", "/metrics", "", 200, "")
	r.want("GET", "/absent", "", 404, "")
}

func TestVerifyAnswersWhatIsBroken(t *testing.T) {
	r := newRig(t)
	r.want("GET", "/verify", "", 200, `"ok": true`)
	r.broken.Store(true)
	r.want("GET", "/verify", "", 500, "a page was freed")
}

func TestVerbsNeedTheToken(t *testing.T) {
	r := newRig(t)
	text, err := os.ReadFile(r.token.Path)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimSpace(string(text))
	for _, path := range []string{"/cache/clear", "/cache/memory/cleanup"} {
		for _, authorization := range []string{"", "Bearer ", "Bearer " + secret + "x", "Bearer " + secret[1:], "Basic " + secret, secret} {
			r.want("POST", path, authorization, 401, "token")
		}
		r.want("GET", path, "Bearer "+secret, 405, "")
	}
	if n := r.verbs.Load(); n != 0 {
		t.Fatalf("%d verbs ran without the token", n)
	}
	_, body := r.ask("POST", "/cache/clear", "Bearer "+secret)
	var got Cleanup
	if err := json.Unmarshal([]byte(body), &got); err != nil || got != (Cleanup{1, 2, 3, 4, 5, 6}) {
		t.Errorf("%q: %v", body, err)
	}
	r.want("POST", "/cache/memory/cleanup", "Bearer "+secret, 200, `"still_referenced_blocks": 4`)
	r.uncleared = errors.New("a folder is off")
	r.want("POST", "/cache/clear", "Bearer "+secret, 500, "a folder is off")
}

func TestTheTokenFileIsTheOwnersAndGoesWithItsMaker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("left over from a Manager that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := OpenToken(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v; want mode 0600", info.Mode(), err)
	}
	read, err := OpenToken(path, true)
	if err != nil || read.secret != made.secret || len(read.secret) != 64 {
		t.Errorf("read %v, %v", read, err)
	}
	if err := read.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a token that somebody brought was removed: %v", err)
	}
	if err := made.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the token file is left: %v", err)
	}
}

func TestATokenThatOthersCanReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", strings.Repeat("s", tokenBytesMin), 0o600)
	if _, err := OpenToken(good, true); err != nil {
		t.Error(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{
		"readable by others": write("open", strings.Repeat("s", 32), 0o644), "short": write("short", "s", 0o600),
		"long": write("long", strings.Repeat("s", tokenBytesMax+1), 0o600), "a link": link, "a folder": dir,
	} {
		if _, err := OpenToken(path, true); err == nil {
			t.Errorf("a token that is %s was taken", what)
		}
	}
	for _, path := range []string{link, dir} {
		if _, err := OpenToken(path, false); err == nil {
			t.Errorf("%s was replaced", path)
		}
	}
}

func TestATokenThatCannotBeWrittenLeavesNoFile(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 8, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "token")
	_, err := OpenToken(path, true)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if _, missing := os.Lstat(path); err == nil || !os.IsNotExist(missing) {
		t.Errorf("a disk that is full: %v, and the file: %v", err, missing)
	}
}

func TestHealthIsJudgedByWhatIsHeld(t *testing.T) {
	s := Status{Pool: Pool{ConfiguredBytes: 1000}}
	if s.Judge(100, 0); s.Health != "ok" || len(s.Reasons) != 0 {
		t.Errorf("a tenth of the pool stalled: %s %v", s.Health, s.Reasons)
	}
	for _, held := range [][2]uint64{{101, 0}, {0, 1}} {
		if s.Judge(held[0], held[1]); s.Health != "degraded" || len(s.Reasons) != 1 {
			t.Errorf("%v: %s %v", held, s.Health, s.Reasons)
		}
	}
	s.SocketError = "the socket is gone"
	if s.Judge(0, 0); s.Health != "degraded" || !strings.Contains(s.Reasons[0], "gone") {
		t.Errorf("%s %v", s.Health, s.Reasons)
	}
	s.SSD = &SSD{Volumes: []ssd.VolumeStatus{{Name: "/good", State: "on"}, {Name: "/bad", State: "off", Reason: "no disk"}}}
	s.SocketError = ""
	if s.Judge(0, 0); s.Health != "degraded" || len(s.Reasons) != 1 || !strings.Contains(s.Reasons[0], "/bad") || !strings.Contains(s.Reasons[0], "no disk") {
		t.Errorf("%s %v", s.Health, s.Reasons)
	}
	s.SSD = &SSD{Volumes: []ssd.VolumeStatus{{Name: "/full", State: "read_only", Reason: "no space"}}}
	if s.Judge(0, 0); s.Health != "degraded" || len(s.Reasons) != 1 || !strings.Contains(s.Reasons[0], "/full is read-only") || !strings.Contains(s.Reasons[0], "no space") {
		t.Errorf("%s %v", s.Health, s.Reasons)
	}
	s.SSD = nil
	s.Pool.Error = "no memory"
	if s.Judge(0, 0); s.Health != "degraded" || !strings.Contains(s.Reasons[0], "no memory") {
		t.Errorf("%s %v", s.Health, s.Reasons)
	}
}

func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	r := newRig(t)
	held := make([]net.Conn, 2*openMax)
	for i := range held {
		conn, err := net.Dial("tcp", r.server.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		held[i] = conn
		if i%2 == 0 { // the head of a request that never ends
			conn.Write([]byte("GET /healthz HTTP/1.1\r\n"))
		}
	}
	open := func() int {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.open
	}
	r.want("GET", "/healthz", "", 200, "ok") // accepted after all of them
	for open() > openMax {
		runtime.Gosched()
	}
	for _, conn := range held {
		conn.Close()
	}
	for open() > 1 { // the one of the request is idle
		runtime.Gosched()
	}
	r.want("GET", "/metrics", "", 200, fmt.Sprintf(`refused{bound="connections"} %d`, openMax+1))
}

func TestRequestsAtOnceAreBounded(t *testing.T) {
	r := newRig(t)
	for range requestsMax {
		r.server.slots <- struct{}{}
	}
	r.want("GET", "/status", "", 503, "try again")
	r.want("GET", "/healthz", "", 200, "ok") // whatever else is asked
	for range requestsMax {
		<-r.server.slots
	}
	r.want("GET", "/metrics", "", 200, `refused{bound="requests"} 1`)
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	r := newRig(t)
	_, err := Listen(Config{Address: r.server.Address(), Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--http-addr") {
		t.Errorf("%v, want an error that names --http-addr", err)
	}
}
