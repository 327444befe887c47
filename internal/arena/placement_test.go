package arena

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pagesByNode returns how many pages of a mapped arena lie on each node, as the kernel counts them.
func pagesByNode(t *testing.T, a *Arena) map[int]uint64 {
	t.Helper()
	view, err := unix.Mmap(a.Descriptor(), 0, int(a.Bytes), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err = firstError(err, unix.Munmap(view)); err != nil {
		t.Fatal(err)
	}
	pages := map[int]uint64{}
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, fmt.Sprintf("%splacement-%d", NamePrefix, a.ID)) {
			continue
		}
		for field := range strings.FieldsSeq(line) {
			name, count, found := strings.Cut(field, "=")
			node, err := strconv.Atoi(strings.TrimPrefix(name, "N"))
			if !found || err != nil || !strings.HasPrefix(name, "N") {
				continue
			}
			n, err := strconv.ParseUint(count, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			pages[node] += n
		}
	}
	return pages
}

// TestPagesLieOnTheNodeOfTheirArena needs a machine with two nodes: whoever populates, each arena's pages must be where it says.
func TestPagesLieOnTheNodeOfTheirArena(t *testing.T) {
	nodes := memoryNodes()
	if len(nodes) < 2 {
		t.Skipf("needs two NUMA nodes with memory, this machine lets the test use %v", nodes)
	}
	p, err := Create(Config{PoolBytes: uint64(len(nodes)) * 16 * mib, Incarnation: "placement"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.Populate(context.Background(), slog.New(slog.DiscardHandler), nil, func(*Arena) {}); err != nil {
		t.Fatal(err)
	}
	if len(p.Arenas()) != len(nodes) {
		t.Fatalf("%d arenas for the nodes %v", len(p.Arenas()), nodes)
	}
	for i, a := range p.Arenas() {
		if a.Node != nodes[i] {
			t.Errorf("arena %d is for node %d, want %d", i, a.Node, nodes[i])
		}
		if pages := pagesByNode(t, a); len(pages) != 1 || pages[a.Node] != a.Bytes/PageBytes {
			t.Errorf("arena %d for node %d: %v pages by node, want %d there", i, a.Node, pages, a.Bytes/PageBytes)
		}
	}
}
