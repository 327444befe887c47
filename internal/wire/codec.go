package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Bytes of one array record.
const (
	runBytes   = 16
	rangeBytes = 8
	grantBytes = 8
	sliceBytes = 24
	wordBytes  = 8
)

func cleanUTF8(s string) string { return strings.ToValidUTF8(s, "?") }

// encoder appends one frame. The first bound that breaks is kept and the rest is written all the same, so that the generated
// code needs no checks.
type encoder struct {
	buf   []byte
	start int
	typ   Type
	err   error
}

func beginFrame(dst []byte, typ Type, id uint64) encoder {
	e := encoder{buf: dst, start: len(dst), typ: typ}
	e.u32(0) // the length, set by end
	e.u16(uint16(typ))
	e.u16(0)
	e.u64(id)
	return e
}

func (e *encoder) end() ([]byte, error) {
	n := len(e.buf) - e.start
	if e.err == nil && n > FrameBytesMax {
		e.err = malformed("a %s frame of %d bytes is over the bound of %d", e.typ, n, FrameBytesMax)
	}
	if e.err != nil {
		return e.buf[:e.start], e.err
	}
	binary.LittleEndian.PutUint32(e.buf[e.start:], uint32(n))
	return e.buf, nil
}

func (e *encoder) bound(field string, n, limit int) {
	if n > limit && e.err == nil {
		e.err = malformed("%s.%s has %d, over the bound of %d", e.typ, field, n, limit)
	}
}

func (e *encoder) u8(v uint8)     { e.buf = append(e.buf, v) }
func (e *encoder) u16(v uint16)   { e.buf = binary.LittleEndian.AppendUint16(e.buf, v) }
func (e *encoder) i16(v int16)    { e.u16(uint16(v)) }
func (e *encoder) u32(v uint32)   { e.buf = binary.LittleEndian.AppendUint32(e.buf, v) }
func (e *encoder) u64(v uint64)   { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }
func (e *encoder) bytes16(v ID16) { e.buf = append(e.buf, v[:]...) }

func (e *encoder) bool(v bool) {
	if v {
		e.u8(1)
		return
	}
	e.u8(0)
}

func (e *encoder) text(field, v string, limit int) {
	e.bound(field, len(v), limit)
	e.u16(uint16(len(v)))
	e.buf = append(e.buf, v...)
}

// facts writes the object with sorted keys, so equal facts are equal bytes.
func (e *encoder) facts(field string, v map[string]string) {
	if v == nil {
		v = map[string]string{}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil && e.err == nil {
		e.err = malformed("%s.%s: %v", e.typ, field, err)
	}
	raw := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	e.bound(field, len(raw), FactsBytesMax)
	e.u32(uint32(len(raw)))
	e.buf = append(e.buf, raw...)
}

func (e *encoder) keys(field string, v []Key) {
	e.bound(field, len(v), FrameKeysMax)
	e.u32(uint32(len(v)))
	e.buf = append(e.buf, KeyBytesOf(v)...)
}

func (e *encoder) words(field string, v []uint64, limit int) {
	e.bound(field, len(v), limit)
	e.u32(uint32(len(v)))
	for _, w := range v {
		e.u64(w)
	}
}

func (e *encoder) runs(field string, v []Run) {
	e.bound(field, len(v), FrameRunsMax)
	e.u32(uint32(len(v)))
	for _, r := range v {
		e.u16(r.Part)
		e.u16(0)
		e.u32(r.Count)
		e.u64(uint64(r.First))
	}
}

func (e *encoder) ranges(field string, v []Range) {
	e.bound(field, len(v), FrameRangesMax)
	e.u32(uint32(len(v)))
	for _, r := range v {
		e.u32(r.First)
		e.u32(r.Count)
	}
}

func (e *encoder) grants(field string, v []GrantRun) {
	e.bound(field, len(v), FrameGrantsMax)
	e.u32(uint32(len(v)))
	for _, g := range v {
		e.u32(uint32(g.Grant))
		e.u32(g.Count)
	}
}

func (e *encoder) slices(field string, v []Slice) {
	e.bound(field, len(v), RanksMax)
	e.u32(uint32(len(v)))
	for _, s := range v {
		e.u16(s.Rank)
		e.u16(s.Part)
		e.u32(0)
		e.u64(s.Offset)
		e.u64(s.Bytes)
	}
}

// decoder reads one body. After the first fault every read gives zero, so that the generated code needs no checks.
type decoder struct {
	body []byte
	typ  Type
	err  error
}

func (d *decoder) end() error {
	if d.err == nil && len(d.body) > 0 {
		d.err = malformed("%s has %d trailing bytes", d.typ, len(d.body))
	}
	return d.err
}

func (d *decoder) fail(field, why string) {
	if d.err == nil {
		d.err = malformed("%s.%s %s", d.typ, field, why)
	}
	d.body = nil
}

// take returns the next n bytes of the body, or nil after a fault.
func (d *decoder) take(field string, n int) []byte {
	if len(d.body) < n {
		d.fail(field, "is cut off")
		return nil
	}
	b := d.body[:n:n]
	d.body = d.body[n:]
	return b
}

func (d *decoder) u8(field string) uint8 {
	if b := d.take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16(field string) uint16 {
	if b := d.take(field, 2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (d *decoder) i16(field string) int16 { return int16(d.u16(field)) }

func (d *decoder) u32(field string) uint32 {
	if b := d.take(field, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64(field string) uint64 {
	if b := d.take(field, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) bool(field string) bool {
	v := d.u8(field)
	if v > 1 {
		d.fail(field, "is neither 0 nor 1")
	}
	return v == 1
}

func (d *decoder) valid(field string, ok bool) {
	if !ok {
		d.fail(field, "is not a number of its enumeration")
	}
}

func (d *decoder) bytes16(field string) (v ID16) {
	copy(v[:], d.take(field, len(v)))
	return v
}

func (d *decoder) text(field string, limit int) string {
	n := int(d.u16(field))
	if n > limit {
		d.fail(field, "is over its bound")
		return ""
	}
	b := d.take(field, n)
	if !utf8.Valid(b) {
		d.fail(field, "is not UTF-8")
		return ""
	}
	return string(b)
}

func (d *decoder) facts(field string) map[string]string {
	n := d.u32(field)
	if n > FactsBytesMax {
		d.fail(field, "is over its bound")
		return nil
	}
	b := d.take(field, int(n))
	var values map[string]*string
	if !utf8.Valid(b) || json.Unmarshal(b, &values) != nil || values == nil {
		d.fail(field, "is not a JSON object of strings")
		return nil
	}
	facts := make(map[string]string, len(values))
	for name, value := range values {
		if value == nil {
			d.fail(field, "is not a JSON object of strings")
			return nil
		}
		facts[name] = *value
	}
	return facts
}

// array checks a count against the bound and against the bytes that are there, before anything is allocated.
func (d *decoder) array(field string, limit, recordBytes int) []byte {
	count := d.u32(field)
	if count > uint32(limit) {
		d.fail(field, "has more records than its bound")
		return nil
	}
	return d.take(field, int(count)*recordBytes)
}

func (d *decoder) keys(field string) []Key {
	b := d.array(field, FrameKeysMax, KeyBytes)
	return KeysOf(b)
}

func (d *decoder) words(field string, v []uint64, limit int) []uint64 {
	b := d.array(field, limit, wordBytes)
	for ; len(b) > 0; b = b[wordBytes:] {
		v = append(v, binary.LittleEndian.Uint64(b))
	}
	return v
}

func (d *decoder) runs(field string, v []Run) []Run {
	b := d.array(field, FrameRunsMax, runBytes)
	for ; len(b) > 0; b = b[runBytes:] {
		if binary.LittleEndian.Uint16(b[2:]) != 0 {
			d.fail(field, "has a padding that is not zero")
			return v
		}
		v = append(v, Run{Part: binary.LittleEndian.Uint16(b), Count: binary.LittleEndian.Uint32(b[4:]), First: Location(binary.LittleEndian.Uint64(b[8:]))})
	}
	return v
}

func (d *decoder) ranges(field string, v []Range) []Range {
	b := d.array(field, FrameRangesMax, rangeBytes)
	for ; len(b) > 0; b = b[rangeBytes:] {
		v = append(v, Range{First: binary.LittleEndian.Uint32(b), Count: binary.LittleEndian.Uint32(b[4:])})
	}
	return v
}

func (d *decoder) grants(field string, v []GrantRun) []GrantRun {
	b := d.array(field, FrameGrantsMax, grantBytes)
	for ; len(b) > 0; b = b[grantBytes:] {
		g := binary.LittleEndian.Uint32(b)
		if g > 0xFF || !Grant(g).Valid() {
			d.fail(field, "is not a number of its enumeration")
			return v
		}
		v = append(v, GrantRun{Grant: Grant(g), Count: binary.LittleEndian.Uint32(b[4:])})
	}
	return v
}

func (d *decoder) slices(field string, v []Slice) []Slice {
	b := d.array(field, RanksMax, sliceBytes)
	for ; len(b) > 0; b = b[sliceBytes:] {
		if binary.LittleEndian.Uint32(b[4:]) != 0 {
			d.fail(field, "has a padding that is not zero")
			return v
		}
		v = append(v, Slice{
			Rank: binary.LittleEndian.Uint16(b), Part: binary.LittleEndian.Uint16(b[2:]),
			Offset: binary.LittleEndian.Uint64(b[8:]), Bytes: binary.LittleEndian.Uint64(b[16:]),
		})
	}
	return v
}
