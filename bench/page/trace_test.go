package page

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"orbitkv/internal/trace"
)

// tracePage writes the page of a log and reads it as a browser would.
func tracePage(t *testing.T, log string) parsed {
	t.Helper()
	c := trace.NewCollector()
	if err := c.Read("engine.log "+hostile, strings.NewReader(log)); err != nil {
		t.Fatal(err)
	}
	all := c.Trace()
	var out bytes.Buffer
	if err := WriteTrace(&out, all, all.Longest(20, func(*trace.Request) bool { return true }), "1.0"); err != nil {
		t.Fatal(err)
	}
	return parse(t, out.String())
}

// traceLine is a record, with more of its fields as text.
func traceLine(stage, request string, pid int, at int64, more string) string {
	return fmt.Sprintf("cache_timeline {\"stage\":%q,\"request_id\":%q,\"pid\":%d,\"monotonic_ns\":%d%s}\n", stage, request, pid, at, more)
}

// TestATracePageHasNothingFromOutside reads the page of a log whose texts try to break out.
func TestATracePageHasNothingFromOutside(t *testing.T) {
	log := traceLine(trace.Queued, "<script>alert(1)</script>", 1, 0, `,"engine":"<img src=x onerror=a>"`) + traceLine(trace.FirstUse, "<script>alert(1)</script>", 1, 5e6, "") +
		traceLine("<b>stage</b>", "<script>alert(1)</script>", 1, 7e6, "") + "cache_timeline {\n"
	page := tracePage(t, log)
	for element := range page.elements {
		if !slices.Contains(allowed, element) {
			t.Errorf("an element %s", element)
		}
	}
	for _, a := range page.attributes {
		if name := strings.ToLower(a.Name.Local); name == "src" || strings.HasPrefix(name, "on") || name == "href" && !strings.HasPrefix(a.Value, "#") {
			t.Errorf("an attribute %s=%q", a.Name.Local, a.Value)
		}
	}
	for _, part := range []string{"<script>alert(1)</script>", "<b>stage</b>", "1 damaged record left out", "until its first step"} {
		if !strings.Contains(page.text, part) {
			t.Errorf("the page does not say %s", part)
		}
	}
}

// TestATracePageHasAFigureForEachClock draws two processes together where they read one clock, and apart where it is not told.
func TestATracePageHasAFigureForEachClock(t *testing.T) {
	log := traceLine(trace.Queued, "r", 1, 0, "") + traceLine(trace.ReadStart, "r", 2, 1e6, "") + traceLine(trace.HostReady, "r", 2, 3e6, "") + traceLine(trace.FirstUse, "r", 1, 5e6, "")
	clocks := `cache_timeline {"stage":"process","engine":"e","pid":1,"monotonic_ns":0,"boot_id":"b","time_namespace":"n"}
cache_timeline {"stage":"process","engine":"orbitkv-1","pid":2,"monotonic_ns":0,"boot_id":"b","time_namespace":"n"}
`
	for text, want := range map[string]int{log: 2, clocks + log: 1} {
		page := tracePage(t, text)
		if len(page.figures) != want {
			t.Errorf("%d figures, not %d", len(page.figures), want)
		}
		if together := strings.Contains(page.text, "so one clock"); together != (want == 1) {
			t.Errorf("the page of %d figures says that there is one clock: %v", want, together)
		}
	}
}
