package trace

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
)

// TestDamage names what is wrong with a record, keeps the others of its line, and takes no other text of a log for one.
func TestDamage(t *testing.T) {
	const whole = `{"stage":"queued","request_id":"r","pid":1,"monotonic_ns":5}`
	with := func(old, new string) string { return strings.Replace(whole, old, new, 1) }
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name, line string
		records    int
		reason     string // a part of the only damage; empty for none
	}{
		{"a record", "cache_timeline " + whole, 1, ""},
		{"behind other text", "\x1b[32mINFO\x1b[0m (x pid=7) cache_timeline " + whole + " \x1b[0m", 1, ""},
		{"other text", "cache_timeline lines are written", 0, ""},
		{"two of one line", "cache_timeline " + whole + "cache_timeline " + whole, 2, ""},
		{"one that another runs into", `cache_timeline {"stage":"que` + "cache_timeline " + whole, 1, "no JSON"},
		{"cut off", "cache_timeline " + whole[:20], 0, "cut off"},
		{"no stage", "cache_timeline " + with(`"stage":"queued",`, ""), 0, "no stage"},
		{"no request", "cache_timeline " + with(`"request_id":"r",`, ""), 0, "no request_id"},
		{"no process", "cache_timeline " + with(`"pid":1,`, ""), 0, "no pid"},
		{"no time", "cache_timeline " + with(`,"monotonic_ns":5`, ""), 0, "no monotonic_ns"},
		{"a time before any", "cache_timeline " + with(`:5}`, `:-5}`), 0, "monotonic_ns of -5"},
		{"a time that no difference holds", "cache_timeline " + with(`:5}`, `:9223372036854775807}`), 0, "monotonic_ns of"},
		{"a time that is no number", "cache_timeline " + with(`:5}`, `:"5"}`), 0, "monotonic_ns is a string"},
		{"a time of more than 53 bits", "cache_timeline " + with(`:5}`, `:9007199254740993}`), 1, ""},
		{"a long stage", "cache_timeline " + with("queued", long), 0, "a stage of 300 bytes"},
		{"a long request", "cache_timeline " + with(`"r"`, `"`+long+`"`), 0, "a request_id of 300 bytes"},
		{"a layer that nothing has", "cache_timeline " + with(`"pid"`, `"layer":1000000,"pid"`), 0, "layer 1000000"},
		{"a wait of centuries", "cache_timeline " + with(`"pid"`, `"elapsed_us":1000000000000000000,"pid"`), 0, "elapsed_us of"},
		{"a bare record", whole, 1, ""},
		{"a bare record with more", whole + "\n" + whole + " 5", 1, "more than one value"},
		{"a bare record cut off", whole + "\n" + whole[:30], 1, "cut off"},
		{"JSON that is another's", `{"level":"info"}` + "\n" + `{"stage":1}`, 0, ""},
		{"an array", whole + "\n[1]", 1, ""},
		{"a long line", "cache_timeline {" + strings.Repeat(" ", 2*LineBytesMax) + "\ncache_timeline " + whole, 1, "a line of more than"},
		{"a long line of other text", strings.Repeat("x", 3*LineBytesMax) + "\ncache_timeline " + whole, 1, ""},
	} {
		all := read(t, [2]string{"log", c.line})
		if all.Records+all.Repeated != c.records {
			t.Errorf("%s: %d records, not %d", c.name, all.Records+all.Repeated, c.records)
		}
		switch {
		case c.reason == "" && all.Damaged > 0:
			t.Errorf("%s: damaged: %v", c.name, all.Damages)
		case c.reason != "" && (all.Damaged != 1 || !strings.Contains(all.Damages[0].Reason, c.reason)):
			t.Errorf("%s: damages %v, not one of %q", c.name, all.Damages, c.reason)
		}
	}
}

// TestDamagesAreCounted names the first and counts all.
func TestDamagesAreCounted(t *testing.T) {
	all := read(t, [2]string{"log", strings.Repeat("cache_timeline {\n", DamagesMax+3)})
	if all.Damaged != DamagesMax+3 || len(all.Damages) != DamagesMax || all.Damages[1].Line != 2 {
		t.Errorf("%d damages, %d named: %v", all.Damaged, len(all.Damages), all.Damages)
	}
	if summary := all.Summary(); summary[len(summary)-1] != "  and 3 more" {
		t.Errorf("%q", summary)
	}
}

// FuzzRead reads whatever a log may hold and writes what it says: no input ends it, reaches the terminal as anything but text, or breaks the order of time.
func FuzzRead(f *testing.F) {
	f.Add([]byte(process(1, "b", "n") + stage(Queued, 1, 1) + stage(FirstUse, 1, 9)))
	f.Add([]byte(`cache_timeline {"stage":"layer_ready","request_id":"\u001b[2J","pid":1,"monotonic_ns":4611686018427387904,"layer":4095}` + "\n" + stage(Queued, 1, 0)))
	f.Add([]byte("cache_timeline {cache_timeline {\n{\"stage\":\"process\",\"pid\":0,\"monotonic_ns\":0}\n{"))
	f.Fuzz(func(t *testing.T, log []byte) {
		c := NewCollector()
		if err := c.Read("log", bytes.NewReader(log)); err != nil {
			t.Fatal(err)
		}
		all := c.Trace()
		records := 0
		for _, q := range all.Requests {
			for i := range q.Lanes {
				events := q.Lanes[i].Events
				records += len(events)
				for j := range events[1:] {
					if events[j+1].At < events[j].At {
						t.Fatalf("request %q: %d comes after %d", q.ID, events[j+1].At, events[j].At)
					}
				}
			}
		}
		if records != all.Records {
			t.Fatalf("%d records are counted, %d are there", all.Records, records)
		}
		var out bytes.Buffer
		if err := all.WriteText(&out, all.Longest(RequestsMax, every)); err != nil {
			t.Fatal(err)
		}
		if at := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
			t.Fatalf("a character of no text at %d of %q", at, out.String())
		}
	})
}
