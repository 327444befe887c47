package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// ticking is a clock that moves one step with each look.
func ticking() func() time.Duration {
	var at time.Duration
	return func() time.Duration {
		at++
		return at
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, stream, want string }{
		{"plain", "data: a\n\ndata: b\n\ndata: [DONE]\n\n", "[a b] <nil>"},
		{"carriage returns", "data: a\r\n\r\ndata: [DONE]\r\n\r\n", "[a] <nil>"},
		{"no space", "data:a\n\ndata:[DONE]\n\n", "[a] <nil>"},
		{"several lines", "data: a\ndata: b\n\ndata: [DONE]\n\n", "[a\nb] <nil>"},
		{"comments and other fields", ": ping\n\nevent: x\nid: 4\ndata: a\nretry: 1\n\n\n\ndata: [DONE]\n\n", "[a] <nil>"},
		{"a field that starts alike", "database: a\n\ndata: [DONE]\n\n", "[] <nil>"},
		{"empty data", "data\n\ndata:\n\ndata: [DONE]\n\n", "[ ] <nil>"},
		{"after the end", "data: [DONE]\n\ndata: a\n\n", "[] <nil>"},
		{"unfinished", "data: a\n\ndata: b\n", "[a] the stream ended without [DONE]"},
		{"unfinished end", "data: a\n\ndata: [DONE]\n", "[a] the stream ended without [DONE]"},
		{"nothing", "", "[] the stream ended without [DONE]"},
	}
	for _, c := range cases {
		for _, reader := range []io.Reader{bytes.NewReader([]byte(c.stream)), iotest.OneByteReader(bytes.NewReader([]byte(c.stream)))} {
			events, _, err := readEvents(reader, ticking())
			var said [][]byte
			for _, e := range events {
				said = append(said, e.data)
			}
			if got := fmt.Sprintf("%s %v", said, err); got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
		}
	}
}

// TestTimes reads byte by byte: an event has the time at which its last data line was whole, the end that of [DONE]'s.
func TestTimes(t *testing.T) {
	t.Parallel()
	stream := ": x\n\nid: 1\ndata: a\ndata: b\n\ndata: [DONE]\n\n"
	events, end, err := readEvents(iotest.OneByteReader(bytes.NewReader([]byte(stream))), ticking())
	if err != nil {
		t.Fatal(err)
	}
	whole := time.Duration(len(": x\n\nid: 1\ndata: a\ndata: b\n"))
	last := time.Duration(len(stream) - 1)
	if len(events) != 1 || events[0].at != whole || end != last {
		t.Errorf("events %v, end %d; want the event at %d and the end at %d", events, end, whole, last)
	}
}

// endless repeats a text for ever.
type endless struct {
	text string
	rest string
}

func (e *endless) Read(into []byte) (int, error) {
	if e.rest == "" {
		e.rest = e.text
	}
	n := copy(into, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func TestBoundsOfStreams(t *testing.T) {
	t.Parallel()
	cases := []struct {
		text string
		want error
	}{
		{strings.Repeat("x", 1000), errLine},
		{"data: " + strings.Repeat("x", 1000) + "\n", errLine}, // one event of many lines
		{strings.Repeat("data: a\n\n", 100), errEvents},
		{strings.Repeat(": only comments\n", 100), errBody},
		{"data: " + strings.Repeat("x", 10_000) + "\n\n", errBody},
		{"data: [DONE]\n\n", errBody}, // what follows the end is not read for ever either
	}
	for _, c := range cases {
		if _, _, err := readEvents(&endless{text: c.text}, ticking()); !errors.Is(err, c.want) {
			t.Errorf("%.20q: error %v, want %v", c.text, err, c.want)
		}
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: {\"text\":\"a\"}\n\ndata: [DONE]\n\n"), uint16(7))
	f.Add([]byte(": ping\r\ndata:a\r\ndata\r\n\r\n\n\ndata: [DONE]\n\n"), uint16(1))
	f.Add([]byte("data: [DONE]\n"), uint16(3))
	f.Fuzz(func(t *testing.T, stream []byte, size uint16) {
		whole, _, wholeErr := readEvents(bytes.NewReader(stream), ticking())
		cut, end, cutErr := readEvents(&pieces{stream, int(size)%97 + 1}, ticking())
		if fmt.Sprint(wholeErr) != fmt.Sprint(cutErr) || len(whole) != len(cut) {
			t.Fatalf("the same stream in pieces gives %d events and %v, at once %d and %v", len(cut), cutErr, len(whole), wholeErr)
		}
		var last time.Duration
		for i := range cut {
			if !bytes.Equal(whole[i].data, cut[i].data) {
				t.Fatalf("event %d is %q in pieces and %q at once", i, cut[i].data, whole[i].data)
			}
			if cut[i].at < last || cut[i].at > end {
				t.Fatalf("event %d has time %d after %d, the end is %d", i, cut[i].at, last, end)
			}
			last = cut[i].at
		}
		for _, engine := range []protocol{vllm{}, sglang{}} {
			var answer Answer
			err := fold(engine, Request{ID: "r", Tokens: []int{1}, OutputTokens: 1}, cut, cutErr, &answer)
			if err == nil && (cutErr != nil || answer.OutputTokens != 1 || len(answer.Chunks) != 1) {
				t.Fatalf("%+v was taken for a whole answer", answer)
			}
		}
	})
}

// pieces gives a text in reads of one size.
type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(into []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}
