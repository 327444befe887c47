package single

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
)

const vocabularyMin = 64 // tokens, from which prompts are drawn that differ

// prompts draws the token ids of prompts. It has no state: equal names give equal tokens.
type prompts struct {
	seed       int64
	vocabulary int
}

// source returns random numbers that follow from the seed and a name alone.
func (p prompts) source(name string) *rand.Rand {
	return rand.New(rand.NewChaCha8(sha256.Sum256(fmt.Appendf(nil, "%d/%s", p.seed, name))))
}

// draw returns the prompt of a name. Both ends of the vocabulary are left out, where tokenizers keep their special tokens.
func (p prompts) draw(length int, name string) []int {
	random := p.source(name)
	low := min(256, p.vocabulary/8)
	span := p.vocabulary - p.vocabulary/8 - low
	tokens := make([]int, length)
	for i := range tokens {
		tokens[i] = low + random.IntN(span)
	}
	return tokens
}
