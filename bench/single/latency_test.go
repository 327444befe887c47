package single

import (
	"maps"
	"testing"

	"orbitkv/bench/record"
)

func TestLatencyMeasuresEveryPromptInItsThreeStates(t *testing.T) {
	for _, engine := range []string{record.VLLM, record.SGLang} {
		t.Run(engine, func(t *testing.T) {
			r := newRig(t)
			ask := r.small()
			ask.Engine = engine
			run, err := r.measure(ask)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []struct {
				backend string
				phase   record.Phase
				source  record.Source
			}{
				{record.Native, record.Cold, record.Miss},
				{record.Native, record.HBMHit, record.FromHBM},
				{record.Native, record.AfterPressure, record.Miss},
				{record.OrbitKV, record.Cold, record.Miss},
				{record.OrbitKV, record.HBMHit, record.FromHBM},
				{record.OrbitKV, record.AfterPressure, record.FromExternal},
			} {
				if got := sources(run, want.backend, want.phase); !maps.Equal(got, map[record.Source]int{want.source: 2}) {
					t.Errorf("%s %s: %v, want 2 %s", want.backend, want.phase, got, want.source)
				}
			}
			for _, row := range pick(run, func(s *record.Sample) bool { return s.Phase == record.Pressure }) {
				if row.Measured || row.PromptTokens != 1536 || row.OutputTokens != 1 {
					t.Errorf("a pressure request is %+v, want 1536 tokens, one answered, unmeasured", row)
				}
			}
			if len(run.Finished) != 4 || len(run.Drains) != 2 || run.Manifest.Attempts[0].Outcome != record.Complete {
				t.Errorf("%d cells, %d drain checks, outcome %q", len(run.Finished), len(run.Drains), run.Manifest.Attempts[0].Outcome)
			}
		})
	}
}
