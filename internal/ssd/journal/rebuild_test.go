package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

// payload is a payload file into which pages are written without an index.
type payload struct {
	t    testing.TB
	fs   *twin.Disk
	file vfs.File
}

func newPayload(t testing.TB, seed uint64) *payload {
	t.Helper()
	fs := twin.New(seed)
	file, err := fs.Open(format.PayloadName, vfs.Direct)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Allocate(int64(limits.PayloadBytes)); err != nil {
		t.Fatal(err)
	}
	return &payload{t, fs, file}
}

func headerOf(p Put) format.PageHeader {
	n := namespaceOf(uint64(p.Namespace))
	return format.PageHeader{
		Volume: volume, Identity: n.Identity, Epoch: n.Epoch, PageBytes: n.PageBytes, Key: p.Key, Group: p.Group, Offset: p.Offset,
		Bytes: p.Bytes, Digest: p.Digest, Sequence: p.Sequence,
	}
}

// write writes a page, whose bytes are those of its number, and a header block behind it.
func (p *payload) write(put Put, header format.PageHeader) {
	p.t.Helper()
	b := vfs.AlignedBuffer(int(format.ExtentBytes(put.Bytes)))
	for i := range b {
		b[i] = byte(put.Sequence)
	}
	header.Encode(b[put.Bytes:])
	p.patch(b, int64(put.Offset))
}

func (p *payload) patch(b []byte, offset int64) {
	p.t.Helper()
	if err := p.file.WriteAt([][]byte{b}, offset); err != nil {
		p.t.Fatal(err)
	}
}

// rebuilt makes the index anew, and opens it to see that it says the same.
func (p *payload) rebuilt() State {
	p.t.Helper()
	return p.rebuiltCleared(0)
}

func (p *payload) rebuiltCleared(cleared uint64) State {
	p.t.Helper()
	last := uint64(0)
	state, err := Rebuild(context.Background(), p.fs, p.file, volume, Limits{limits.PayloadBytes, cleared}, func(done, total uint64) {
		if done <= last || done > total || total != limits.PayloadBytes {
			p.t.Errorf("%d of %d bytes after %d", done, total, last)
		}
		last = done
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if last != limits.PayloadBytes {
		p.t.Errorf("the scan ended at byte %d of %d", last, limits.PayloadBytes)
	}
	j, opened := open(p.t, p.fs)
	wantProblems(p.t, opened, nil)
	wantPuts(p.t, opened, state.Puts...)
	if !slices.Equal(opened.Namespaces, state.Namespaces) || opened.Records != state.Records || opened.Bytes != state.Bytes {
		p.t.Fatalf("rebuilt %d records of %v, opened %d of %v", state.Records, state.Namespaces, opened.Records, opened.Namespaces)
	}
	if err := j.Close(); err != nil {
		p.t.Fatal(err)
	}
	return state
}

func TestARepairTakesWhatTheHeaderBlocksSay(t *testing.T) {
	a, b, c := page(1, 0), page(2, 1), page(3, 2)
	for _, p := range []*Put{&a, &b, &c} {
		p.Retained = false
	}
	changed := func(p Put, change func(*format.PageHeader)) format.PageHeader {
		h := headerOf(p)
		change(&h)
		return h
	}
	for name, test := range map[string]struct {
		header   format.PageHeader // of b
		then     func(*payload)
		want     []Put
		problems map[string]uint64
	}{
		"sound":                           {headerOf(b), nil, []Put{a, b, c}, nil},
		"a header of another volume":      {changed(b, func(h *format.PageHeader) { h.Volume[0]++ }), nil, []Put{a, c}, map[string]uint64{Stale: 1}},
		"a header of another place":       {changed(b, func(h *format.PageHeader) { h.Offset -= format.Granule }), nil, []Put{a, c}, map[string]uint64{OutOfBounds: 1}},
		"a header of no page":             {changed(b, func(h *format.PageHeader) { h.Bytes += h.Offset; h.Offset = 0 }), nil, []Put{a, c}, map[string]uint64{OutOfBounds: 1}},
		"a rotten header":                 {headerOf(b), func(p *payload) { p.fs.Damage(format.PayloadName, int64(b.Offset+pageBytes)+100, 1) }, []Put{a, c}, map[string]uint64{Damaged: 1}},
		"a header over which was written": {headerOf(b), func(p *payload) { p.patch(vfs.AlignedBuffer(format.Granule), int64(b.Offset+pageBytes)) }, []Put{a, c}, nil},
		"a later page under the same key": {changed(b, func(h *format.PageHeader) { h.Key, h.Group = c.Key, c.Group }), nil, []Put{a, c}, map[string]uint64{Duplicate: 1}},
		"a header block as bytes of a page": {headerOf(b), func(p *payload) {
			block := vfs.AlignedBuffer(format.PageHeaderBytes)
			h := headerOf(a)
			h.Encode(block)
			p.patch(block, int64(b.Offset))
		}, []Put{a, b, c}, map[string]uint64{OutOfBounds: 1}},
		"a block that cannot be read": {headerOf(b), func(p *payload) {
			p.fs.Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Err: unix.EIO})
			p.fs.Fail(twin.Rule{Operation: twin.Read, Name: format.PayloadName, Nth: int(b.Offset+pageBytes-format.ScratchBytes)/format.Granule + 2, Err: unix.EIO})
		}, []Put{a, c}, map[string]uint64{Unreadable: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPayload(t, 1)
			p.write(a, headerOf(a))
			p.write(b, test.header)
			p.write(c, headerOf(c))
			if test.then != nil {
				test.then(p)
			}
			state := p.rebuilt()
			wantPuts(t, state, test.want...)
			wantProblems(t, state, test.problems)
			if want := namespaceOf(1); len(state.Namespaces) != 1 || state.Namespaces[0] != want {
				t.Fatalf("namespaces %+v, want %+v", state.Namespaces, want)
			}
		})
	}
}

// TestARepairLeavesOutWhatWasWrittenOver writes pages of many sizes over each other, and compares with what is left of each.
func TestARepairLeavesOutWhatWasWrittenOver(t *testing.T) {
	for seed := range uint64(40) {
		draw := rand.New(rand.NewPCG(seed, 2))
		p := newPayload(t, seed)
		j, _ := open(t, p.fs)
		j.Namespace(namespaceOf(1))
		const granules = payloadPages * extentBytes / format.Granule
		var writer [granules + payloadPages]uint64 // sequence of the page that was written to each granule last
		all := map[uint64]Put{}
		cleared := uint64(0)
		for number := range 120 {
			put := pageOf(j, 1, number, 0)
			put.Retained = false
			size := 2 + draw.IntN(8)
			first := draw.IntN(granules - size)
			put.Offset, put.Bytes = format.ScratchBytes+uint64(first)*format.Granule, uint64(size-1)*format.Granule
			p.write(put, headerOf(put))
			for g := first; g < first+size; g++ {
				writer[g] = put.Sequence
			}
			all[put.Sequence] = put
			if number == 30 {
				cleared = put.Sequence
				j.Clear()
				commit(t, j)
			}
		}
		j, _ = reopened(t, p.fs, j)
		if err := errors.Join(j.Compact(slices.Values([]Put(nil))), j.Close()); err != nil {
			t.Fatal(err)
		}
		want := slices.SortedFunc(maps.Values(all), func(x, y Put) int { return cmp.Compare(x.Sequence, y.Sequence) })
		want = slices.DeleteFunc(want, func(put Put) bool {
			first := (put.Offset - format.ScratchBytes) / format.Granule
			whole := !slices.ContainsFunc(writer[first:first+put.Bytes/format.Granule+1], func(by uint64) bool { return by != put.Sequence })
			return !whole || put.Sequence <= cleared
		})
		wantPuts(t, p.rebuiltCleared(cleared), want...)
	}
}

func TestARepairThatIsStoppedOrRefusedLeavesTheIndex(t *testing.T) {
	p := newPayload(t, 1)
	j, _ := open(t, p.fs)
	j.Namespace(namespaceOf(1))
	a := pageOf(j, 1, 1, 0)
	j.Put(a)
	commit(t, j)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	before := contents(t, p.fs, format.IndexName)
	stopped, stop := context.WithCancel(context.Background())
	stop()
	none := func(done, total uint64) {}
	if _, err := Rebuild(stopped, p.fs, p.file, volume, limits, none); !errors.Is(err, context.Canceled) {
		t.Fatalf("a repair that was stopped ended with %v", err)
	}
	if _, err := Rebuild(context.Background(), p.fs, p.file, [16]byte{9}, limits, none); !errors.Is(err, ErrOtherVolume) {
		t.Fatalf("a repair of another volume ended with %v", err)
	}
	if !bytes.Equal(contents(t, p.fs, format.IndexName), before) {
		t.Fatal("the index was changed")
	}
	p.fs.Damage(format.IndexName, 60, 1)
	wantPuts(t, p.rebuilt())
}
