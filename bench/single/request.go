package single

import (
	"context"
	"fmt"
	"strings"
	"time"

	"orbitkv/bench/evidence"
	"orbitkv/bench/load"
	"orbitkv/bench/record"
)

// query is one request to be sent.
type query struct {
	place    record.Place
	phase    record.Phase
	measured bool
	prompt   int // index in the cell, for cells with many
	tokens   []int
	output   int
	want     *string // the text that the answer must have; nil where there is nothing to compare with
}

// request returns what the engine is asked, with an id that no other request of the run has.
func (s *stage) request(q *query) load.Request {
	s.sequence++
	cell := strings.ReplaceAll(q.place.Cell, "/", "-")
	id := fmt.Sprintf("%s-%s-a%d-%d", cell, q.phase, s.dir.Attempt(), s.sequence)
	return load.Request{ID: id, Tokens: q.tokens, OutputTokens: q.output}
}

// sample is a row of a query and its answer, still without evidence.
func (q *query) sample(id string, answer load.Answer, failure error) record.Sample {
	row := record.Sample{
		Place: q.place, Phase: q.phase, Measured: q.measured, Request: id, Started: answer.Started, PromptIndex: q.prompt, PromptTokens: len(q.tokens),
		TTFTms: milliseconds(answer.FirstText), E2Ems: milliseconds(answer.End), OutputTokens: answer.OutputTokens, FirstTextTokens: answer.FirstTextTokens,
		Text: answer.Text,
	}
	for _, chunk := range answer.Chunks {
		row.ChunkMs = append(row.ChunkMs, milliseconds(chunk))
	}
	switch {
	case failure != nil:
		row.Error = bounded(failure.Error())
	case q.want != nil:
		same := answer.Text == *q.want
		row.MatchesCold = &same
	}
	return row
}

// bounded cuts what an engine said so that a row can hold it.
func bounded(text string) string {
	if len(text) > errorMax {
		text = text[:errorMax] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// unverified is the evidence of a request that has none.
func unverified(answer load.Answer, why string) record.Evidence {
	return record.Evidence{
		Source: record.Unverified, Why: why, CachedTokens: answer.CachedTokens, DeviceTokens: max(answer.DeviceTokens, 0), ExternalTokens: max(answer.ExternalTokens, 0),
	}
}

// serial sends one request alone, with settled counters on both sides, and keeps its row. A client's error is in the row; the returned error ends the
// turn.
func (s *stage) serial(ctx context.Context, q query) (record.Sample, error) {
	whyBefore, err := s.atRest(ctx)
	if err != nil {
		return record.Sample{}, err
	}
	before := s.settled
	request := s.request(&q)
	_ = s.client.Warm(ctx, 1) // To be accepted is no part of a request's times; what hinders it the request says itself.
	answer, failure := s.client.Complete(ctx, request)
	row := q.sample(request.ID, answer, failure)
	ended := error(nil)
	if failure != nil {
		ended = s.alive(ctx, failure)
	}
	whyAfter := ""
	if ended == nil {
		whyAfter, ended = s.settle(ctx)
	}
	switch why := restless(whyBefore, whyAfter); {
	case failure != nil:
		row.Evidence = unverified(answer, "the answer is not whole")
	case ended != nil:
		row.Evidence = unverified(answer, "the backend ended before the counters came to rest")
	case why != "":
		row.Evidence = unverified(answer, why)
	default:
		row.Evidence = evidence.Classify(s.between(q.phase, *before, *s.settled, answer))
	}
	if err := s.keep(row); err != nil {
		return row, err
	}
	s.progress.sample(&row)
	return row, ended
}

// keep writes a sample's row, and counts it where it should have had a latency.
func (s *stage) keep(row record.Sample) error {
	if row.Measured && row.Error != "" {
		s.failing++
	}
	return s.dir.Sample(row)
}

// between is the case of what happened in a phase between two settled looks.
func (s *stage) between(phase record.Phase, before, after evidence.Snapshot, answer load.Answer) evidence.Case {
	return evidence.Case{
		Engine: s.ask.Engine, Backend: s.backend, Before: before, After: after, Answer: answer, BytesPerToken: s.model.BytesPerToken, PageSize: s.ask.PageSize,
		Evicted: phase == record.AfterHostEviction && s.backend == record.OrbitKV,
	}
}

// pressure sends prompts that push everything else out of device memory. They depend on the name alone, as the prompt before them does.
func (s *stage) pressure(ctx context.Context, place record.Place, name string) error {
	for i := range s.ask.PressureCount {
		q := query{
			place: place, phase: record.Pressure, prompt: i, output: 1,
			tokens: s.prompts.draw(s.ask.PressureTokens, fmt.Sprintf("%s/pressure/%d", name, i)),
		}
		if _, err := s.serial(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// text returns the text to compare with, if the sample has a whole one.
func text(row record.Sample) *string {
	if row.Error != "" {
		return nil
	}
	return &row.Text
}
