package single

import (
	"context"
	"fmt"

	"orbitkv/bench/record"
)

// latency measures one prompt in each of its states.
func (s *stage) latency(ctx context.Context, place record.Place) error {
	return s.round(ctx, place, latencyName(place.Length, place.Prefix), true)
}

// latencyName names a prompt of the latency workload.
func latencyName(length, prefix int) string { return fmt.Sprintf("latency/%d/%d", length, prefix) }

// round asks for a prompt cold, again while it is in device memory, again after pressure and, where there is an SSD tier, again after host memory was
// emptied.
func (s *stage) round(ctx context.Context, place record.Place, name string, measured bool) error {
	q := query{place: place, phase: record.Cold, measured: measured, tokens: s.prompts.draw(place.Length, name), output: s.ask.OutputTokens}
	cold, err := s.serial(ctx, q)
	if err != nil {
		return err
	}
	q.phase, q.want = record.HBMHit, text(cold)
	if _, err := s.serial(ctx, q); err != nil {
		return err
	}
	if err := s.pressure(ctx, place, name); err != nil {
		return err
	}
	q.phase = record.AfterPressure
	if _, err = s.serial(ctx, q); err != nil || !s.ask.Evicts(s.backend) {
		return err
	}
	if err := s.evict(ctx, place, name); err != nil {
		return err
	}
	q.phase = record.AfterHostEviction
	_, err = s.serial(ctx, q)
	return err
}

// rehearse sends one whole round of a length that is not measured: the first of its kind compiles and allocates.
func (s *stage) rehearse(ctx context.Context, length int) error {
	return s.round(ctx, s.place(length, "%d", length), fmt.Sprintf("warm/round/%d", length), false)
}
