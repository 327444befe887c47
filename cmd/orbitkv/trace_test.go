package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const tracedRequest = `INFO cache_timeline {"stage":"queued","request_id":"req-<b>","engine":"vllm","pid":1,"monotonic_ns":1000000}
INFO cache_timeline {"stage":"first_use","request_id":"req-<b>","engine":"vllm","pid":1,"monotonic_ns":3000000,"elapsed_us":2000}
`

// traceRun runs the verb in this process.
func traceRun(t *testing.T, input string, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(append([]string{"trace"}, arguments...))
	cmd.SetIn(strings.NewReader(input))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

func TestTraceShowsARequestAndWritesAPageOfIt(t *testing.T) {
	log, page := filepath.Join(t.TempDir(), "engine.log"), filepath.Join(t.TempDir(), "trace.html")
	if err := os.WriteFile(log, []byte(tracedRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := traceRun(t, "", log, "--html", page)
	if err != nil || !strings.Contains(text, "request req-<b>\n") || !strings.Contains(text, "2.000 ms") {
		t.Fatalf("%v: %s", err, text)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"<svg ", "req-&lt;b&gt;", "default-src 'none'", "until its first step"} {
		if !bytes.Contains(html, []byte(part)) {
			t.Errorf("the page has no %s", part)
		}
	}
	if bytes.Contains(html, []byte("req-<b>")) || bytes.Contains(html, []byte("<script")) {
		t.Error("a request's id is markup of the page")
	}
}

func TestTraceReadsTheStandardInput(t *testing.T) {
	if text, err := traceRun(t, tracedRequest, "-"); err != nil || !strings.Contains(text, "2 records of 1 request in 1 file") {
		t.Fatalf("%v: %s", err, text)
	}
}

func TestTraceSaysWhatToDoAboutWhatItCannotShow(t *testing.T) {
	for _, c := range []struct {
		name, input string
		arguments   []string
		want        string
	}{
		{"no file", "", nil, "requires at least 1 arg"},
		{"a file that is not there", "", []string{"/nowhere/engine.log"}, "no such file"},
		{"a folder", "", []string{"."}, "is a directory"},
		{"a log without records", "INFO ready\n", []string{"-"}, "ORBITKV_TRACE_TRANSFERS=1"},
		{"only damaged records", "cache_timeline {\n", []string{"-"}, "standard input:1: the record is cut off"},
		{"the same file twice", tracedRequest, []string{"-", "-"}, "named twice"},
		{"a request that nobody made", tracedRequest, []string{"-", "--request", "x"}, `no request has "x" in its id`},
		{"fewer than no requests", tracedRequest, []string{"-", "--show", "-1"}, "must not be below 0"},
		{"a page in no folder", tracedRequest, []string{"-", "--html", "/nowhere/a.html"}, "--html: "},
	} {
		if text, err := traceRun(t, c.input, c.arguments...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q; printed %s", c.name, err, c.want, text)
		}
	}
}
