package daemon

import (
	"bytes"
	"os"
	"testing"
	"time"

	"orbitkv/internal/cache"
	"orbitkv/internal/trace"
)

// TestTheTimelineIsWhatATraceReads writes records of this process and reads them as `orbitkv trace` does.
func TestTheTimelineIsWhatATraceReads(t *testing.T) {
	var log bytes.Buffer
	line := newTimeline(&log, "1.2")
	line.record(cache.Milestone{
		Stage: cache.StageHostReady, Request: "r\n\x1b\"<", Instance: "i", Group: 3, Warmup: true, Elapsed: 1500 * time.Microsecond, Hits: 7, Pages: 5, Bytes: 5 << 20,
	})
	var records []trace.Record
	for rest := log.Bytes(); ; {
		r, more, found, err := trace.Next(rest)
		if !found {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		records, rest = append(records, r), more
	}
	if lines := bytes.Count(log.Bytes(), []byte("\n")); len(records) != 2 || lines != 2 {
		t.Fatalf("%d records in %d lines: %s", len(records), lines, log.Bytes())
	}
	process, ready := records[0], records[1]
	if process.Stage != trace.Process || process.Engine != "orbitkv-1.2" || process.Boot == "" || process.Namespace == "" || process.PID != int64(os.Getpid()) {
		t.Errorf("the process said %+v", process)
	}
	if ready.Stage != trace.HostReady || ready.Request != "r\n\x1b\"<" || ready.PID != process.PID || ready.At < process.At {
		t.Errorf("the stage said %+v", ready)
	}
	want := trace.Details{Layer: trace.Absent, Elapsed: 1500 * time.Microsecond, Pages: 5, Hits: 7, Bytes: 5 << 20, Requests: trace.Absent, Warmup: true}
	if ready.Details != want {
		t.Errorf("the details are %+v, not %+v", ready.Details, want)
	}
}
