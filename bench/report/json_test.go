package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// document writes figures as JSON and reads them as a program would.
func document[T report.Summary | report.Comparison](t *testing.T, value *T) map[string]any {
	t.Helper()
	var text bytes.Buffer
	if err := report.WriteJSON(&text, value); err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// nulls names every null of a document.
func nulls(at string, value any) []string {
	var all []string
	switch v := value.(type) {
	case nil:
		return []string{at}
	case []any:
		for i, each := range v {
			all = append(all, nulls(fmt.Sprintf("%s[%d]", at, i), each)...)
		}
	case map[string]any:
		for name, each := range v {
			all = append(all, nulls(at+"."+name, each)...)
		}
	}
	return all
}

// TestJSONHasNoNull reads runs in which as much as possible is absent: lists are empty, and what is not known is left out.
func TestJSONHasNoNull(t *testing.T) {
	empty := &record.Run{Manifest: latencyManifest("native")}
	failed := shortened(latencyRun("native", "orbitkv"), 2)
	failed.Manifest.Probe.LinkBytesPerS = 0
	for i := range failed.Samples {
		if s := &failed.Samples[i]; s.Phase == record.AfterPressure && s.Backend == "native" {
			s.Error, s.MatchesCold = "broke off", nil
		}
	}
	bare := windowRun("native")
	bare.Manifest.Options.SLOTTFTms, bare.Manifest.Options.SLOTPOTms = 0, 0
	bare.Windows[0].Before, bare.Windows[0].After, bare.Windows[0].Peak = nil, nil, nil
	documents := map[string]map[string]any{
		"nothing": document(t, summarise(t, empty)), "failed": document(t, summarise(t, failed)), "full": document(t, summarise(t, fullRun())),
		"window": document(t, summarise(t, windowRun("orbitkv"))), "bare window": document(t, summarise(t, bare)),
		"compared": document(t, compared(t, named("a", 1, shortened(latencyRun("native"), 2)), named("b", 1, shortened(latencyRun("native"), 2)))),
		"windows":  document(t, compared(t, named("a", 1, windowRun("native")), named("b", 2, windowRun("orbitkv")))),
	}
	for name, all := range documents {
		for _, at := range nulls("", all) {
			t.Errorf("%s: %s is null", name, at)
		}
	}
	for _, list := range []string{"cautions", "outcomes", "notes", "coverage", "groups", "paired", "agreements", "exposed", "windows", "differing", "failures", "drains", "attributions"} {
		if _, ok := documents["nothing"][list].([]any); !ok {
			t.Errorf("%s is no list: %v", list, documents["nothing"][list])
		}
	}
	paired := documents["failed"]["paired"].([]any)
	lost := paired[len(paired)-1].(map[string]any)["a"].(map[string]any)
	if ttft, ok := lost["ttft_ms"]; ok || lost["failed"] != 2.0 {
		t.Errorf("a side without a whole answer has a TTFT of %v: %v", ttft, lost)
	}
	if _, ok := documents["bare window"]["objectives"]; ok {
		t.Error("objectives that nobody set are there")
	}
}

// TestJSONSaysWhatWasNotChecked leaves the outcome of a drain out where nothing was looked at.
func TestJSONSaysWhatWasNotChecked(t *testing.T) {
	run := fullRun()
	run.Drains[0].Drained = true
	run.Manifest.Started = time.Unix(1_700_000_000, 0).UTC()
	all := document(t, summarise(t, run))
	drains := all["drains"].([]any)
	if drained, ok := drains[0].(map[string]any)["drained"]; ok {
		t.Errorf("a drain that was not checked is said to be drained: %v", drained)
	}
	if drained := drains[1].(map[string]any)["drained"]; drained != false {
		t.Errorf("a drain that was checked and failed says %v", drained)
	}
	if all["started"] != "2023-11-14T22:13:20Z" {
		t.Errorf("it was started at %v", all["started"])
	}
	row := all["groups"].([]any)[5].(map[string]any)["rows"].([]any)[0].(map[string]any)
	if row["sum_restored_bytes"] != 4.0*length*token || row["sum_external_tokens"] != 4.0*length {
		t.Errorf("%v", row)
	}
	if exposed := all["exposed"].([]any)[0].(map[string]any); exposed["median_restored_bytes"] != 1.0*length*token {
		t.Errorf("%v", exposed)
	}
}
