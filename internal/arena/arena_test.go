package arena

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func newPool(t *testing.T, bytes uint64) *Pool {
	t.Helper()
	p, err := Create(Config{PoolBytes: bytes, Incarnation: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestPlanCoversThePoolAndAlternatesNodes(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		pool  uint64
		nodes []int
		want  []share
	}{
		"smaller than an arena":    {48 * mib, nil, []share{{48 * mib, -1}}},
		"last one smaller":         {2*gib + 4096, []int{0}, []share{{gib, -1}, {gib, -1}, {4096, -1}}},
		"two nodes":                {3 * gib, []int{0, 2}, []share{{gib, 0}, {gib, 2}, {gib / 2, 0}, {gib / 2, 2}}},
		"one page on two nodes":    {4096, []int{0, 1}, []share{{4096, -1}}},
		"odd pages over two nodes": {3 * 4096, []int{0, 1}, []share{{8192, 0}, {4096, 1}}},
	} {
		if got := plan(c.pool, PageBytes, c.nodes); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for _, pool := range []uint64{1 << 40, 100*gib + 8192, 17 * gib} {
		var sum uint64
		for _, s := range plan(pool, PageBytes, []int{0, 1, 2}) {
			if sum += s.bytes; s.bytes > ArenaBytesMax || s.bytes == 0 {
				t.Errorf("pool %d has an arena of %d bytes", pool, s.bytes)
			}
		}
		if sum != pool {
			t.Errorf("arenas of a pool of %d hold %d", pool, sum)
		}
	}
}

func TestTheLargestPoolHasAnIDForEachArena(t *testing.T) {
	for _, pool := range []uint64{8 << 40, 8<<40 + 1<<30, 64<<40 + 8192, 1 << 47} {
		for _, unit := range []uint64{PageBytes, 1 << 30} {
			for _, nodes := range [][]int{nil, {0, 1, 2, 3, 4, 5, 6, 7}} {
				pool := pool / unit * unit
				var sum uint64
				shares := plan(pool, unit, nodes)
				for _, s := range shares {
					if sum += s.bytes; s.bytes%unit != 0 {
						t.Errorf("an arena of %d bytes is not whole", s.bytes)
					}
				}
				if len(shares) > ArenasMax || sum != pool {
					t.Errorf("a pool of %d bytes on %d nodes has %d arenas with %d bytes", pool, len(nodes), len(shares), sum)
				}
			}
		}
	}
}

func TestArenasAreSealedNamelessAndClosedOnExec(t *testing.T) {
	p := newPool(t, 8*mib+100)
	a := p.Arenas()[0]
	if a.Bytes != 8*mib {
		t.Errorf("arena of %d bytes, want whole pages of the pool", a.Bytes)
	}
	seals, err := unix.FcntlInt(uintptr(a.Descriptor()), unix.F_GET_SEALS, 0)
	if err != nil || seals != Seals {
		t.Errorf("seals %#x, %v; want %#x", seals, err, Seals)
	}
	for _, size := range []int64{4096, 64 * mib} {
		if err := unix.Ftruncate(a.Descriptor(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("size %d: %v, want EPERM", size, err)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(a.Descriptor()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v; want close-on-exec", flags, err)
	}
	if entries, _ := filepath.Glob("/dev/shm/*orbitkv*"); len(entries) > 0 {
		t.Errorf("/dev/shm has %v", entries)
	}
}

// fileBytes is the memory that a file holds.
func fileBytes(t *testing.T, a *Arena) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(a.Descriptor(), &stat); err != nil {
		t.Fatal(err)
	}
	return uint64(stat.Blocks) * 512
}

func TestPopulateFillsEveryArenaBeforeItIsReported(t *testing.T) {
	p := newPool(t, 160*mib) // more than one piece
	a := p.Arenas()[0]
	if n := fileBytes(t, a); n != 0 {
		t.Fatalf("%d bytes before population", n)
	}
	var reported []*Arena
	err := p.Populate(context.Background(), slog.New(slog.DiscardHandler), nil, func(a *Arena) {
		if n := fileBytes(t, a); n != a.Bytes {
			t.Errorf("arena %d reported with %d of %d bytes", a.ID, n, a.Bytes)
		}
		reported = append(reported, a)
	})
	if err != nil || !reflect.DeepEqual(reported, p.Arenas()) {
		t.Fatalf("reported %d arenas, %v", len(reported), err)
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err != nil || strings.Contains(string(maps), NamePrefix) {
		t.Errorf("the pool is still mapped here (%v)", err)
	}
}

func TestPopulateStopsWhenItsContextEnds(t *testing.T) {
	p := newPool(t, 4*mib)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.Populate(ctx, slog.New(slog.DiscardHandler), nil, func(*Arena) { t.Error("reported after the end") })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want context.Canceled", err)
	}
}

func TestAPoolBelowOnePageIsRefused(t *testing.T) {
	if _, err := Create(Config{PoolBytes: 4095}); err == nil || !strings.Contains(err.Error(), "--pool-size") {
		t.Fatalf("%v, want an error that names --pool-size", err)
	}
}

func TestHugePagesAreCountedNotAssumed(t *testing.T) {
	h := HugePages{Bytes: 2 * mib, Total: 10, Free: 4}
	if err := h.check(8 * mib); err != nil {
		t.Error(err)
	}
	err := h.check(40 * mib)
	if err == nil || !strings.Contains(err.Error(), "vm.nr_hugepages=26") {
		t.Errorf("%v, want the sysctl and 26 = 6 in use + 20 for the pool", err)
	}
	if err := (HugePages{}).check(2 * mib); err == nil {
		t.Error("no huge pages at all was accepted")
	}
}

func TestHugePagePoolOnThisMachine(t *testing.T) {
	h, err := ReadHugePages()
	if err != nil {
		t.Fatal(err)
	}
	if h.Free < 4 {
		_, err := Create(Config{PoolBytes: 4 * max(h.Bytes, 2*mib), HugePages: true})
		if err == nil {
			t.Fatal("a huge page pool was made without free huge pages")
		}
		t.Skipf("needs 4 free huge pages, this machine has %d: only the refusal was shown", h.Free)
	}
	p, err := Create(Config{PoolBytes: 4 * h.Bytes, HugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Populate(context.Background(), slog.New(slog.DiscardHandler), nil, func(*Arena) {}); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestNodeListsOfTheKernel(t *testing.T) {
	if got := parseList("0-2,5,x,7-"); !reflect.DeepEqual(got, []int{0, 1, 2, 5}) {
		t.Errorf("%v", got)
	}
	if got := intersect([]int{0, 1, 3}, []int{3, 0}); !reflect.DeepEqual(got, []int{0, 3}) {
		t.Errorf("%v", got)
	}
	view, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := bindToNode(view, 0); err != nil && !errors.Is(err, unix.ENOSYS) {
		t.Errorf("node 0: %v", err)
	}
	if err := bindToNode(view, maskBits-1); err == nil {
		t.Error("an absent node was accepted")
	}
	if err := unix.Munmap(view); err != nil {
		t.Error(err)
	}
}
