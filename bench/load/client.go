package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of one request and of the connections of a Client.
const (
	answerLimit  = 10 * time.Minute // of one request, where its context has no earlier deadline
	healthLimit  = 5 * time.Second  // of one look at the engine's health
	errorBodyMax = 4 << 10          // bytes of a refusal that are read into its error
	textMax      = 128 << 10        // bytes of an answer's text: some of them fit into one row, even where each byte is written as six
	ConnsMax     = 64               // to the engine
	idleLimit    = 4 * time.Second  // a kept connection; the engines close theirs after 5 s, and a request must not meet that close
	dialLimit    = 5 * time.Second
	writeBuffer  = 128 << 10 // a prompt of 8,192 ids leaves in one write
	readBuffer   = 64 << 10
)

// Request is one completion. Tokens is the prompt as token ids; exactly OutputTokens are generated, greedily and past any end-of-text token.
type Request struct {
	ID           string // the engine is given it, and its answer must carry it
	Tokens       []int
	OutputTokens int
}

// Answer is what one request gave. Its times are counted from Started, the moment before the request's first byte was written to an open connection.
type Answer struct {
	Started         time.Time
	FirstText       time.Duration   // the first non-empty text; 0 when none came
	End             time.Duration   // the end of the answer, or the moment it broke off
	Chunks          []time.Duration // each piece of non-empty text, the first one included
	Text            string
	FirstTextTokens int    // output tokens that had come with the read that held the first text, its own included; 0 when its event does not count them
	PromptTokens    int    // as the engine counted them
	OutputTokens    int    // as the engine counted them
	CachedTokens    int    // of the prompt, as the engine claims; -1 when the answer does not say
	DeviceTokens    int    // of those, found in device memory; -1 when the answer does not say
	ExternalTokens  int    // of those, brought from outside of the device; -1 when the answer does not say
	Finish          string // the engine's reason for the end

	firstRead int // of the stream, which held the first text; 0 before it
}

// Client asks one engine. Use New.
type Client struct {
	engine protocol
	url    string
	http   *http.Client
	now    func() time.Time
}

// New returns a client of the engine (record.VLLM or record.SGLang) at a base URL; model is the name that vLLM serves it by. An engine that is neither is
// answered by an error from each call.
func New(engine, url, model string) *Client {
	dialer := &net.Dialer{Timeout: dialLimit} // Go sets TCP_NODELAY on every connection.
	transport := &http.Transport{
		DialContext: dialer.DialContext, DisableCompression: true, MaxConnsPerHost: ConnsMax, MaxIdleConnsPerHost: ConnsMax,
		IdleConnTimeout: idleLimit, WriteBufferSize: writeBuffer, ReadBufferSize: readBuffer,
	}
	return &Client{engine: protocolOf(engine, model), url: strings.TrimRight(url, "/"), http: &http.Client{Transport: transport, CheckRedirect: stay}, now: time.Now}
}

// stay keeps a client from following a redirect: what was measured would be another server.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close drops the kept connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Complete asks for one completion and reads its answer to the end. The error says what happened; the Answer is then as far as it came and is
// no latency sample.
func (c *Client) Complete(ctx context.Context, request Request) (Answer, error) {
	answer := Answer{CachedTokens: -1, DeviceTokens: -1, ExternalTokens: -1, Started: c.now()}
	if request.ID == "" || len(request.Tokens) == 0 || request.OutputTokens < 1 {
		return answer, errors.New("load: a request needs an id, a prompt and at least one output token")
	}
	body, err := c.engine.body(request)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var started atomic.Pointer[time.Time]
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { at := c.now(); started.Store(&at) }}
	post, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, c.url+c.engine.path(), bytes.NewReader(body))
	if err != nil {
		return answer, fmt.Errorf("load: %w", err)
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("X-Request-Id", request.ID)
	response, err := c.http.Do(post)
	if at := started.Load(); at != nil {
		answer.Started = *at
	}
	if err != nil {
		answer.End = c.now().Sub(answer.Started)
		return answer, fmt.Errorf("load: request %s was not answered: %w", request.ID, whyFailed(ctx, err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, errorBodyMax))
		answer.End = c.now().Sub(answer.Started)
		return answer, fmt.Errorf("load: request %s was refused with status %d: %s", request.ID, response.StatusCode, bytes.TrimSpace(text))
	}
	events, end, err := readEvents(response.Body, func() time.Duration { return c.now().Sub(answer.Started) })
	answer.End = end
	if err != nil {
		err = whyFailed(ctx, err)
	}
	return answer, fold(c.engine, request, events, err, &answer)
}

// whyFailed puts the end of the context in front of what the transport says of it.
func whyFailed(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// Healthy asks once whether the engine is healthy; nil when it says so within healthLimit.
func (c *Client) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	response, err := c.get(ctx, "/health")
	if err != nil {
		return fmt.Errorf("load: the engine at %s does not answer: %w", c.url, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("load: the engine at %s is not healthy: status %d", c.url, response.StatusCode)
	}
	return nil
}

// Warm opens n connections at once and keeps them, so that the next n requests find one that the engine has accepted. Connections that idle
// for some seconds are closed, so it belongs right before what is measured. n is at most ConnsMax.
func (c *Client) Warm(ctx context.Context, n int) error {
	if n < 1 || n > ConnsMax {
		return fmt.Errorf("load: %d connections cannot be warmed: between 1 and %d are kept", n, ConnsMax)
	}
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	// An answer whose body is unread keeps its connection from being used again, so n answers are n connections.
	var open []io.ReadCloser
	defer func() {
		for _, body := range open {
			_, _ = io.Copy(io.Discard, io.LimitReader(body, readBuffer))
			_ = body.Close()
		}
	}()
	for range n {
		response, err := c.get(ctx, "/v1/models")
		if err != nil {
			return fmt.Errorf("load: a connection to the engine at %s cannot be warmed: %w", c.url, err)
		}
		open = append(open, response.Body)
	}
	return nil
}

// get asks for a path of the engine.
func (c *Client) get(ctx context.Context, path string) (*http.Response, error) {
	target, err := url.JoinPath(c.url, path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	return c.http.Do(request)
}
