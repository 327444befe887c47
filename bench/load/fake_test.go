package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// script is what a fake engine writes for one request: each string is flushed by itself, and each gate is awaited before the next one.
type script struct {
	status  int
	headers map[string]string
	pieces  []string
	gates   map[int]<-chan struct{} // before the piece of that index
	cut     bool                    // the connection is broken after the last piece
	delay   func(piece int)         // called after a piece was flushed
}

// fakeEngine serves scripts in order, and keeps what it was asked.
type fakeEngine struct {
	*httptest.Server
	asked   []map[string]any
	headers []http.Header
	paths   []string
	opened  atomic.Int32 // connections
}

func serve(t *testing.T, scripts ...script) *fakeEngine {
	t.Helper()
	f := &fakeEngine{}
	next := 0
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte("{}"))
			return
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("the request's body: %v", err)
		}
		f.asked, f.headers, f.paths = append(f.asked, body), append(f.headers, r.Header), append(f.paths, r.URL.Path)
		if next >= len(scripts) {
			t.Errorf("request %d was not expected", next+1)
			return
		}
		scripts[next].play(w)
		next++
	}))
	f.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			f.opened.Add(1)
		}
	}
	f.Start()
	t.Cleanup(f.Close)
	return f
}

// play writes a script to one answer.
func (s script) play(w http.ResponseWriter) {
	for name, value := range s.headers {
		w.Header().Set(name, value)
	}
	if s.status != 0 {
		w.WriteHeader(s.status)
	}
	for i, piece := range s.pieces {
		if gate := s.gates[i]; gate != nil {
			<-gate
		}
		_, _ = w.Write([]byte(piece))
		_ = http.NewResponseController(w).Flush()
		if s.delay != nil {
			s.delay(i)
		}
	}
	if s.cut {
		panic(http.ErrAbortHandler)
	}
}

// stepped is a clock that stands still but for calls of add.
type stepped struct{ at chan time.Time }

func newStepped() *stepped {
	s := &stepped{make(chan time.Time, 1)}
	s.at <- time.Unix(1_700_000_000, 0)
	return s
}

func (s *stepped) now() time.Time {
	at := <-s.at
	s.at <- at
	return at
}

func (s *stepped) add(d time.Duration) { s.at <- (<-s.at).Add(d) }

const done = "data: [DONE]\n\n"

// vllmText is an event of vLLM: text, and the tokens generated so far.
func vllmText(text string, output int, finish string) string {
	reason := "null"
	if finish != "" {
		reason = fmt.Sprintf("%q", finish)
	}
	return fmt.Sprintf(`data: {"id":"cmpl-r1","object":"text_completion","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s}],`+
		`"usage":{"prompt_tokens":4,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", text, reason, output, 4+output)
}

// vllmUsage is the last event of vLLM.
func vllmUsage(prompt, output, cached int) string {
	return fmt.Sprintf(`data: {"id":"cmpl-r1","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,`+
		`"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n", prompt, output, prompt+output, cached)
}

// sglangText is an event of SGLang: the text so far, and the counts.
func sglangText(text string, output int, finish, more string) string {
	reason := "null"
	if finish != "" {
		reason = fmt.Sprintf(`{"type":%q,"length":3}`, finish)
	}
	return fmt.Sprintf(`data: {"text":%q,"output_ids":[1],"meta_info":{"id":"r1","finish_reason":%s,"prompt_tokens":4,"completion_tokens":%d%s}}`+"\n\n",
		text, reason, output, more)
}

const hostHit = `,"cached_tokens":3,"cached_tokens_details":{"device":1,"host":1,"storage":1}`

func fourTokens() Request { return Request{ID: "r1", Tokens: []int{5, 6, 7, 8}, OutputTokens: 3} }

// holds fails unless an error says all of the words.
func holds(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// announcedBody tells of a read when the reader comes back for more: what the read brought then has its time.
type announcedBody struct {
	io.ReadCloser
	read    chan<- struct{}
	brought bool
}

func (b *announcedBody) Read(into []byte) (int, error) {
	if b.brought {
		b.read <- struct{}{}
	}
	n, err := b.ReadCloser.Read(into)
	b.brought = n > 0
	return n, err
}
