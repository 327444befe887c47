package main

import (
	"strings"

	"orbitkv/internal/wire/schema"
)

// initialisms keep their case in Go names.
var initialisms = map[string]string{"abi": "ABI", "numa": "NUMA", "id": "ID"}

func camel(snake string) string {
	var b strings.Builder
	for _, word := range strings.Split(snake, "_") {
		if name, ok := initialisms[word]; ok {
			b.WriteString(name)
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// enumOf returns the Enum of a kind such as "u8 Role" and the kind of its number.
func enumOf(kind schema.Kind) (enum string, number schema.Kind, ok bool) {
	width, name, ok := strings.Cut(string(kind), " ")
	return name, schema.Kind(width), ok
}

// constant is one number that all ends share.
type constant struct {
	name  string // CamelCase
	value int
	doc   string
}

func constants() []constant {
	return []constant{
		{"ABI", schema.ABI, "version that hello carries"},
		{"HeaderBytes", schema.HeaderBytes, "bytes of a frame's header"},
		{"FrameBytesMax", schema.FrameBytesMax, "bytes of a whole frame, header included"},
		{"KeyBytes", schema.KeyBytes, "bytes of one key"},
		{"OperationKeysMax", schema.OperationKeysMax, "keys of one operation, over all its parts"},
		{"FrameKeysMax", schema.FrameKeysMax, "keys of one part"},
		{"FrameRunsMax", schema.FrameRunsMax, "runs of one frame"},
		{"FrameRangesMax", schema.FrameRangesMax, "ranges of one frame"},
		{"FrameGrantsMax", schema.FrameGrantsMax, "grant records of one frame"},
		{"FrameIDsMax", schema.FrameIDsMax, "ids of one list of a frame"},
		{"PartsMax", schema.PartsMax, "parts of one operation or answer"},
		{"StringBytesMax", schema.StringBytesMax, "bytes of a string"},
		{"TextBytesMax", schema.TextBytesMax, "bytes of an error or remedy text"},
		{"FactsBytesMax", schema.FactsBytesMax, "bytes of the JSON object of namespace facts"},
		{"RanksMax", schema.RanksMax, "ranks of one instance"},
		{"AllRanks", schema.AllRanks, "rank value that stands for every rank of the instance"},
		{"LocationArenaBit", schema.LocationArenaBit, "first bit of the arena id in a location"},
	}
}

// upperSnake turns FrameKeysMax into FRAME_KEYS_MAX; a word starts at a capital that follows a small letter.
func upperSnake(name string) string {
	name = strings.ReplaceAll(name, "IDs", "Ids")
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}
