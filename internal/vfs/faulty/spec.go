// Package faulty slows or breaks a real folder on purpose, for tests of the whole Manager on a disk that is slow, full or failing.
//
// Its rules come as text (Parse), so that a Manager can be started with them. Wrap puts them around a folder; files give no descriptor then, so that every
// transfer comes by here. Of two rules of one kind a file follows that which names it more exactly. All methods may be called at the same time. The package must not be used but on request: it loses data by design.
package faulty

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"orbitkv/internal/config"
)

// StallName is the file that makes reads wait under stall-reads, for as long as it lies in the folder.
const StallName = "stall-reads"

// Rules are what goes wrong. The zero value is nothing.
type Rules struct {
	text  string
	rules []rule
}

// String is the text that the rules were parsed from.
func (r Rules) String() string { return r.text }

// rule is one fault.
type rule struct {
	kind   *kind
	prefix string // of the names of its files
	number uint64 // bytes, bytes a second, or the n of every nth; 0 for a kind without a value
}

// kind is a word of the language.
type kind struct {
	name  string
	value func(text string) (uint64, error) // nil for a kind that takes none
}

var (
	readRate     = &kind{"read-rate", size}
	writeRate    = &kind{"write-rate", size}
	readError    = &kind{"read-eio", every}
	writeError   = &kind{"write-eio", every}
	readFlip     = &kind{"read-flip", every}
	writeFull    = &kind{"write-enospc-after", config.ParseSize}
	writeInvalid = &kind{"write-einval", nil}
	stallReads   = &kind{StallName, nil}

	kinds = []*kind{readRate, writeRate, readError, writeError, readFlip, writeFull, writeInvalid, stallReads}
)

const usage = "a spec is a list such as read-rate=50mb,payload:read-eio=3. Each rule may begin with FILE: for files whose names begin so, and is one of " +
	"read-rate=SIZE and write-rate=SIZE (bytes a second of all such files together), read-eio=N, write-eio=N and read-flip=N (every Nth), write-enospc-after=SIZE, " +
	"write-einval (files of direct I/O alone), stall-reads (while the folder has a file of that name)"

// Parse reads rules such as "read-rate=50mb,payload:read-eio=3". An empty text is no rules.
func Parse(spec string) (Rules, error) {
	r := Rules{text: spec}
	if spec == "" {
		return r, nil
	}
	for text := range strings.SplitSeq(spec, ",") {
		one, err := parseRule(strings.TrimSpace(text))
		if err != nil {
			return Rules{}, fmt.Errorf("fault injection: %q: %w; %s", text, err, usage)
		}
		for _, other := range r.rules {
			if other.kind == one.kind && other.prefix == one.prefix {
				return Rules{}, fmt.Errorf("fault injection: %q: %s stands there twice; %s", text, one.kind.name, usage)
			}
		}
		r.rules = append(r.rules, one)
	}
	return r, nil
}

func parseRule(text string) (rule, error) {
	prefix, fault, narrowed := strings.Cut(text, ":")
	if !narrowed {
		prefix, fault = "", text
	} else if prefix == "" {
		return rule{}, errors.New("no file is named before the colon")
	}
	name, value, valued := strings.Cut(fault, "=")
	for _, k := range kinds {
		switch {
		case k.name != name:
			continue
		case k.value == nil && valued:
			return rule{}, fmt.Errorf("%s takes no value", name)
		case k.value == nil:
			return rule{kind: k, prefix: prefix}, nil
		case !valued:
			return rule{}, fmt.Errorf("%s needs a value", name)
		}
		number, err := k.value(value)
		return rule{kind: k, prefix: prefix, number: number}, err
	}
	return rule{}, fmt.Errorf("%q is no fault", name)
}

// size reads a rate, which is never zero.
func size(text string) (uint64, error) {
	n, err := config.ParseSize(text)
	if err == nil && n == 0 {
		err = errors.New("a rate of 0 never ends a transfer: stall-reads holds reads")
	}
	return n, err
}

// every reads the n of every nth.
func every(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no number from 1 to %d", text, uint32(math.MaxUint32))
	}
	return n, nil
}
