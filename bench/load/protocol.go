package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"orbitkv/bench/record"
)

// samplingSeed is the sampling seed of every request. Sampling is greedy; the seed keeps an engine that looks at it from drawing one.
const samplingSeed = 42

// piece is what one event says, in either engine's words.
type piece struct {
	id      string
	text    string // so far, or since the last event where delta
	spoke   bool   // the event has a text field
	delta   bool
	output  int // tokens generated so far; -1 when the event does not say
	prompt  int // tokens of the prompt; -1 when the event does not say
	cached  int // of the prompt, claimed; -1 when the event does not say
	device  int // of the prompt; -1 when the event does not say
	outside int // of the prompt; -1 when the event does not say
	finish  string
}

// protocol is one engine's way of asking and answering.
type protocol interface {
	path() string
	body(Request) ([]byte, error)
	id(request string) string // of the answer to a request
	decode(data []byte) (piece, error)
}

func protocolOf(engine, model string) protocol {
	switch engine {
	case record.VLLM:
		return vllm{model}
	case record.SGLang:
		return sglang{}
	default:
		return unknown{engine}
	}
}

// fold makes an answer of a stream's events. broke is why the stream ended early, nil when it did not.
func fold(engine protocol, request Request, events []event, broke error, answer *Answer) error {
	counted := 0
	for i, e := range events {
		p, err := engine.decode(e.data)
		if err != nil {
			return fmt.Errorf("load: request %s, event %d of its answer: %w", request.ID, i+1, err)
		}
		if want := engine.id(request.ID); p.id != want {
			return fmt.Errorf("load: request %s, event %d: the answer is to %q, not to %q", request.ID, i+1, p.id, want)
		}
		if err := answer.count(p, &counted); err != nil {
			return fmt.Errorf("load: request %s, event %d of its answer: %w", request.ID, i+1, err)
		}
		if err := answer.grow(p, e); err != nil {
			return fmt.Errorf("load: request %s, event %d of its answer: %w", request.ID, i+1, err)
		}
		answer.join(p, e)
	}
	if broke != nil {
		return fmt.Errorf("load: the answer to request %s broke off after %d pieces of text: %w", request.ID, len(answer.Chunks), broke)
	}
	return answer.whole(request)
}

// count takes the numbers of one event. A number that falls, or that changes where it cannot, is a lie that no latency may rest on.
func (a *Answer) count(p piece, counted *int) error {
	if p.output >= 0 {
		if p.output < *counted {
			return fmt.Errorf("the engine counted %d output tokens and then %d", *counted, p.output)
		}
		*counted, a.OutputTokens = p.output, p.output
	}
	if p.prompt >= 0 {
		if a.PromptTokens != 0 && a.PromptTokens != p.prompt {
			return fmt.Errorf("the engine counted %d prompt tokens and then %d", a.PromptTokens, p.prompt)
		}
		a.PromptTokens = p.prompt
	}
	if p.cached >= 0 {
		a.CachedTokens = p.cached
	}
	if p.device >= 0 {
		a.DeviceTokens = p.device
	}
	if p.outside >= 0 {
		a.ExternalTokens = p.outside
	}
	if p.finish != "" {
		a.Finish = p.finish
	}
	return nil
}

// grow takes the text of one event. Only growth is an arrival of text: an event that repeats what was there is not one.
func (a *Answer) grow(p piece, e event) error {
	added := p.text
	if !p.delta && p.spoke {
		if !strings.HasPrefix(p.text, a.Text) {
			return fmt.Errorf("the text so far, %d bytes, is not the start of the text that followed, %d bytes", len(a.Text), len(p.text))
		}
		added = p.text[len(a.Text):]
	}
	if added == "" {
		return nil
	}
	if a.OutputTokens == 0 { // Both engines count in every event: text without a count has no token behind it either.
		return errors.New("text came before any token was generated")
	}
	if len(a.Text)+len(added) > textMax {
		return fmt.Errorf("the text of the answer is longer than %d bytes", textMax)
	}
	if len(a.Chunks) == 0 {
		a.FirstText, a.FirstTextTokens, a.firstRead = e.at, max(p.output, 0), e.read
	}
	a.Chunks = append(a.Chunks, e.at)
	a.Text += added
	return nil
}

// join counts an event that came in one read with the first text among what came with it: the two have one time, so that nothing was seen to come after.
func (a *Answer) join(p piece, e event) {
	if e.read == a.firstRead && a.FirstTextTokens > 0 {
		a.FirstTextTokens = max(a.FirstTextTokens, p.output)
	}
}

// whole says why an answer whose stream ended properly is still not what was asked for.
func (a *Answer) whole(request Request) error {
	var why string
	switch {
	case a.PromptTokens != len(request.Tokens):
		why = fmt.Sprintf("the engine counted %d prompt tokens, %d were sent", a.PromptTokens, len(request.Tokens))
	case a.OutputTokens != request.OutputTokens:
		why = fmt.Sprintf("the engine counted %d output tokens, %d were asked for", a.OutputTokens, request.OutputTokens)
	case len(a.Chunks) == 0:
		why = "no event had any text; the engine needs a tokenizer to say when text came"
	case len(a.Chunks) > a.OutputTokens:
		why = fmt.Sprintf("text came in %d pieces and the engine counted %d output tokens", len(a.Chunks), a.OutputTokens)
	case a.Finish != "length":
		why = fmt.Sprintf("generation ended because of %q, not because all tokens were generated", a.Finish)
	case a.CachedTokens > a.PromptTokens:
		why = fmt.Sprintf("the engine claims %d cached tokens of a prompt of %d", a.CachedTokens, a.PromptTokens)
	default:
		return nil
	}
	return fmt.Errorf("load: the answer to request %s is not whole: %s", request.ID, why)
}

// failed makes an error of an event that reports one.
func failed(report json.RawMessage) error {
	text := string(report)
	if len(text) > errorBodyMax {
		text = text[:errorBodyMax]
	}
	return fmt.Errorf("the engine reports an error: %s", text)
}

// says reports whether a JSON field is there and not null.
func says(field json.RawMessage) bool { return len(field) > 0 && string(field) != "null" }

// or returns the number that an optional field has, else -1.
func or(field *int) int {
	if field == nil {
		return -1
	}
	return *field
}

// unknown is an engine that there is no protocol for.
type unknown struct{ name string }

func (u unknown) err() error {
	return fmt.Errorf("load: there is no protocol for the engine %q: use %s or %s", u.name, record.VLLM, record.SGLang)
}
func (u unknown) path() string                 { return "" }
func (u unknown) body(Request) ([]byte, error) { return nil, u.err() }
func (u unknown) id(request string) string     { return request }
func (u unknown) decode([]byte) (piece, error) { return piece{}, u.err() }
