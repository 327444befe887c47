package single

import (
	"context"
	"fmt"
	"strconv"

	"orbitkv/bench/record"
)

// partialKey names a prompt of the partial workload, whichever backend is asked for it.
type partialKey struct {
	length, percent, prefix int
}

// name names the prompt of a key.
func (k partialKey) name() string {
	return fmt.Sprintf("partial/%d/%d/%d", k.length, k.percent, k.prefix)
}

// partialKeyOf returns the key of a row of the partial workload.
func partialKeyOf(p record.Place) partialKey {
	percent, _ := strconv.Atoi(p.Variant) // Variants of the workload are written from integers.
	return partialKey{p.Length, percent, p.Prefix}
}

// sharedPart returns how many tokens a partial prompt has in common with the one seen before: whole pages.
func sharedPart(key partialKey, page int) int { return key.length * key.percent / 100 / page * page }

// partialPrompts returns a prompt that is seen first, and one that begins like it and goes on otherwise.
func (p prompts) partialPrompts(key partialKey, page int) (seen, begins []int) {
	seen = p.draw(key.length, key.name()+"/seen")
	rest := p.draw(key.length, key.name()+"/rest")
	shared := sharedPart(key, page)
	begins = append(append(begins, seen[:shared]...), rest[shared:]...)
	if shared < key.length && begins[shared] == seen[shared] { // One token more in common would be one more than the percent says.
		begins[shared]++
	}
	return seen, begins
}

// partial measures a prompt whose first part was seen, after pressure, beside one that is all new. The two are different prompts: asking for
// one of them in both states would make the second a hit. What the answer must be is known where the engine has given it without an external cache.
func (s *stage) partial(ctx context.Context, place record.Place) error {
	key := partialKeyOf(place)
	name := key.name()
	seen, begins := s.prompts.partialPrompts(key, s.ask.PageSize)
	q := query{place: place, phase: record.Prepare, tokens: seen, output: s.ask.OutputTokens}
	if _, err := s.serial(ctx, q); err != nil {
		return err
	}
	if err := s.pressure(ctx, place, name); err != nil {
		return err
	}
	q.phase, q.measured, q.tokens, q.want = record.Partial, true, begins, s.alone[key]
	row, err := s.serial(ctx, q)
	if err != nil {
		return err
	}
	if s.backend == record.Native && row.Source == record.Miss && s.alone[key] == nil {
		s.alone[key] = text(row)
	}
	q.phase, q.tokens, q.want = record.Cold, s.prompts.draw(key.length, name+"/cold"), nil
	_, err = s.serial(ctx, q)
	return err
}

// recall takes the engine's own answers to partial prompts out of what earlier attempts kept.
func (r *run) recall(kept *record.Run) {
	for i := range kept.Samples {
		row := &kept.Samples[i]
		if row.Backend == record.Native && row.Phase == record.Partial && row.Source == record.Miss && kept.Final(row.Place) && row.Error == "" {
			if key := partialKeyOf(row.Place); r.alone[key] == nil {
				r.alone[key] = &row.Text
			}
		}
	}
}
