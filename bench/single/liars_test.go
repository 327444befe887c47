package single

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"orbitkv/bench/launch"
	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// liedAbout runs the small measurement with one rule for the first prompt of orbitkv after pressure, and returns that sample.
func liedAbout(t *testing.T, engine, lie string) (record.Sample, *record.Run, error) {
	t.Helper()
	r := newRig(t, rule{"orbitkv-p0-latency-256-0-after_pressure", lie})
	ask := r.small()
	ask.Engine = engine
	run, err := r.measure(ask)
	rows := pick(run, func(s *record.Sample) bool {
		return s.Backend == record.OrbitKV && s.Phase == record.AfterPressure && s.Measured && s.Prefix == 0
	})
	if len(rows) != 1 {
		t.Fatalf("%d final samples of the prompt that was lied about; %v", len(rows), err)
	}
	return rows[0], run, err
}

func TestAHitWithoutEvidenceIsUnverified(t *testing.T) {
	for _, engine := range []string{record.VLLM, record.SGLang} {
		for _, lie := range []string{claimHit, claimRestore, fallBack} {
			t.Run(engine+"/"+lie, func(t *testing.T) {
				row, run, _ := liedAbout(t, engine, lie)
				if row.Source != record.Unverified || row.Why == "" {
					t.Errorf("the source is %s (%q), want unverified with its reason", row.Source, row.Why)
				}
				if got := sources(run, record.OrbitKV, record.AfterPressure)[record.FromExternal]; got != 1 {
					t.Errorf("%d external samples after pressure, want the honest one alone", got)
				}
			})
		}
	}
}

func TestAChangedOutputAtTheEnginesOwnBoundaryIsUnexplained(t *testing.T) {
	for _, engine := range []string{record.VLLM, record.SGLang} {
		row, run, err := liedAbout(t, engine, otherText)
		if err != nil {
			t.Fatal(err)
		}
		if len(run.Attributions) != 1 || run.Attributions[0].Request != row.Request || run.Attributions[0].Verdict != record.Unexplained {
			t.Fatalf("%s: attributions %+v", engine, run.Attributions)
		}
		if why := run.Attributions[0].Why; !strings.Contains(why, "the same 192 tokens") {
			t.Errorf("%s: %q does not say where reuse ended", engine, why)
		}
	}
}

func TestTextThatIsEmptyIsNoFirstText(t *testing.T) {
	for _, engine := range []string{record.VLLM, record.SGLang} {
		row, _, err := liedAbout(t, engine, emptyFirst)
		if err != nil || row.Error != "" {
			t.Fatalf("%s: %v, %s", engine, err, row.Error)
		}
		if len(row.ChunkMs) != 4 || row.ChunkMs[0] != row.TTFTms || row.TTFTms <= 0 {
			t.Errorf("%s: first text at %g ms, pieces at %v: want 4 pieces, the first one's time", engine, row.TTFTms, row.ChunkMs)
		}
		if row.FirstTextTokens < 1 || row.FirstTextTokens > row.OutputTokens { // 1, unless this client was late and read more at once
			t.Errorf("%s: %d tokens came with the first text, want 1 at least", engine, row.FirstTextTokens)
		}
	}
}

func TestTextBeforeAnyTokenIsNoLatency(t *testing.T) {
	for _, engine := range []string{record.VLLM, record.SGLang} {
		row, _, _ := liedAbout(t, engine, earlyText)
		if !strings.Contains(row.Error, "before any token") || row.Source != record.Unverified {
			t.Errorf("%s: error %q, source %s", engine, row.Error, row.Source)
		}
		if _, ok := row.TPOTms(); ok {
			t.Errorf("%s: a sample with an error has a time per token", engine)
		}
	}
}

func TestAnAnswerThatBreaksOffIsASampleWithAnErrorWhileTheEngineLives(t *testing.T) {
	row, run, err := liedAbout(t, record.VLLM, breakOff)
	if !strings.Contains(row.Error, "broke off after 1 piece") || row.MatchesCold != nil {
		t.Errorf("error %q, compared %v", row.Error, row.MatchesCold)
	}
	if len(run.Failures) != 0 || len(run.Finished) != 4 {
		t.Errorf("%d failures, %d cells finished: a client's error ends nothing", len(run.Failures), len(run.Finished))
	}
	says(t, err, "1 measured requests failed and have no latency")
	if got := run.Manifest.Attempts[0].Outcome; got != record.Failed {
		t.Errorf("the outcome is %q", got)
	}
}

func TestAFailedRequestIsToldByEveryLaterAttempt(t *testing.T) {
	r := newRig(t, rule{"native-p0-latency-256-1-hbm_hit", breakOff})
	ask := r.small()
	_, err := r.measure(ask)
	says(t, err, "1 measured requests failed")
	ask.Resume = true
	_, err = r.measure(ask)
	says(t, err, "1 measured requests failed")
}

// lateReader is where the tables go; it looks whether the report was written before.
type lateReader struct{ folder string }

func (l lateReader) Write([]byte) (int, error) {
	_, err := os.Stat(filepath.Join(l.folder, "report.html"))
	return 0, errors.Join(errors.New("nobody reads"), err)
}

func TestTheReportIsWrittenThoughNobodyReadsTheTables(t *testing.T) {
	r := newRig(t)
	ask := r.small()
	if _, err := r.measure(ask); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(ask.Output, "report.html")); err != nil {
		t.Fatal(err)
	}
	if err := Publish(ask.Output, lateReader{ask.Output}); err == nil || err.Error() != "nobody reads" {
		t.Errorf("%v", err)
	}
}

func TestWhatAnEngineSaysFitsIntoARow(t *testing.T) {
	q := query{}
	row := q.sample("r", load.Answer{}, errors.New(strings.Repeat("é", errorMax)))
	if len(row.Error) > errorMax+8 || !utf8.ValidString(row.Error) || !strings.HasSuffix(row.Error, "...") {
		t.Errorf("%d bytes are kept", len(row.Error))
	}
}

func TestAnEngineThatDiesIsAFailureAndNoLatency(t *testing.T) {
	r := newRig(t, rule{"native-p0-latency-256-1-hbm_hit", dieMidStream})
	run, err := r.measure(r.small())
	says(t, err, "native, pass 0", "1 cell of native is missing: the same command with --resume")
	r.tells("exit status 3")
	if len(run.Failures) != 1 || run.Failures[0].Stage != "serve" || run.Failures[0].Cell != "native/p0/latency/256/1" || !strings.Contains(run.Failures[0].Reason, "exit status 3") {
		t.Errorf("failures %+v", run.Failures)
	}
	for i := range run.Samples {
		row := &run.Samples[i]
		if row.Cell == "native/p0/latency/256/1" && (run.Final(row.Place) || (row.Phase == record.HBMHit && row.Error == "")) {
			t.Errorf("a sample of the cell that broke counts: %+v", row)
		}
	}
	if got := sources(run, record.OrbitKV, record.AfterPressure)[record.FromExternal]; got != 2 {
		t.Errorf("the next backend has %d external samples, want 2", got)
	}
	if got := run.Manifest.Attempts[0].Outcome; got != record.Failed {
		t.Errorf("the outcome is %q", got)
	}
}

func TestABackendThatCannotStartIsAFailureAndTheNextIsMeasured(t *testing.T) {
	r := newRig(t)
	r.refuse = map[string]*launch.StartError{record.FlexKV: {Part: record.PartEngine, Reason: "KVCacheLayout takes no is_mla"}}
	ask := r.small()
	ask.Backends = []string{record.FlexKV, record.Native}
	run, err := r.measure(ask)
	says(t, err, "flexkv, pass 0: engine (start)", "flexkv, pass 0: engine (start) (why is said above); 2 cells of flexkv are missing, whose backend did not start: mend it and measure in a new folder", "--resume goes on only with the same packages")
	if said := err.Error(); strings.Contains(said, "measures them") || strings.Contains(said, "is_mla") {
		t.Errorf("resuming measures what cannot start, or the reason is said again: %s", said)
	}
	r.tells("flexkv, pass 0: engine (start): KVCacheLayout takes no is_mla")
	if len(run.Failures) != 1 || run.Failures[0].Stage != "start" || run.Failures[0].Log != "logs/flexkv-p0-a1-engine.log" {
		t.Errorf("failures %+v", run.Failures)
	}
	if len(run.Finished) != 2 || len(pick(run, func(s *record.Sample) bool { return s.Backend == record.FlexKV })) != 0 {
		t.Errorf("%d cells finished, want the two of native", len(run.Finished))
	}
}

func TestCountersThatNeverRestMakeSamplesUnverifiedAndEndTheBackend(t *testing.T) {
	r := newRig(t)
	r.restless = true
	run, err := r.measure(r.small())
	says(t, err, "native, pass 0", "orbitkv, pass 0")
	r.tells("did not come to rest", "after 3 requests in a row", "still moving", "the same as said above")
	if len(run.Failures) != 2 {
		t.Errorf("%d failures, want one a backend", len(run.Failures))
	}
	for _, row := range run.Samples {
		if row.Source != record.Unverified || row.Why == "" {
			t.Errorf("a sample between restless counters is %s (%q)", row.Source, row.Why)
		}
	}
}

func TestWhatWasNotGivenBackIsSaid(t *testing.T) {
	r := newRig(t)
	r.leases = 2
	run, err := r.measure(r.small())
	says(t, err, "orbitkv, pass 0: not everything was given back")
	r.tells("orbitkv_leases is 2")
	if len(run.Drains) != 2 || run.Drains[1].Drained || run.Manifest.Attempts[0].Outcome != record.Failed {
		t.Errorf("drain checks %+v", run.Drains)
	}
}
