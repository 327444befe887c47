package load

import (
	"encoding/json"
	"errors"
	"fmt"
)

// vllm speaks /v1/completions: each event has the text since the last one, and the last event has no choice but the counts.
type vllm struct{ model string }

func (vllm) path() string             { return "/v1/completions" }
func (vllm) id(request string) string { return "cmpl-" + request }

// body asks for counts in every event: an event with text and no token is then seen.
func (v vllm) body(r Request) ([]byte, error) {
	return json.Marshal(map[string]any{
		"model": v.model, "prompt": r.Tokens, "max_tokens": r.OutputTokens, "temperature": 0, "seed": samplingSeed, "ignore_eos": true, "stream": true,
		"stream_options": map[string]bool{"include_usage": true, "continuous_usage_stats": true},
	})
}

func (vllm) decode(data []byte) (piece, error) {
	var e struct {
		ID      string          `json:"id"`
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Text   string  `json:"text"`
			Finish *string `json:"finish_reason"`
		} `json:"choices"`
		Usage *struct {
			Prompt     *int `json:"prompt_tokens"`
			Completion *int `json:"completion_tokens"`
			Details    *struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return piece{}, fmt.Errorf("it is not what vLLM answers: %w", err)
	}
	if says(e.Error) {
		return piece{}, failed(e.Error)
	}
	if len(e.Choices) > 1 {
		return piece{}, fmt.Errorf("it has %d choices, one was asked for", len(e.Choices))
	}
	p := piece{id: e.ID, delta: true, output: -1, prompt: -1, cached: -1, device: -1, outside: -1}
	if e.Usage != nil {
		p.prompt, p.output = or(e.Usage.Prompt), or(e.Usage.Completion)
		if e.Usage.Details != nil {
			p.cached = or(e.Usage.Details.Cached)
		}
	}
	if len(e.Choices) == 1 {
		p.text, p.spoke = e.Choices[0].Text, true
		if e.Choices[0].Finish != nil {
			p.finish = *e.Choices[0].Finish
		}
	}
	return p, nil
}

// sglang speaks /generate: each event has the whole text so far, and the counts.
type sglang struct{}

func (sglang) path() string             { return "/generate" }
func (sglang) id(request string) string { return request }

func (sglang) body(r Request) ([]byte, error) {
	return json.Marshal(map[string]any{
		"rid": r.ID, "input_ids": r.Tokens, "stream": true,
		"sampling_params": map[string]any{"max_new_tokens": r.OutputTokens, "temperature": 0, "ignore_eos": true, "sampling_seed": samplingSeed},
	})
}

func (sglang) decode(data []byte) (piece, error) {
	var e struct {
		Error json.RawMessage `json:"error"`
		Text  *string         `json:"text"`
		Meta  *struct {
			ID     string `json:"id"`
			Finish *struct {
				Type    string `json:"type"`
				Message string `json:"message"`
			} `json:"finish_reason"`
			Prompt     *int `json:"prompt_tokens"`
			Completion *int `json:"completion_tokens"`
			Cached     *int `json:"cached_tokens"`
			Details    *struct {
				Device  *int `json:"device"`
				Host    *int `json:"host"`
				Storage *int `json:"storage"`
			} `json:"cached_tokens_details"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return piece{}, fmt.Errorf("it is not what SGLang answers: %w", err)
	}
	if says(e.Error) {
		return piece{}, failed(e.Error)
	}
	if e.Meta == nil {
		return piece{}, errors.New("it is not what SGLang answers: it has no meta_info")
	}
	m := e.Meta
	p := piece{id: m.ID, output: or(m.Completion), prompt: or(m.Prompt), cached: or(m.Cached), device: -1, outside: -1}
	if e.Text != nil {
		p.text, p.spoke = *e.Text, true
	}
	if m.Finish != nil {
		p.finish = m.Finish.Type
		if m.Finish.Type == "abort" {
			return p, fmt.Errorf("the engine aborted the request: %s", m.Finish.Message)
		}
	}
	switch {
	case m.Details != nil:
		p.device, p.outside = or(m.Details.Device), or(m.Details.Host)
		if m.Details.Storage != nil && p.outside >= 0 {
			p.outside += *m.Details.Storage
		}
	case p.cached == 0:
		p.device, p.outside = 0, 0 // SGLang leaves the details out when nothing was cached.
	}
	return p, nil
}
