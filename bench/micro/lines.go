package micro

import "math/rand/v2"

// memoryLines is plain memory of one cache line an entry.
type memoryLines [][8]uint64

// newLines makes entries that are all in memory.
func newLines(entries int) memoryLines {
	l := make(memoryLines, entries)
	for i := range l {
		l[i][0] = uint64(i)
	}
	return l
}

// places returns entries in no order that a processor could foresee.
func (l memoryLines) places(count int) []int {
	places := make([]int, count)
	for i := range places {
		places[i] = rand.IntN(len(l))
	}
	return places
}

// read touches the entries; the reads do not wait for each other.
func (l memoryLines) read(places []int) (sum uint64) {
	for _, p := range places {
		sum += l[p][0]
	}
	return sum
}

// write changes the entries.
func (l memoryLines) write(places []int) {
	for _, p := range places {
		l[p][0]++
	}
}
