package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const page = "../../../docs/format/ssd.md"

// tableOf returns the rows of the page's table between two marks, each as its cells.
func tableOf(t *testing.T, name string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(text), "<!-- ssd:"+name+":begin -->\n")
	body, _, ends := strings.Cut(rest, "<!-- ssd:"+name+":end -->")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if !begins || !ends || len(lines) < 3 {
		t.Fatalf("%s has no table %s", page, name)
	}
	rows := make([][]string, 0, len(lines))
	for _, line := range append(lines[:1:1], lines[2:]...) {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

func TestPageNamesTheConstants(t *testing.T) {
	want := map[string]string{
		"`Version`": fmt.Sprint(Version), "`Granule`": fmt.Sprint(Granule), "`ScratchBytes`": fmt.Sprint(ScratchBytes),
		"`SuperblockBytes`": fmt.Sprint(SuperblockBytes), "`LogHeaderBytes`": fmt.Sprint(LogHeaderBytes),
		"`RecordBytes`": fmt.Sprint(RecordBytes), "`PageHeaderBytes`": fmt.Sprint(PageHeaderBytes),
	}
	got := map[string]string{}
	for _, row := range tableOf(t, "constants")[1:] {
		got[row[0]] = row[1]
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the page has %v, the code %v", got, want)
	}
}

// structure is one table of the page beside the code that it describes.
type structure struct {
	table, column string
	sample        []byte
	decode        func([]byte) (any, error)
}

func structures() []structure {
	list := []structure{
		{"superblock", "value", samples()["superblock"], func(b []byte) (any, error) { return DecodeSuperblock(b) }},
		{"log", "value", samples()["log header"], func(b []byte) (any, error) { return DecodeLogHeader(b) }},
		{"page", "value", samples()["page header"], func(b []byte) (any, error) { return DecodePageHeader(b) }},
	}
	for _, kind := range []string{"put", "drop", "namespace", "drop namespace"} {
		list = append(list, structure{"record", kind, samples()["record "+kind], func(b []byte) (any, error) {
			var r Record
			err := r.Decode(b)
			return r, err
		}})
	}
	return list
}

var literal = regexp.MustCompile("^`(.*)`$")

// TestPageDrawsTheBytes turns every byte of a sample and compares what decoding makes of it with what the page says of the byte.
func TestPageDrawsTheBytes(t *testing.T) {
	for _, s := range structures() {
		t.Run(s.table+" "+s.column, func(t *testing.T) {
			rows := tableOf(t, s.table)
			column := slices.Index(rows[0], s.column)
			if column < 0 {
				t.Fatalf("the table of %s has no column %s", s.table, s.column)
			}
			end := 0
			for _, row := range rows[1:] {
				first, err1 := strconv.Atoi(row[0])
				size, err2 := strconv.Atoi(row[1])
				if err1 != nil || err2 != nil || first != end || size < 1 {
					t.Fatalf("row %v does not begin at byte %d", row, end)
				}
				end = first + size
				s.checkRow(t, first, size, row[2], row[column])
			}
			if end != len(s.sample) {
				t.Fatalf("the page draws %d bytes, there are %d", end, len(s.sample))
			}
		})
	}
}

func (s *structure) checkRow(t *testing.T, first, size int, field, says string) {
	whole, err := s.decode(s.sample)
	if err != nil {
		t.Fatal(err)
	}
	_, isField := reflect.TypeOf(whole).FieldByName(field)
	constant := literal.FindStringSubmatch(says)
	zeros := says == "zero" || field == "zero"
	switch {
	case constant != nil:
		if want := bytesOf(t, constant[1], size); !bytes.Equal(s.sample[first:first+size], want) {
			t.Fatalf("%s holds %x, the page says %s", field, s.sample[first:first+size], says)
		}
	case !zeros && !isField && field != "checksum":
		t.Fatalf("%s is neither a field of %T nor a constant", field, whole)
	}
	changed := false
	for at := first; at < first+size; at++ {
		b := bytes.Clone(s.sample)
		b[at] ^= 1
		if field == "checksum" {
			if _, err := s.decode(b); err != ErrChecksum {
				t.Fatalf("byte %d of the checksum was changed: %v", at, err)
			}
			continue
		}
		seal(b)
		other, err := s.decode(b)
		switch {
		case err == nil && (zeros || constant != nil):
			if field != "kind" {
				t.Fatalf("byte %d (%s, %s) was changed and is taken", at, field, says)
			}
		case err == nil:
			changed = true
			if got := changedFields(whole, other); !slices.Equal(got, []string{field}) {
				t.Fatalf("byte %d (%s) changes %v", at, field, got)
			}
		case zeros && err != ErrMalformed:
			t.Fatalf("byte %d (%s) was changed: %v", at, field, err)
		}
	}
	if isField && !zeros && constant == nil && !changed {
		t.Fatalf("no byte of %s changes it", field)
	}
}

func changedFields(x, y any) (names []string) {
	a, b := reflect.ValueOf(x), reflect.ValueOf(y)
	for i := range a.NumField() {
		if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			names = append(names, a.Type().Field(i).Name)
		}
	}
	return names
}

// bytesOf is what a constant of the page looks like in so many bytes.
func bytesOf(t *testing.T, text string, size int) []byte {
	if quoted, err := strconv.Unquote(text); err == nil {
		return []byte(quoted)
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is neither a text nor a number", text)
	}
	return binary.LittleEndian.AppendUint64(nil, number)[:size]
}
