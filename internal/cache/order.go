package cache

import (
	"cmp"
	"maps"
	"slices"
)

// inOrder lists the values of a map by key, so that what a call does never depends on the order of a Go map. The map may be changed
// while the list is walked.
func inOrder[K cmp.Ordered, V any](m map[K]V) []V {
	values := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		values = append(values, m[k])
	}
	return values
}
