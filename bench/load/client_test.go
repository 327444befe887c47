package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"orbitkv/bench/record"
)

func wholeVLLM() script {
	return script{pieces: []string{
		vllmText("", 1, ""), vllmText("a ", 1, ""), vllmText("b", 2, ""), vllmText(" c", 3, "length"), vllmUsage(4, 3, 2), done,
	}}
}

func wholeSGLang() script {
	return script{pieces: []string{
		sglangText("", 1, "", `,"cached_tokens":3`), sglangText("a ", 1, "", hostHit), sglangText("a b", 2, "", hostHit),
		sglangText("a b", 2, "", hostHit), sglangText("a b c", 3, "length", hostHit), done,
	}}
}

// TestWholeAnswers sees what is asked of each engine and what is understood of its answer; the clock moves one second with each piece.
func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	cases := []struct {
		engine string
		script script
		path   string
		chunks []time.Duration
		device int
		outer  int
		cached int
	}{
		{record.VLLM, wholeVLLM(), "/v1/completions", []time.Duration{1 * time.Second, 2 * time.Second, 3 * time.Second}, -1, -1, 2},
		{record.SGLang, wholeSGLang(), "/generate", []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second}, 1, 2, 3},
	}
	for _, c := range cases {
		t.Run(c.engine, func(t *testing.T) {
			t.Parallel()
			clock := newStepped()
			read := make(chan struct{})
			c.script.delay = func(piece int) {
				<-read // the client has read what was written
				clock.add(time.Second)
			}
			f := serve(t, c.script)
			client := New(c.engine, f.URL, "tiny")
			client.now = clock.now
			transport := client.http.Transport.(*http.Transport)
			dial := transport.DialContext
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				clock.add(time.Hour) // To connect is no part of a request's times.
				return dial(ctx, network, address)
			}
			client.http.Transport = &announcing{client.http.Transport, read}
			answer, err := client.Complete(t.Context(), fourTokens())
			if err != nil {
				t.Fatal(err)
			}
			if answer.Text != "a b c" || answer.PromptTokens != 4 || answer.OutputTokens != 3 || answer.Finish != "length" {
				t.Errorf("the answer is %+v", answer)
			}
			if answer.CachedTokens != c.cached || answer.DeviceTokens != c.device || answer.ExternalTokens != c.outer {
				t.Errorf("cached %d, on the device %d, outside %d", answer.CachedTokens, answer.DeviceTokens, answer.ExternalTokens)
			}
			if answer.FirstText != c.chunks[0] || !slices.Equal(answer.Chunks, c.chunks) || answer.End != 5*time.Second {
				t.Errorf("first text %v, chunks %v, end %v; want chunks %v", answer.FirstText, answer.Chunks, answer.End, c.chunks)
			}
			if f.paths[0] != c.path || f.headers[0].Get("X-Request-Id") != "r1" || f.headers[0].Get("Accept-Encoding") != "" {
				t.Errorf("asked %s with %v", f.paths[0], f.headers[0])
			}
		})
	}
}

func TestWhatIsAsked(t *testing.T) {
	t.Parallel()
	f := serve(t, wholeVLLM(), wholeSGLang())
	for _, engine := range []string{record.VLLM, record.SGLang} {
		if _, err := New(engine, f.URL, "tiny").Complete(t.Context(), fourTokens()); err != nil {
			t.Fatal(err)
		}
	}
	got := []string{fmt.Sprint(f.asked[0]), fmt.Sprint(f.asked[1])}
	want := []string{
		"map[ignore_eos:true max_tokens:3 model:tiny prompt:[5 6 7 8] seed:42 stream:true " +
			"stream_options:map[continuous_usage_stats:true include_usage:true] temperature:0]",
		"map[input_ids:[5 6 7 8] rid:r1 sampling_params:map[ignore_eos:true max_new_tokens:3 sampling_seed:42 temperature:0] stream:true]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLies gives answers that no latency may rest on. Each one differs from a whole answer in one thing.
func TestLies(t *testing.T) {
	t.Parallel()
	long := "data: {\"text\":\"" + strings.Repeat("x", lineMax) + "\n\n"
	cases := []struct {
		name   string
		engine string
		script script
		chunks int
		says   []string
	}{
		{"refused", record.VLLM, script{status: 400, pieces: []string{"too long\n"}}, 0, []string{"status 400", "too long"}},
		{"redirected", record.VLLM, script{status: 307, headers: map[string]string{"Location": "/elsewhere"}}, 0, []string{"status 307"}},
		{"text without end", record.VLLM, script{pieces: []string{vllmText(strings.Repeat("a", textMax), 1, ""), vllmText("b", 2, ""), done}}, 1, []string{"text of the answer is longer"}},
		{"text before tokens", record.VLLM, script{pieces: []string{vllmText("a", 0, ""), done}}, 0, []string{"text came before any token"}},
		{"text before tokens", record.SGLang, script{pieces: []string{sglangText("a", 0, "", ""), done}}, 0, []string{"text came before any token"}},
		{"never any text", record.VLLM, script{pieces: []string{vllmText("", 3, "length"), vllmUsage(4, 3, 0), done}}, 0, []string{"no event had any text"}},
		{"other prompt", record.VLLM, script{pieces: []string{vllmText("a", 3, "length"), vllmUsage(5, 3, 0), done}}, 1, []string{"4 prompt tokens and then 5"}},
		{"fewer tokens", record.VLLM, script{pieces: []string{vllmText("a", 2, "length"), vllmUsage(4, 2, 0), done}}, 1, []string{"2 output tokens, 3 were asked"}},
		{"tokens fall", record.VLLM, script{pieces: []string{vllmText("a", 3, "length"), vllmUsage(4, 2, 0), done}}, 1, []string{"3 output tokens and then 2"}},
		{"stopped early", record.VLLM, script{pieces: []string{vllmText("a", 3, "stop"), vllmUsage(4, 3, 0), done}}, 1, []string{`because of "stop"`}},
		{"more cached than sent", record.VLLM, script{pieces: []string{vllmText("a", 3, "length"), vllmUsage(4, 3, 9), done}}, 1, []string{"9 cached tokens of a prompt of 4"}},
		{
			"more pieces than tokens", record.SGLang,
			script{pieces: []string{sglangText("a", 3, "", ""), sglangText("ab", 3, "", ""), sglangText("abc", 3, "", ""), sglangText("abcd", 3, "length", ""), done}},
			4,
			[]string{"text came in 4 pieces", "3 output tokens"},
		},
		{
			"no usage", record.VLLM,
			script{pieces: []string{`data: {"id":"cmpl-r1","choices":[{"text":"","finish_reason":"length"}]}` + "\n\n", done}},
			0,
			[]string{"0 prompt tokens, 4 were sent"},
		},
		{
			"text whose tokens are counted later", record.VLLM,
			script{pieces: []string{`data: {"id":"cmpl-r1","choices":[{"text":"a","finish_reason":"length"}]}` + "\n\n", vllmUsage(4, 3, 0), done}},
			0,
			[]string{"text came before any token"},
		},
		{"text shrinks", record.SGLang, script{pieces: []string{sglangText("ab", 1, "", ""), sglangText("a", 2, "", ""), done}}, 1, []string{"is not the start"}},
		{"text changes", record.SGLang, script{pieces: []string{sglangText("ab", 1, "", ""), sglangText("acd", 2, "", ""), done}}, 1, []string{"is not the start"}},
		{"other request", record.SGLang, script{pieces: []string{strings.Replace(sglangText("a", 1, "", ""), "r1", "r2", 1), done}}, 0, []string{`to "r2"`, `not to "r1"`}},
		{"other request", record.VLLM, script{pieces: []string{strings.Replace(vllmText("a", 1, ""), "cmpl-r1", "cmpl-r2", 1), done}}, 0, []string{`to "cmpl-r2"`}},
		{"broke off", record.VLLM, script{pieces: []string{vllmText("a", 1, ""), vllmText("b", 2, "")}, cut: true}, 2, []string{"broke off after 2 pieces"}},
		{"broke off", record.SGLang, script{pieces: []string{sglangText("a", 1, "", ""), `data: {"te`}, cut: true}, 1, []string{"broke off after 1 pieces"}},
		{"ended without done", record.VLLM, script{pieces: wholeVLLM().pieces[:5]}, 3, []string{"broke off after 3 pieces", "without [DONE]"}},
		{"error event", record.VLLM, script{pieces: []string{vllmText("a", 1, ""), `data: {"error":{"message":"out of memory"}}` + "\n\n", done}}, 1, []string{"reports an error", "out of memory"}},
		{"error event", record.SGLang, script{pieces: []string{`data: {"error":{"message":"too long"}}` + "\n\n", done}}, 0, []string{"event 1", "too long"}},
		{
			"aborted", record.SGLang,
			script{pieces: []string{strings.Replace(sglangText("a", 1, "abort", ""), `"length":3`, `"message":"shed"`, 1), done}},
			0,
			[]string{"aborted", "shed"},
		},
		{"not JSON", record.VLLM, script{pieces: []string{"data: hello\n\n", done}}, 0, []string{"not what vLLM answers"}},
		{"other engine", record.SGLang, script{pieces: []string{vllmText("a", 1, ""), done}}, 0, []string{"no meta_info"}},
		{"two choices", record.VLLM, script{pieces: []string{`data: {"id":"cmpl-r1","choices":[{"text":"a"},{"text":"b"}]}` + "\n\n", done}}, 0, []string{"2 choices"}},
		{"huge line", record.VLLM, script{pieces: []string{vllmText("a", 1, ""), long, done}}, 1, []string{"broke off after 1", "longer than 1048576"}},
	}
	for _, c := range cases {
		t.Run(c.engine+" "+c.name, func(t *testing.T) {
			t.Parallel()
			f := serve(t, c.script)
			answer, err := New(c.engine, f.URL, "tiny").Complete(t.Context(), fourTokens())
			holds(t, err, append(c.says, "r1")...)
			if len(answer.Chunks) != c.chunks {
				t.Errorf("%d pieces of text were kept, want %d", len(answer.Chunks), c.chunks)
			}
		})
	}
}

// TestTokensOfTheFirstText gives answers whose first tokens make no text yet, as a word that is not whole: what was generated with the first text is no
// token after it. An event that does not count its tokens leaves that unknown.
func TestTokensOfTheFirstText(t *testing.T) {
	t.Parallel()
	silent := strings.Replace(vllmText("a", 2, ""), `"completion_tokens":2,`, "", 1)
	for _, c := range []struct {
		name   string
		engine string
		pieces []string
		want   int
	}{
		{"first token", record.VLLM, wholeVLLM().pieces, 1},
		{"first token", record.SGLang, wholeSGLang().pieces, 1},
		{"second token", record.VLLM, []string{vllmText("", 1, ""), vllmText("a", 2, ""), vllmText("b", 3, "length"), vllmUsage(4, 3, 2), done}, 2},
		{"second token", record.SGLang, []string{sglangText("", 1, "", hostHit), sglangText("a", 2, "", hostHit), sglangText("ab", 3, "length", hostHit), done}, 2},
		{"tokens at once", record.VLLM, []string{vllmText("a b", 3, "length"), vllmUsage(4, 3, 2), done}, 3},
		{"not counted", record.VLLM, []string{vllmText("", 1, ""), silent, vllmText("b", 3, "length"), vllmUsage(4, 3, 2), done}, 0},
	} {
		if answer, err := told(c.engine, c.pieces...); err != nil || answer.FirstTextTokens != c.want {
			t.Errorf("%s, %s: %v, %d tokens with the first text, want %d", c.engine, c.name, err, answer.FirstTextTokens, c.want)
		}
	}
}

// told gives an answer of reads, one a piece, a second apart.
func told(engine string, reads ...string) (Answer, error) {
	var bodies []io.Reader
	for _, read := range reads {
		bodies = append(bodies, strings.NewReader(read))
	}
	answer := Answer{CachedTokens: -1, DeviceTokens: -1, ExternalTokens: -1}
	events, end, err := readEvents(io.MultiReader(bodies...), ticking())
	answer.End = end
	return answer, fold(protocolOf(engine, "tiny"), fourTokens(), events, err, &answer)
}

// TestTokensThatCameInOneReadWithTheFirstText lets a client be so late that it reads several events at once.
func TestTokensThatCameInOneReadWithTheFirstText(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{record.VLLM, record.SGLang} {
		pieces := wholeVLLM().pieces
		if engine == record.SGLang {
			pieces = wholeSGLang().pieces
		}
		for first, want := range map[int]int{1: 1, 2: 1, 3: 2, len(pieces): 3} {
			answer, err := told(engine, append([]string{strings.Join(pieces[:first], "")}, pieces[first:]...)...)
			if err != nil || answer.FirstTextTokens != want || len(answer.Chunks) != 3 {
				t.Errorf("%s: of %d events in the first read: %v, %d tokens with the first text in %d pieces, want %d", engine, first, err, answer.FirstTextTokens, len(answer.Chunks), want)
			}
		}
	}
}

// TestTrickledBytes gives an event byte by byte, at another second each: its text has come when its data line is whole, one byte before its end.
func TestTrickledBytes(t *testing.T) {
	t.Parallel()
	clock := newStepped()
	read := make(chan struct{})
	whole := vllmText("a b c", 3, "length")
	pieces := []string{vllmText("", 1, "")}
	for i := range len(whole) {
		pieces = append(pieces, whole[i:i+1])
	}
	s := script{pieces: append(pieces, vllmUsage(4, 3, 0), done)}
	s.delay = func(int) {
		<-read
		clock.add(time.Second)
	}
	f := serve(t, s)
	client := New(record.VLLM, f.URL, "tiny")
	client.now = clock.now
	client.http.Transport = &announcing{client.http.Transport, read}
	answer, err := client.Complete(t.Context(), fourTokens())
	if err != nil {
		t.Fatal(err)
	}
	text := time.Duration(len(whole)-1) * time.Second
	if answer.FirstText != text || answer.End != time.Duration(len(whole)+2)*time.Second {
		t.Errorf("first text at %v and end at %v, want %v and %ds", answer.FirstText, answer.End, text, len(whole)+2)
	}
}

// TestContextEnds cancels a request whose answer stands still: what came is kept and the error names the end of the context.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	s := script{pieces: []string{vllmText("a", 1, ""), vllmText("b", 2, "")}, gates: map[int]<-chan struct{}{1: gate}}
	read := make(chan struct{}, 64)
	f := serve(t, s)
	client := New(record.VLLM, f.URL, "tiny")
	client.http.Transport = &announcing{client.http.Transport, read}
	go func() {
		<-read
		cancel()
	}()
	answer, err := client.Complete(ctx, fourTokens())
	close(gate)
	if !errors.Is(err, context.Canceled) || len(answer.Chunks) != 1 {
		t.Errorf("answer %+v, error %v", answer, err)
	}
}

func TestNotARequest(t *testing.T) {
	t.Parallel()
	client := New(record.VLLM, "http://127.0.0.1:1", "tiny")
	for _, r := range []Request{{}, {ID: "r1", Tokens: []int{1}}, {Tokens: []int{1}, OutputTokens: 1}, {ID: "r1", OutputTokens: 1}} {
		_, err := client.Complete(t.Context(), r)
		holds(t, err, "needs an id, a prompt and at least one output token")
	}
	_, err := New("tgi", "http://127.0.0.1:1", "").Complete(t.Context(), fourTokens())
	holds(t, err, `the engine "tgi"`)
	_, err = client.Complete(t.Context(), fourTokens())
	holds(t, err, "request r1 was not answered", "refused")
	holds(t, client.Healthy(t.Context()), "does not answer")
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(http.StatusServiceUnavailable)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	client := New(record.SGLang, server.URL+"/", "")
	holds(t, client.Healthy(t.Context()), "not healthy", "503")
	status.Store(http.StatusOK)
	if err := client.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWarm opens as many connections as it is told, and the requests that follow open none.
func TestWarm(t *testing.T) {
	t.Parallel()
	f := serve(t, wholeVLLM(), wholeVLLM())
	client := New(record.VLLM, f.URL, "tiny")
	defer client.Close()
	if err := client.Warm(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	if f.opened.Load() != 8 {
		t.Errorf("%d connections were opened, want 8", f.opened.Load())
	}
	for range 2 {
		if _, err := client.Complete(t.Context(), fourTokens()); err != nil {
			t.Fatal(err)
		}
	}
	if f.opened.Load() != 8 {
		t.Errorf("requests opened %d connections more", f.opened.Load()-8)
	}
	holds(t, client.Warm(t.Context(), ConnsMax+1), "65 connections")
}

// announcing tells of every read of a body that brought bytes.
type announcing struct {
	http.RoundTripper
	read chan<- struct{}
}

func (a *announcing) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := a.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = &announcedBody{response.Body, a.read, false}
	}
	return response, err
}
