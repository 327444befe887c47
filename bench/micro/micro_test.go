package micro

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/bench/stat"
	"orbitkv/internal/cache"
)

// TestTheTableJoinsRounds checks that rounds are joined by name and clients, and that a ceiling is found among equal clients.
func TestTheTableJoinsRounds(t *testing.T) {
	r := &report{}
	for r.round = 1; r.round <= 3; r.round++ {
		r.add(figure{Name: "low", Parallel: 8, Unit: "us", N: 1, P50: 5})
		r.add(figure{Name: "low", Parallel: 1, Unit: "us", N: 1, P50: 10})
		r.add(figure{Name: "call", Parallel: 1, Unit: "us", N: 2, P50: float64(10 * r.round), Ceiling: "low"})
	}
	r.round = 3
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	last := lines[len(lines)-2]
	for _, part := range []string{"| call ", "| 20.0 ", "| 6 ", "| low, 10.0 ", "| 50 %"} {
		if !strings.Contains(last, part) {
			t.Errorf("%q is not in %q", part, last)
		}
	}
}

// TestTheHostFindsWhatItPublished runs the in-process scenarios' own checks: pages found, granted, reclaimed.
func TestTheHostFindsWhatItPublished(t *testing.T) {
	const pages = 4096
	h, err := newHost(cache.Config{}, pages*sliceBytes, sliceBytes, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.fill(context.Background(), 0, pages); err != nil {
		t.Fatal(err)
	}
	for client := range 2 {
		if _, err := h.query(client, keysOf(100, 512)); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.query(0, keysOf(pages, 1)); err == nil {
		t.Error("an absent page was found")
	}
	if _, err := h.reserveAndSeal(keysOf(pages, pages/2)); err != nil {
		t.Error(err)
	}
	if violations := h.cache.Check(); len(violations) > 0 {
		t.Error(violations)
	}
}

// TestTheEchoServerGivesBackWhatIsAskedFor exchanges bytes with the server in this process.
func TestTheEchoServerGivesBackWhatIsAskedFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ended := make(chan error, 1)
	ctx, end := context.WithCancel(context.Background())
	go func() { ended <- ServeEcho(ctx, socket) }()
	conn, err := dialEcho(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for _, bytes := range [][2]int{{24, 24}, {1 << 19, 64}, {8, 1 << 19}} {
		if err := exchange(conn, buf, bytes[0], bytes[1]); err != nil {
			t.Errorf("%d bytes for %d: %v", bytes[0], bytes[1], err)
		}
	}
	if _, err := conn.Write([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("an exchange of 4 GiB: %v; want the end of the connection", err)
	}
	end()
	if err := errors.Join(conn.Close(), <-ended); err != nil {
		t.Error(err)
	}
}

// TestRatesAreComparedAsRates checks that more of a rate is better and less of a time is.
func TestRatesAreComparedAsRates(t *testing.T) {
	all := []figure{
		{Name: "memcpy", Parallel: 2, P50: 100, Rate: 20, RateUnit: gibPerSecond},
		{Name: "copy", Parallel: 2, P50: 100, Rate: 15, RateUnit: gibPerSecond, Ceiling: "memcpy"},
		{Name: "call", Parallel: 2, P50: 400, Ceiling: "memcpy"},
		{Name: "alone", Parallel: 1, P50: 400, Ceiling: "memcpy"},
	}
	for i, want := range []string{"- -", "memcpy, 20 GiB/s 75 %", "memcpy, 100 25 %", "- -"} {
		if ceiling, share := of(all[i], all); ceiling+" "+share != want {
			t.Errorf("%s: %s %s, want %s", all[i].Name, ceiling, share, want)
		}
	}
}

// TestFewSamplesHaveNoTail checks that a 99th percentile is only told of enough samples, and that no samples are zeros rather than no numbers.
func TestFewSamplesHaveNoTail(t *testing.T) {
	r := &report{round: 1}
	r.times("few", 1, "", make([]time.Duration, stat.P99Min-1))
	many := make([]time.Duration, stat.P99Min)
	many[0], many[1] = time.Second, time.Second
	r.times("many", 1, "", many)
	r.times("none", 1, "", nil)
	for _, figures := range [][]figure{r.figures, r.medians()} {
		if few, many := figures[0], figures[1]; few.P99 != 0 || many.P99 != 1e6 || many.P50 != 0 || many.Max != 1e6 {
			t.Errorf("%+v", figures)
		}
		if none := figures[2]; none.N != 0 || none.P50 != 0 || none.P99 != 0 || none.Max != 0 {
			t.Errorf("no samples are %+v", none)
		}
	}
}

// TestEachClientIsCountedAndAFailureNamed checks the load loop: its warm-up, the least call of a client, and which failure it tells.
func TestEachClientIsCountedAndAFailureNamed(t *testing.T) {
	calls := make([]int, 3)
	all, err := together(context.Background(), load{clients: 3, warmUp: 5, once: func(_ context.Context, i int) (time.Duration, error) {
		calls[i]++
		return time.Duration(1e12*i + calls[i]), nil
	}})
	if err != nil || all.calls <= 0 {
		t.Errorf("%+v, %v", all, err)
	}
	seen := map[int]bool{}
	for _, sample := range all.samples {
		if seen[int(sample/1e12)] = true; sample%1e12 <= 5 {
			t.Errorf("call %d of a client's warm-up was counted", sample%1e12)
		}
	}
	if len(seen) != 3 {
		t.Errorf("clients %v have a sample", seen)
	}
	broken := errors.New("broken")
	_, err = together(context.Background(), load{clients: 3, time: time.Hour, once: func(ctx context.Context, i int) (time.Duration, error) {
		if i == 2 {
			return 0, broken
		}
		<-ctx.Done()
		return 0, ctx.Err()
	}})
	if !errors.Is(err, broken) || errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the client's own failure alone", err)
	}
}

// TestSectionsTurnRoundAndNothingIsKeptOfAnInterruptedRun checks the order of rounds, --only, and the file for programs.
func TestSectionsTurnRoundAndNothingIsKeptOfAnInterruptedRun(t *testing.T) {
	var ran []string
	ctx, interrupt := context.WithCancel(context.Background())
	var stopAt int
	step := func(name string) func(context.Context, *report) error {
		return func(_ context.Context, r *report) error {
			if ran = append(ran, name); len(ran) == stopAt {
				interrupt()
			}
			r.add(figure{Name: name, Unit: "us", N: 1, P50: 1})
			return nil
		}
	}
	sections := []section{{"a", step("a ceiling")}, {"a", step("a")}, {"b", step("b")}, {"c", step("c")}}
	path := filepath.Join(t.TempDir(), "figures.jsonl")
	o := Options{Rounds: 2, RowTime: 1, Only: regexp.MustCompile("a|c"), JSONPath: path, Progress: io.Discard}
	if err := run(ctx, o, newReport("x", "clients"), sections, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(ran, ","); got != "a ceiling,a,c,c,a,a ceiling" {
		t.Error(got)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 6 || !strings.Contains(string(text), `"bench":"x"`) {
		t.Errorf("%s, %v", text, err)
	}
	ran, stopAt, o.JSONPath = nil, 2, filepath.Join(t.TempDir(), "none.jsonl")
	if err := run(ctx, o, newReport("x", "clients"), sections, io.Discard); err == nil || !strings.Contains(err.Error(), "interrupted in a, round 1 of 2") {
		t.Error(err)
	}
	if _, err := os.Stat(o.JSONPath); !errors.Is(err, os.ErrNotExist) {
		t.Error("an interrupted run left its file")
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	common := func(change func(*Options)) Options {
		o := Options{Rounds: 1, RowTime: 1, Progress: io.Discard}
		change(&o)
		return o
	}
	as := func(*Options) {}
	channel := func(bytes uint64, keys ...int) error {
		return Channel(ctx, ChannelOptions{Options: common(as), PoolBytes: bytes, Keys: keys}, io.Discard)
	}
	pool := func(bytes uint64, pages int, change func(*Options)) error {
		return Pool(ctx, PoolOptions{Options: common(change), PoolBytes: bytes, IndexPages: pages}, io.Discard)
	}
	ssd := func(path string, bytes, block uint64, depths ...int) error {
		return SSD(ctx, SSDOptions{
			Options: common(as), Path: path, FileBytes: bytes, Blocks: []uint64{block}, Depths: depths,
			Pages: []uint64{diskAlign}, Engines: []string{"pool"}, Throttle: 1 << 20, RecoveryPages: 1000,
		}, io.Discard)
	}
	store := func(change func(*SSDOptions)) error {
		o := SSDOptions{
			Options: common(as), Path: folder, FileBytes: layBlock, Blocks: []uint64{diskAlign}, Depths: []int{1},
			Pages: []uint64{diskAlign}, Engines: []string{"pool"}, Throttle: 1 << 20, RecoveryPages: 1000,
		}
		change(&o)
		return SSD(ctx, o, io.Discard)
	}
	_, unwritable := openLines(filepath.Join(folder, "none", "file"))
	for _, c := range []struct {
		err  error
		word string
	}{
		{pool(poolBytesMin, indexPagesMin, func(o *Options) { o.Rounds = 0 }), "--rounds is 0"},
		{pool(poolBytesMin, indexPagesMin, func(o *Options) { o.RowTime = 0 }), "--time is 0s"},
		{pool(poolBytesMin, indexPagesMin, func(o *Options) { o.Only = regexp.MustCompile("none") }), "they are populate, copy, reclaim, tier, index"},
		{pool(1, indexPagesMin, as), "--pool is 1 bytes"},
		{pool(1<<51, indexPagesMin, as), "--pool is"},
		{pool(1<<50, indexPagesMin, as), "give a smaller --pool"},
		{pool(poolBytesMin, 1, as), "--index-pages is 1"},
		{channel(1, 64), "--pool is 1 bytes"},
		{channel(channelPoolMin), "--keys is empty"},
		{channel(channelPoolMin, 64, 4000), "--keys has 4000"},
		{ssd(folder, 5000, diskAlign, 1), "--size is 5000"},
		{ssd(folder, layBlock, 512, 1), "--blocks has 512"},
		{ssd(folder, layBlock, 2*layBlock, 1), "none larger than --size"},
		{ssd(folder, layBlock, diskAlign, 0), "--depths has 0"},
		{ssd(folder, layBlock, diskAlign), "--blocks and --depths"},
		{ssd(filepath.Join(folder, "none"), layBlock, diskAlign, 1), "no such file or directory: name one on the disk"},
		{ssd("/proc/version", layBlock, diskAlign, 1), "/proc/version is no folder"},
		{ssd(folder, 1<<60, diskAlign, 1), "give a smaller --size"},
		{ssd("/proc", layBlock, diskAlign, 1), "/proc"},
		{store(func(o *SSDOptions) { o.Pages = nil }), "--pages and --engines need one value"},
		{store(func(o *SSDOptions) { o.Pages = []uint64{512} }), "--pages has 512"},
		{store(func(o *SSDOptions) { o.Pages = []uint64{layBlock} }), "1 MiB is too small for pages of 1 MiB: give --size 16mib"},
		{store(func(o *SSDOptions) { o.Pages = []uint64{64 << 10, layBlock, 4 << 10} }), "give --size 16mib, or --pages 64kib,4kib"},
		{store(func(o *SSDOptions) { o.Engines = []string{"tape"} }), `--engines has "tape": name pool or uring`},
		{store(func(o *SSDOptions) { o.Throttle = 1 }), "--throttle is 1"},
		{store(func(o *SSDOptions) { o.RecoveryPages = 1 }), "--recovery-pages is 1"},
		{store(func(o *SSDOptions) { o.RecoveryPages = 1 << 25 }), "--recovery-pages is 33554432"},
		{store(func(o *SSDOptions) { o.RecoveryPages = recoveryPagesMax }), "give a smaller --size"},
		{channel(1<<60, 64), "give a smaller --pool, or end what uses it"},
		{unwritable, "--json"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.word) {
			t.Errorf("%v, want %q", c.err, c.word)
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTheDiskIsReadAndWrittenAroundThePageCache measures a small file and looks for what is left.
func TestTheDiskIsReadAndWrittenAroundThePageCache(t *testing.T) {
	folder := t.TempDir()
	d, err := openDisk(context.Background(), folder, 4<<20)
	var none *noDirectError
	if errors.As(err, &none) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("the file has a name while it is measured: %v, %v", left, err)
	}
	if flags, err := openFlags(d.direct); err != nil || flags&unix.O_DIRECT == 0 || !strings.HasPrefix(d.storage.Direct, "held") {
		t.Errorf("%#o, %+v, %v", flags, d.storage, err)
	}
	if flags, err := openFlags(d.buffered); err != nil || flags&unix.O_DIRECT != 0 {
		t.Errorf("%#o, %v", flags, err)
	}
	b, err := newBuffers(2, layBlock)
	if err != nil {
		t.Fatal(err)
	}
	copy(b.of(0), "orbit")
	if err := errors.Join(d.write(b.of(0), layBlock), d.read(b.of(1), layBlock)); err != nil || string(b.of(1)[:5]) != "orbit" {
		t.Errorf("%q, %v", b.of(1)[:5], err)
	}
	if err := d.read(b.of(0), int64(d.bytes)); err == nil {
		t.Error("a read past the end was taken")
	}
	if err := errors.Join(b.free(), d.close()); err != nil {
		t.Error(err)
	}
}

// TestReadsThatStopInThePageCacheAreNoDisk gives the proof a descriptor without O_DIRECT, as a file system that takes the flag by name does.
func TestReadsThatStopInThePageCacheAreNoDisk(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "buffered")
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Truncate(4 << 20); err != nil {
		t.Fatal(err)
	}
	d := &disk{direct: int(file.Fd()), buffered: int(file.Fd()), bytes: 4 << 20}
	var none *noDirectError
	if err := d.prove(d.bytes); !errors.As(err, &none) {
		t.Errorf("%v, %q", err, d.storage.Direct)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}

// TestAFolderInMemoryIsRefusedBeforeItIsFilled cancels whatever fills the file, so that only what comes before can refuse.
func TestAFolderInMemoryIsRefusedBeforeItIsFilled(t *testing.T) {
	const folder, tmpfs = "/dev/shm", 0x01021994
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil || fs.Type != tmpfs {
		t.Skipf("%s does not lie in memory", folder)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var none *noDirectError
	if _, err := openDisk(ctx, folder, 4<<20); !errors.As(err, &none) {
		t.Errorf("%v, want that O_DIRECT does not hold", err)
	}
}

// TestThePoolsCopiesMoveEveryByteOnce copies a page in and out and compares.
func TestThePoolsCopiesMoveEveryByteOnce(t *testing.T) {
	const pages = 2
	engine := make([]byte, pages*pageBytes)
	for i := range engine {
		engine[i] = byte(i / pieceBytes)
	}
	page, was := make([]byte, pageBytes), slices.Clone(engine)
	copyPage(engine, pages, 1, page, false)
	for i := range pagePieces {
		if page[i*pieceBytes] != byte(i*pages+1) {
			t.Fatalf("piece %d came from %d", i, page[i*pieceBytes])
		}
	}
	for i := range pagePieces {
		clear(engine[(i*pages+1)*pieceBytes:][:pieceBytes])
	}
	copyPage(engine, pages, 1, page, true)
	if !slices.Equal(engine, was) {
		t.Error("the page did not come back as it was")
	}
}
