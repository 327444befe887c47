package cache

import (
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"pgregory.net/rapid"
)

// The model with the policies of what is kept: whatever they decide, the bytes are where they must be. The scrubber's digests are of what the memory
// really holds, so that any damage that the cache sees is a page that was given away too early, or a digest that outlived its page.

// outPage is the page that is being scrubbed.
type outPage struct {
	ScrubPage
	content []string
}

// drawPolicies switches policies on and off, each alone.
func drawPolicies(t *rapid.T, config *Config) {
	config.WritePolicy = rapid.SampledFrom([]WritePolicy{WriteAll, WriteReuse}).Draw(t, "writes")
	config.ProtectedPercent = rapid.SampledFrom([]uint64{0, 0, 20, 60}).Draw(t, "protected")
	config.LFUAdmission = rapid.Bool().Draw(t, "frequency")
	config.Scrub = rapid.Bool().Draw(t, "scrub")
}

// contentOf reads what a page's places hold.
func (w *world) contentOf(parts []TierPart) (content []string) {
	for _, at := range granulesOf(TierPage{Parts: parts}) {
		content = append(content, w.memory[at])
	}
	return content
}

func digestOfContent(content []string) Digest {
	return xxh3.HashString128(strings.Join(content, "|")).Bytes()
}

// scrub takes a page out, or ends the one that is out.
func (w *world) scrub() {
	if w.out != nil {
		w.scrubEnds()
	} else if page, ok := w.rig.ScrubNext(); ok {
		w.out = &outPage{page, w.contentOf(page.Parts)}
	}
}

// scrubEnds compares the page that is out, if there is one, with what it held when it was taken.
func (w *world) scrubEnds() {
	if w.out == nil {
		return
	}
	content := w.contentOf(w.out.Parts)
	w.check(slices.Equal(content, w.out.content), "a page changed while it was scrubbed: %q, it held %q", content, w.out.content)
	w.rig.ScrubDone(w.out.Page, digestOfContent(content))
	w.out = nil
}

// isOut says whether a place is being scrubbed.
func (w *world) isOut(at place) bool {
	return w.out != nil && slices.Contains(granulesOf(TierPage{Parts: w.out.Parts}), at)
}
