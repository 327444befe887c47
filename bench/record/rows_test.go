package record

import "testing"

// TestTPOTIsOfTheTokensAfterTheFirstText has no time per token where it is not known how many tokens came after the first text, or none did.
func TestTPOTIsOfTheTokensAfterTheFirstText(t *testing.T) {
	for name, c := range map[string]struct {
		sample Sample
		want   float64
		ok     bool
	}{
		"text with the first token": {Sample{TTFTms: 100, E2Ems: 250, OutputTokens: 16, FirstTextTokens: 1}, 10, true},
		"text with the sixth":       {Sample{TTFTms: 150, E2Ems: 250, OutputTokens: 16, FirstTextTokens: 6}, 10, true},
		"text with the last":        {Sample{TTFTms: 250, E2Ems: 250, OutputTokens: 16, FirstTextTokens: 16}, 0, false},
		"not known":                 {Sample{TTFTms: 100, E2Ems: 250, OutputTokens: 16}, 0, false},
		"no text":                   {Sample{E2Ems: 250, OutputTokens: 16, FirstTextTokens: 1}, 0, false},
		"not whole":                 {Sample{TTFTms: 100, E2Ems: 250, OutputTokens: 16, FirstTextTokens: 1, Error: "broke off"}, 0, false},
	} {
		if got, ok := c.sample.TPOTms(); got != c.want || ok != c.ok {
			t.Errorf("%s: %g ms, %v; want %g, %v", name, got, ok, c.want, c.ok)
		}
	}
}
