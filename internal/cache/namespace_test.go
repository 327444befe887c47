package cache

import (
	"slices"
	"strconv"
	"testing"

	"orbitkv/internal/wire"
)

// The table of namespaces is bounded: one more is refused, is counted and can be told why, until one that nobody uses has lost its last page. The tier
// hears of that one, and of no other.
func TestNamespacesAreBounded(t *testing.T) {
	r, b, e := tierRig(t, Config{}, 1)
	r.publish(e, keysOf(0, 1))
	r.endWrites(b)
	used := []*namespace{}
	r.enter()
	for i := 0; len(r.namespaces) < NamespacesMax; i++ {
		ns, err := r.useNamespace(map[string]string{"model": strconv.Itoa(i)}, 0, 1, geometry{pageBytes: page})
		r.must(err)
		used = append(used, ns)
	}
	r.leave()
	refused := r.Stats().BusyTotal
	worker := r.connect(r.process(500), wire.RoleWorker)
	_, err := r.Attach(worker.id, shape{slices: []uint64{page}, facts: map[string]string{"model": "one more"}}.attach("one more", 0))
	r.fails(err, wire.StatusBusy)
	if got := r.Stats().BusyTotal; got != refused+1 {
		t.Errorf("%d were refused, want one more than %d", got, refused)
	}
	last := used[len(used)-1]
	r.enter()
	r.leaveNamespace(last)
	r.leave()
	if !slices.Equal(b.released, []uint32{last.stored}) {
		t.Errorf("the tier heard that nobody uses %v, want %d", b.released, last.stored)
	}
	r.engine("one more", 600, shape{slices: []uint64{page}, facts: map[string]string{"model": "one more"}})
	r.check()
}
