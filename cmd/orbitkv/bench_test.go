package main

import (
	"strings"
	"testing"
)

// TestBenchRefusesWhatItCannotRead wants each refusal to say what was written and what to write.
func TestBenchRefusesWhatItCannotRead(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		words     []string
	}{
		{[]string{"foo"}, []string{`has no verb "foo"`, "channel, compare, pool, report, single-node, ssd"}},
		{[]string{"single-node", "extra"}, []string{`"extra" belongs to no flag`, "joined by commas"}},
		{[]string{"single-node", "--lengths", "1024", "4096"}, []string{`"4096" belongs to no flag`}},
		{[]string{"pool", "extra"}, []string{`"extra" belongs to no flag`}},
		{[]string{"ssd"}, []string{"0 folders are named", "name the FOLDER"}},
		{[]string{"ssd", "/a", "/b"}, []string{"2 folders are named", "name the FOLDER"}},
		{[]string{"single-node", "--repeats", "five"}, []string{`--repeats: "five" cannot be read: give a whole number`}},
		{[]string{"single-node", "--lengths", "1024,4k"}, []string{`--lengths: "1024,4k" cannot be read: give whole numbers joined by commas`}},
		{[]string{"single-node", "--host-gib", "4gib"}, []string{`--host-gib: "4gib" cannot be read: give a number`}},
		{[]string{"single-node", "--seed", "1.5"}, []string{`--seed: "1.5" cannot be read: give a whole number`}},
		{[]string{"single-node", "--resume=maybe"}, []string{`--resume: "maybe" cannot be read: give true or false`}},
		{[]string{"single-node", "--backend", `a"b`}, []string{"--backend", "words joined by commas"}},
		{[]string{"channel", "--time", "3"}, []string{`--time: "3" cannot be read: give a time with its unit`}},
		{[]string{"channel", "--speed", "3"}, []string{"unknown flag: --speed", "`orbitkv bench channel --help` lists the flags"}},
	} {
		_, errs, code := run(t, append([]string{"bench"}, c.arguments...)...)
		if code != 1 || strings.Contains(errs, "strconv") || strings.Contains(errs, "Parse") {
			t.Errorf("%q: exit code %d: %s", c.arguments, code, errs)
		}
		for _, word := range c.words {
			if !strings.Contains(errs, word) {
				t.Errorf("%q: %q is not said: %s", c.arguments, word, errs)
			}
		}
	}
}

func TestBenchAloneListsItsVerbs(t *testing.T) {
	out, _, code := run(t, "bench")
	if code != 0 || !strings.Contains(out, "single-node") || strings.Contains(out, "echo-server") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
