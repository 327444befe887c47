package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func goldenFrames(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/golden/*.bin")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden frames: %v", err)
	}
	frames := map[string][]byte{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		frames[strings.TrimSuffix(filepath.Base(path), ".bin")] = b
	}
	return frames
}

// snake is the wire name of a member: an underscore before a capital that follows a small letter.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// plain turns a decoded message into the form of the golden JSON: numbers, booleans, strings, hex and lists.
func plain(v reflect.Value) any {
	switch value := v.Interface().(type) {
	case ID16:
		return hex.EncodeToString(value[:])
	case []Key:
		return hex.EncodeToString(KeyBytesOf(value))
	case map[string]string, string, bool:
		return value
	}
	switch {
	case v.CanUint():
		return v.Uint()
	case v.CanInt():
		return v.Int()
	case v.Kind() == reflect.Slice:
		list := []any{}
		for i := range v.Len() {
			list = append(list, plain(v.Index(i)))
		}
		return list
	case v.Kind() == reflect.Struct:
		list := []any{}
		for i := range v.NumField() {
			list = append(list, plain(v.Field(i)))
		}
		return list
	}
	panic("no plain form of " + v.Type().String())
}

func TestGoldenFramesDecodeToTheirFieldsAndEncodeBack(t *testing.T) {
	for name, frame := range goldenFrames(t) {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata/golden", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var want struct {
				Type   Type
				Name   string
				ID     uint64
				Fields json.RawMessage
			}
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			h, err := ParseHeader(frame)
			if err != nil {
				t.Fatal(err)
			}
			if h.Type != want.Type || h.ID != want.ID || int(h.Bytes) != len(frame) || h.Type.String() != want.Name {
				t.Fatalf("header %+v, want %s id %d of %d bytes", h, want.Name, want.ID, len(frame))
			}
			m := New(h.Type)
			if err := m.Decode(frame[HeaderBytes:]); err != nil {
				t.Fatal(err)
			}
			fields := map[string]any{}
			v := reflect.ValueOf(m).Elem()
			for i := range v.NumField() {
				fields[snake(v.Type().Field(i).Name)] = plain(v.Field(i))
			}
			got, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, want.Fields); err != nil {
				t.Fatal(err)
			}
			if string(got) != compact.String() {
				t.Fatalf("fields %s\nwant   %s", got, compact.String())
			}
			back, err := m.Append([]byte("before"), h.ID)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(back, append([]byte("before"), frame...)) {
				t.Fatalf("encoded %x\nwant %x", back[6:], frame)
			}
		})
	}
}

func TestEveryCutAndEveryTrailingByteIsRefused(t *testing.T) {
	for name, frame := range goldenFrames(t) {
		h, err := ParseHeader(frame)
		if err != nil {
			t.Fatal(err)
		}
		body := frame[HeaderBytes:]
		for cut := range len(body) {
			wantMalformed(t, name, New(h.Type).Decode(body[:cut]))
		}
		wantMalformed(t, name, New(h.Type).Decode(append(bytes.Clone(body), 0)))
	}
}

func wantMalformed(t *testing.T, what string, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != StatusMalformed {
		t.Fatalf("%s: error %v, want one with status malformed", what, err)
	}
}

func TestHeaderBounds(t *testing.T) {
	good := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(nil, 24), uint16(TypePing)), 0), 0)
	if _, err := ParseHeader(good); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func([]byte){
		"too short":    func(b []byte) { binary.LittleEndian.PutUint32(b, HeaderBytes-1) },
		"too long":     func(b []byte) { binary.LittleEndian.PutUint32(b, FrameBytesMax+1) },
		"unknown type": func(b []byte) { b[4] = 99 },
		"flags":        func(b []byte) { b[6] = 1 },
	} {
		b := bytes.Clone(good)
		change(b)
		_, err := ParseHeader(b)
		wantMalformed(t, what, err)
	}
	_, err := ParseHeader(good[:HeaderBytes-1])
	wantMalformed(t, "cut header", err)
}

func TestFieldsOverTheirBoundAreNotEncoded(t *testing.T) {
	long := strings.Repeat("x", TextBytesMax+1)
	for _, m := range []Message{
		&Hello{Name: long[:StringBytesMax+1]},
		&Error{Text: long},
		&Attach{Facts: map[string]string{"a": strings.Repeat("x", FactsBytesMax)}},
		&Query{Keys: make([]Key, FrameKeysMax+1)},
		&Resume{Leases: make([]uint64, FrameIDsMax+1)},
		&Registered{PartBytes: make([]uint64, RanksMax+1)},
		&Registered{Slices: make([]Slice, RanksMax+1)},
		&Result{Runs: make([]Run, FrameRunsMax+1)},
		&Restored{Ranges: make([]Range, FrameRangesMax+1)},
		&Reserved{Grants: make([]GrantRun, FrameGrantsMax+1)},
		&Reserved{Grants: make([]GrantRun, FrameGrantsMax), Runs: make([]Run, FrameRunsMax)}, // each in bounds, the frame is not
	} {
		got, err := m.Append([]byte("kept"), 1)
		wantMalformed(t, m.Type().String(), err)
		if string(got) != "kept" {
			t.Fatalf("%s: dst changed to %d bytes", m.Type(), len(got))
		}
	}
}

func TestTheLargestPartsFitAFrame(t *testing.T) {
	name := strings.Repeat("n", StringBytesMax)
	for _, m := range []Message{
		&Query{Instance: name, Request: name, Keys: make([]Key, FrameKeysMax)},
		&Reserve{Instance: name, Keys: make([]Key, FrameKeysMax)},
		&Result{Runs: make([]Run, FrameRunsMax)},
		&Restored{Ranges: make([]Range, FrameRangesMax)},
		&Resume{Leases: make([]uint64, FrameIDsMax), Reservations: make([]uint64, FrameIDsMax)},
	} {
		if _, err := m.Append(nil, 1); err != nil {
			t.Errorf("%s: %v", m.Type(), err)
		}
	}
}

func TestCountsAreCheckedBeforeAnythingIsAllocated(t *testing.T) {
	for _, count := range []uint32{2, FrameIDsMax + 1, 1 << 31, 0xFFFFFFFF} {
		body := binary.LittleEndian.AppendUint32(make([]byte, 16), count)
		body = append(body, make([]byte, 12)...)
		var m Resume
		allocated := testing.AllocsPerRun(5, func() {
			wantMalformed(t, "resume", m.Decode(body))
		})
		if m.Leases != nil || allocated > 10 { // the error text alone
			t.Fatalf("count %d: %v leases, %v allocations", count, m.Leases, allocated)
		}
	}
}

func TestRecordsOverTheirBoundAreRefusedThoughTheyAreThere(t *testing.T) {
	ids := binary.LittleEndian.AppendUint32(make([]byte, 16), FrameIDsMax+1)
	ids = append(ids, make([]byte, 8*(FrameIDsMax+1)+4)...)
	wantMalformed(t, "leases", (&Resume{}).Decode(ids))
	sizes := binary.LittleEndian.AppendUint32(make([]byte, 20), RanksMax+1)
	sizes = append(sizes, make([]byte, 8*(RanksMax+1)+4)...)
	wantMalformed(t, "part_bytes", (&Registered{}).Decode(sizes))
}

func TestNumbersOutsideTheirSetAreRefused(t *testing.T) {
	for what, c := range map[string]struct {
		m    Message
		body []byte
	}{
		"bool":    {&Revoked{}, append(make([]byte, 8), 2)},
		"role":    {&Hello{}, []byte{5, 0, 0, 0, 0}},
		"topic":   {&Notice{}, append([]byte{4}, make([]byte, 12)...)},
		"status":  {&Error{}, []byte{0xFF, 0xFF, 0, 0}},
		"padding": {&Result{}, append(append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0}, make([]byte, 24)...), 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)},
	} {
		wantMalformed(t, what, c.m.Decode(c.body))
	}
	if err := (&Result{}).Decode(append(append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0}, make([]byte, 24)...), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)); err != nil {
		t.Errorf("the same with a padding of zero: %v", err)
	}
}

func TestReaderTakesFramesApartHoweverTheyArrive(t *testing.T) {
	var stream []byte
	var want []Header
	for round := range 300 {
		for _, m := range []Message{&Ping{Nonce: uint64(round)}, &Query{Operation: 1, Keys: make([]Key, round%FrameKeysMax)}, &Done{}} {
			frame, err := m.Append(nil, uint64(len(want)))
			if err != nil {
				t.Fatal(err)
			}
			stream = append(stream, frame...)
			want = append(want, Header{Bytes: uint32(len(frame)), Type: m.Type(), ID: uint64(len(want))})
		}
	}
	for name, source := range map[string]io.Reader{
		"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream)), "halves": iotest.HalfReader(bytes.NewReader(stream)),
		"data with the error": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(source)
		for i, w := range want {
			h, body, err := r.Next()
			if err != nil || h != w || len(body) != int(w.Bytes)-HeaderBytes {
				t.Fatalf("%s: frame %d is %+v with %d bytes, %v; want %+v", name, i, h, len(body), err, w)
			}
		}
		if _, _, err := r.Next(); err != io.EOF {
			t.Fatalf("%s: after the last frame: %v, want io.EOF", name, err)
		}
	}
	for _, cut := range []int{1, HeaderBytes - 1, HeaderBytes + 3} {
		if _, _, err := NewReader(bytes.NewReader(stream[:cut])).Next(); err != io.ErrUnexpectedEOF {
			t.Fatalf("stream cut at %d: %v, want io.ErrUnexpectedEOF", cut, err)
		}
	}
}

func TestDecodeOfAQueryAllocatesNothingPerKey(t *testing.T) {
	frame, err := (&Query{Operation: 1, Keys: make([]Key, 512)}).Append(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	var m Query
	allocated := testing.AllocsPerRun(100, func() {
		if err := m.Decode(frame[HeaderBytes:]); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > 0 {
		t.Fatalf("%v allocations a query with empty strings, want 0", allocated)
	}
}

func TestRunsRangesAndGrantsMerge(t *testing.T) {
	var runs []Run
	for _, at := range []Location{At(1, 0), At(1, 4096), At(1, 8192), At(1, 20480), At(2, 24576)} {
		runs = AppendRun(runs, 0, at, 4096)
	}
	runs = AppendRun(runs, 1, At(2, 28672), 4096)
	if want := []Run{{0, 3, At(1, 0)}, {0, 1, At(1, 20480)}, {0, 1, At(2, 24576)}, {1, 1, At(2, 28672)}}; !reflect.DeepEqual(runs, want) {
		t.Errorf("runs %v, want %v", runs, want)
	}
	if n := CountRuns(runs, 0); n != 5 {
		t.Errorf("part 0 holds %d pages, want 5", n)
	}
	ranges := AppendRange(AppendRange(AppendRange(AppendRange(nil, 3, 2), 5, 1), 7, 1), 9, 0)
	if want := []Range{{3, 3}, {7, 1}}; !reflect.DeepEqual(ranges, want) {
		t.Errorf("ranges %v, want %v", ranges, want)
	}
	grants := AppendGrant(AppendGrant(AppendGrant(nil, GrantPresent, 1), GrantPresent, 2), GrantNoRoom, 1)
	if want := []GrantRun{{GrantPresent, 3}, {GrantNoRoom, 1}}; !reflect.DeepEqual(grants, want) {
		t.Errorf("grants %v, want %v", grants, want)
	}
	for _, bad := range [][]Range{{{0, 0}}, {{4, 2}, {5, 1}}, {{6, 3}}, {{0xFFFFFFFF, 0xFFFFFFFF}}, {{2, 1}, {1, 1}}} {
		_, err := CountRanges(bad, 8)
		wantMalformed(t, "ranges", err)
	}
	if n, err := CountRanges([]Range{{0, 2}, {2, 1}, {6, 2}}, 8); n != 5 || err != nil {
		t.Errorf("count %d, %v; want 5", n, err)
	}
}

// fuzzDecode feeds one frame type with the golden bodies and whatever the fuzzer makes of them. What decodes must encode, and the
// second decoding must give the same message.
func fuzzDecode(f *testing.F, typ Type) {
	for _, frame := range goldenFrames(f) {
		if h, err := ParseHeader(frame); err == nil && h.Type == typ {
			f.Add(frame[HeaderBytes:])
			f.Add(frame[HeaderBytes : len(frame)-1])
			f.Add(append(bytes.Clone(frame[HeaderBytes:]), 0xFF))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m := New(typ)
		if err := m.Decode(body); err != nil {
			wantMalformed(t, typ.String(), err)
			return
		}
		frame, err := m.Append(nil, 1)
		if err != nil {
			if len(body) > FrameBytesMax-HeaderBytes { // longer than any frame that a Reader hands out
				return
			}
			if a, ok := m.(*Attach); ok && len(a.Facts) > 0 { // sorted and unescaped facts may be longer than those that came
				return
			}
			t.Fatalf("decoded but does not encode: %v", err)
		}
		again := New(typ)
		if err := again.Decode(frame[HeaderBytes:]); err != nil {
			t.Fatalf("encoded but does not decode: %v", err)
		}
		if !reflect.DeepEqual(m, again) {
			t.Fatalf("changed on the way: %+v, then %+v", m, again)
		}
	})
}

func FuzzReader(f *testing.F) {
	var all []byte
	for _, frame := range goldenFrames(f) {
		f.Add(frame)
		all = append(all, frame...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		used := 0
		for {
			h, body, err := r.Next()
			if err != nil {
				return
			}
			used += int(h.Bytes)
			if used > len(stream) || len(body) != int(h.Bytes)-HeaderBytes || !bytes.Equal(body, stream[used-len(body):used]) {
				t.Fatalf("frame of %d bytes ends at %d of %d", h.Bytes, used, len(stream))
			}
			if m := New(h.Type); m.Decode(body) == nil {
				if _, err := m.Append(nil, h.ID); err != nil && h.Type != TypeAttach {
					t.Fatal(err)
				}
			}
		}
	})
}
