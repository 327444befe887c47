package record

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Difference is one value that two records do not share. Absent values are written as "absent".
type Difference struct {
	Name string `json:"name"` // as in the files, joined by points
	A    string `json:"a"`
	B    string `json:"b"`
}

// String names the value and both sides.
func (d Difference) String() string {
	return fmt.Sprintf("%s was %s and is %s", d.Name, d.A, d.B)
}

// Differences compares two values as they are written in JSON and returns what differs, by name. Lists are compared whole.
func Differences(a, b any) []Difference {
	var all []Difference
	collect("", plain(a), plain(b), &all)
	return all
}

// plain turns a value into maps, lists and scalars.
func plain(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("not comparable: %v", err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		return fmt.Sprintf("not comparable: %v", err)
	}
	return out
}

func collect(name string, a, b any, to *[]Difference) {
	left, isLeft := a.(map[string]any)
	right, isRight := b.(map[string]any)
	if !isLeft || !isRight {
		if x, y := written(a), written(b); x != y {
			*to = append(*to, Difference{name, x, y})
		}
		return
	}
	names := maps.Clone(left)
	maps.Copy(names, right)
	for _, key := range slices.Sorted(maps.Keys(names)) {
		below := key
		if name != "" {
			below = name + "." + key
		}
		collect(below, left[key], right[key], to)
	}
}

// written is a value as JSON. An empty list and no list are the same: both mean none.
func written(value any) string {
	if list, ok := value.([]any); value == nil || ok && len(list) == 0 {
		return "absent"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
