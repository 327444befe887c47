package journal

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"orbitkv/internal/ssd/format"
	"orbitkv/internal/vfs"
	"orbitkv/internal/vfs/twin"
)

const generation = 77

// written is the bytes of a log whose records were made by hand. Only generations and numbers that are zero are set.
func written(header format.LogHeader, records ...format.Record) []byte {
	header.Volume, header.Generation = volume, generation
	b := make([]byte, logBytes(uint64(len(records))))
	header.Encode(b)
	for i, r := range records {
		if r.Generation == 0 {
			r.Generation = generation
		}
		if r.Number == 0 {
			r.Number = uint64(i)
		}
		r.Encode(b[logBytes(uint64(i)):])
	}
	return b
}

func named(number uint64) format.Record {
	n := namespaceOf(number)
	return namespaceRecord(&n)
}

// renumbered is a namespace under another number than its own.
func renumbered(number uint64, to uint32) format.Record {
	r := named(number)
	r.Namespace = to
	return r
}

func stored(p Put) format.Record {
	n := namespaceOf(uint64(p.Namespace))
	return format.Record{
		Kind: format.KindPut, Retained: p.Retained, Group: p.Group, Namespace: p.Namespace, Key: p.Key, Offset: p.Offset,
		Bytes: p.Bytes, Digest: p.Digest, Sequence: p.Sequence, Tag: n.tag(),
	}
}

func write(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Open(name, vfs.Buffered)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.WriteAt([][]byte{b}, 0), f.Sync(), f.Close(), fs.SyncFolder()); err != nil {
		t.Fatal(err)
	}
}

func contents(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name, vfs.Buffered)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if err := errors.Join(f.ReadAt([][]byte{b}, 0), f.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

// page is a page of namespace 1 at a place, written as the n-th.
func page(n, place int) Put {
	var j Journal
	j.sequence.Store(uint64(n) - 1)
	return pageOf(&j, 1, n, place)
}

func with(p Put, change func(*Put)) Put {
	change(&p)
	return p
}

func damaged(b []byte, at int64) []byte {
	b[at] ^= 0xFF
	return b
}

// wiped makes the place of a record zeros.
func wiped(b []byte, record uint64) []byte {
	clear(b[logBytes(record):logBytes(record+1)])
	return b
}

func TestWhatDoesNotCountIsCountedOnce(t *testing.T) {
	a, b, c, d := page(1, 0), page(2, 1), page(3, 2), page(4, 3)
	plain := format.LogHeader{Sequence: 9}
	put := func(p Put, change func(*format.Record)) format.Record {
		r := stored(p)
		change(&r)
		return r
	}
	for name, test := range map[string]struct {
		log      []byte
		want     []Put
		problems map[string]uint64
	}{
		"sound":             {written(plain, named(1), stored(b), stored(a)), []Put{b, a}, nil},
		"a rotten header":   {damaged(written(plain, named(1), stored(a)), 50), nil, map[string]uint64{Header: 1}},
		"no whole header":   {written(plain)[:4095], nil, map[string]uint64{Header: 1}},
		"no bytes at all":   {nil, nil, map[string]uint64{Header: 1}},
		"zeros":             {make([]byte, 8192), nil, map[string]uint64{Header: 1}},
		"a last record cut": {written(plain, named(1), stored(a), stored(b))[:logBytes(3)-1], []Put{a}, map[string]uint64{Torn: 1}},
		"room at the end":   {append(written(plain, named(1), stored(a)), make([]byte, 8*format.RecordBytes)...), []Put{a}, nil},
		"a part of a place": {append(written(plain, named(1), stored(a)), make([]byte, 1000)...), []Put{a}, map[string]uint64{Torn: 1}},
		"room in its snapshot": {
			append(written(format.LogHeader{Sequence: 9, Snapshot: 3}, named(1), stored(a)), make([]byte, 8*format.RecordBytes)...), []Put{a}, map[string]uint64{Torn: 1},
		},
		"rot in its room": {
			damaged(append(written(plain, named(1), stored(a)), make([]byte, 8*format.RecordBytes)...), logBytes(5)+7), []Put{a}, map[string]uint64{Torn: 1},
		},
		"a record behind zeros": {
			wiped(written(plain, named(1), stored(a), stored(b), stored(c)), 2), []Put{a, c}, map[string]uint64{Damaged: 1},
		},
		"another log's records in its room": {
			wiped(written(plain, named(1), stored(a), stored(d), put(b, func(r *format.Record) { r.Generation++ }), put(c, func(r *format.Record) { r.Generation++ })), 2),
			[]Put{a},
			map[string]uint64{Stale: 2},
		},
		"a rotten last record":   {damaged(written(plain, named(1), stored(a), stored(b)), logBytes(2)+40), []Put{a}, map[string]uint64{Torn: 1}},
		"less than its snapshot": {written(format.LogHeader{Sequence: 9, Snapshot: 3}, named(1), stored(a)), []Put{a}, map[string]uint64{Torn: 1}},
		"a rotten record, and a drop behind it": {
			damaged(written(plain, named(1), stored(a), stored(b), stored(c), format.Record{Kind: format.KindDrop, Offset: a.Offset}), logBytes(2)+40),
			[]Put{c},
			map[string]uint64{Damaged: 1},
		},
		"two rotten records, and one at the end": {
			damaged(damaged(damaged(written(plain, named(1), stored(a), stored(b), stored(c), stored(d)), logBytes(1)), logBytes(2)), logBytes(4)),
			[]Put{c},
			map[string]uint64{Damaged: 2, Torn: 1},
		},
		"a record of another log": {
			written(plain, named(1), stored(a), put(b, func(r *format.Record) { r.Generation++ }), stored(c)), []Put{a, c}, map[string]uint64{Stale: 1},
		},
		"a record of another place": {
			written(plain, named(1), stored(a), put(b, func(r *format.Record) { r.Number = 3 }), stored(c)), []Put{a, c}, map[string]uint64{Stale: 1},
		},
		"a key twice": {
			written(plain, named(1), stored(a), stored(b), stored(with(c, func(p *Put) { p.Key, p.Group = a.Key, a.Group }))),
			[]Put{b, with(c, func(p *Put) { p.Key, p.Group = a.Key, a.Group })},
			map[string]uint64{Duplicate: 1},
		},
		"a page without a namespace": {written(plain, stored(a), named(1), stored(b)), []Put{b}, map[string]uint64{UnknownNamespace: 1}},
		"a page of a dropped namespace": {
			written(plain, named(1), stored(a), format.Record{Kind: format.KindDropNamespace, Namespace: 1}, stored(b)), nil, map[string]uint64{UnknownNamespace: 1},
		},
		"a page of the namespace that had the number before": {
			written(plain, named(1), stored(a), put(b, func(r *format.Record) { r.Tag++ })), []Put{a}, map[string]uint64{UnknownNamespace: 1},
		},
		"a page behind the payload": {
			written(plain, named(1), stored(a), stored(page(2, payloadPages))), []Put{a}, map[string]uint64{OutOfBounds: 1},
		},
		"a page on the scratch": {
			written(plain, named(1), stored(a), stored(with(b, func(p *Put) { p.Offset = 0 }))), []Put{a}, map[string]uint64{OutOfBounds: 1},
		},
		"a page where another one lies": {
			written(plain, named(1), stored(a), stored(b), stored(page(3, 0))), []Put{b, page(3, 0)}, map[string]uint64{Overlapping: 1},
		},
		"a page over the end of an older one": {
			written(plain, named(1), stored(with(c, func(p *Put) { p.Offset -= format.Granule })), stored(b), stored(d)),
			[]Put{with(c, func(p *Put) { p.Offset -= format.Granule }), d},
			map[string]uint64{Overlapping: 1},
		},
		"a namespace under a second number": {
			written(plain, named(1), stored(a), renumbered(1, 2), put(b, func(r *format.Record) { r.Namespace = 2 }), stored(c)),
			[]Put{with(b, func(p *Put) { p.Namespace = 2 })},
			map[string]uint64{UnknownNamespace: 1},
		},
		"a dropped namespace's page where another one lies": {
			written(plain, named(1), stored(a), format.Record{Kind: format.KindDropNamespace, Namespace: 1}, named(1), stored(page(2, 0))), []Put{page(2, 0)}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := twin.New(1)
			write(t, fs, format.IndexName, test.log)
			write(t, fs, format.IndexNewName, bytes.Repeat([]byte{0xAB}, 20000))
			j, state := open(t, fs)
			wantPuts(t, state, test.want...)
			wantProblems(t, state, test.problems)
			if state.Bytes != int64(len(test.log)) || len(fs.Names()) != 1 {
				t.Fatalf("the log had %d bytes, not %d; there are %v", len(test.log), state.Bytes, fs.Names())
			}
			e := page(100_000, 40)
			if len(state.Namespaces) > 0 {
				e.Namespace = state.Namespaces[0].Number
			}
			j.Put(e)
			commit(t, j)
			_, state = reopened(t, fs, j)
			wantProblems(t, state, nil)
			if len(state.Namespaces) > 0 {
				test.want = append(slices.Clone(test.want), e)
			}
			wantPuts(t, state, test.want...)
		})
	}
}

// A page from before a clear does not count, whatever index says that it is stored, and sequences go on above the clear though the clock was set back.
func TestPagesFromBeforeAClearDoNotCount(t *testing.T) {
	const ahead = 1 << 62 // of what the clock gives sequences
	a, b := page(1, 0), page(2, 1)
	a.Sequence, b.Sequence = ahead, ahead+1
	for name, log := range map[string][]byte{
		"an old index": written(format.LogHeader{Sequence: 9}, named(1), stored(a), stored(b)),
		"no index":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			fs := twin.New(1)
			var want []Put
			if log != nil {
				write(t, fs, format.IndexName, log)
				want = []Put{b}
			}
			j, state := openCleared(t, fs, ahead)
			wantPuts(t, state, want...)
			if log != nil {
				wantProblems(t, state, map[string]uint64{Stale: 1})
			}
			j.Namespace(namespaceOf(1))
			c := page(3, 2)
			c.Sequence = j.NextSequence()
			j.Put(c)
			commit(t, j)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			_, state = openCleared(t, fs, ahead)
			wantPuts(t, state, c)
			wantProblems(t, state, nil)
		})
	}
}

func TestWhatOthersWroteIsRefusedAndStays(t *testing.T) {
	newer := written(format.LogHeader{}, named(1))
	other := bytes.Clone(newer)
	(&format.LogHeader{Volume: [16]byte{1}, Generation: generation}).Encode(other)
	newerRecord := bytes.Clone(newer)
	newer[8] = format.Version + 1
	seal(newer[:format.LogHeaderBytes])
	newerRecord[format.LogHeaderBytes+2] = format.Version + 1
	seal(newerRecord[format.LogHeaderBytes:])
	for name, test := range map[string]struct {
		log  []byte
		want error
	}{
		"a newer log": {newer, format.ErrVersion}, "a newer record": {newerRecord, format.ErrVersion}, "another volume's log": {other, ErrOtherVolume},
	} {
		t.Run(name, func(t *testing.T) {
			fs := twin.New(1)
			write(t, fs, format.IndexName, test.log)
			_, _, err := Open(fs, volume, limits)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), "remove the file index") {
				t.Fatalf("error %v, want %v and what to do", err, test.want)
			}
			if !bytes.Equal(contents(t, fs, format.IndexName), test.log) {
				t.Fatal("the log was changed")
			}
		})
	}
}

// TestNoDamageBringsAPageThatWasNeverPut damages every record of a log in turn.
func TestNoDamageBringsAPageThatWasNeverPut(t *testing.T) {
	fs := twin.New(3)
	s := newScript(3, fs)
	ever := newOracle()
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if s.draw.IntN(40) > 0 {
			s.put()
			s.drop()
		} else {
			s.name()
		}
		for sequence, p := range s.o.begun {
			ever.pages[sequence], ever.ended[sequence] = p, true
		}
		for epoch, n := range s.o.named {
			ever.spaces[epoch], ever.closed[epoch] = n, true
		}
		if err := s.commit(); err != nil {
			t.Fatal(err)
		}
	}
	log := contents(t, fs, format.IndexName)
	for record := range s.j.Records() {
		left := twin.New(record)
		write(t, left, format.IndexName, damaged(bytes.Clone(log), logBytes(record)+int64(s.draw.IntN(format.RecordBytes))))
		_, state := open(t, left)
		if err := ever.check(state); err != nil {
			t.Fatalf("record %d of %d is damaged: %v", record, s.j.Records(), err)
		}
		if state.Problems[Damaged]+state.Problems[Torn] != 1 {
			t.Fatalf("record %d of %d is damaged: problems %v", record, s.j.Records(), state.Problems)
		}
	}
}

// replayed is what the records of a log say.
func replayed(t *testing.T, header format.LogHeader, cleared uint64, records []byte) (State, error) {
	t.Helper()
	state := State{Problems: map[string]uint64{}}
	r := newReplay(header, Limits{limits.PayloadBytes, cleared}, state.Problems)
	r.reserve(0)
	for number := uint64(0); len(records) >= format.RecordBytes; number++ {
		if err := r.slot(records[:format.RecordBytes], number); err != nil {
			return State{}, err
		}
		records = records[format.RecordBytes:]
	}
	r.finish(&state)
	return state, nil
}

// FuzzReplay takes any bytes for the records of an index, with the checksums that they should have. What it says must hold by itself, and a log that
// says as much must be read as the same.
func FuzzReplay(f *testing.F) {
	a, b := page(1, 0), page(2, 1)
	for _, log := range [][]byte{
		written(format.LogHeader{}, named(1), stored(a), stored(b), format.Record{Kind: format.KindDrop, Offset: a.Offset}),
		written(format.LogHeader{}, named(1), stored(a), format.Record{Kind: format.KindDropNamespace, Namespace: 1}),
	} {
		f.Add(uint64(0), log[format.LogHeaderBytes:])
	}
	f.Fuzz(func(t *testing.T, cleared uint64, input []byte) {
		records := bytes.Clone(input)
		for at := 0; len(records)-at >= format.RecordBytes; at += format.RecordBytes {
			seal(records[at:][:format.RecordBytes])
		}
		header := format.LogHeader{Generation: generation}
		state, err := replayed(t, header, cleared, records)
		if err != nil {
			return
		}
		if err := disjoint(state.Puts); err != nil {
			t.Fatal(err)
		}
		for _, p := range state.Puts {
			known := slices.ContainsFunc(state.Namespaces, func(n Namespace) bool { return n.Number == p.Namespace })
			if !known || !format.Fits(p.Offset, p.Bytes, limits.PayloadBytes) || p.Sequence <= cleared {
				t.Fatalf("page %+v counts", p)
			}
		}
		j := &Journal{namespaces: newTable(state.Namespaces), cleared: cleared}
		compacted := written(format.LogHeader{}, slices.Collect(j.snapshot(slices.Values(state.Puts)))...)
		again, err := replayed(t, header, cleared, compacted[format.LogHeaderBytes:])
		if err != nil {
			t.Fatal(err)
		}
		wantProblems(t, again, nil)
		wantPuts(t, again, state.Puts...)
		if !slices.Equal(state.Namespaces, again.Namespaces) {
			t.Fatalf("namespaces %v, then %v", state.Namespaces, again.Namespaces)
		}
	})
}

func TestPageNamesTheReasons(t *testing.T) {
	page, err := os.ReadFile("../../../docs/format/ssd.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(page), "<!-- ssd:reasons:begin -->")
	table, _, ends := strings.Cut(rest, "<!-- ssd:reasons:end -->")
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
		named = append(named, row[1])
	}
	if !begins || !ends || !slices.Equal(named, Reasons) {
		t.Fatalf("the page has %v, the code %v", named, Reasons)
	}
}
