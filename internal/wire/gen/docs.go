package main

import (
	"bytes"
	"fmt"
	"strings"

	"orbitkv/internal/wire/schema"
)

// fillPage replaces what stands between each pair of markers of the hand-written page.
func fillPage(page []byte) ([]byte, error) {
	for _, table := range []struct{ name, text string }{
		{"bounds", boundsTable()}, {"kinds", kindsTable()}, {"frames", framesTable()}, {"messages", messageTables()}, {"enums", enumTables()},
	} {
		begin := []byte("<!-- wire:" + table.name + ":begin -->\n")
		end := []byte("<!-- wire:" + table.name + ":end -->")
		before, rest, found := bytes.Cut(page, begin)
		_, after, closed := bytes.Cut(rest, end)
		if !found || !closed {
			return nil, fmt.Errorf("%s has no markers for the table %s", pageFile, table.name)
		}
		page = bytes.Join([][]byte{before, begin, []byte(table.text), end, after}, nil)
	}
	return page, nil
}

func boundsTable() string {
	var b strings.Builder
	b.WriteString("| constant | value | meaning |\n|---|---|---|\n")
	for _, c := range constants() {
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", c.name, c.value, c.doc)
	}
	return b.String()
}

func kindsTable() string {
	rows := [][2]string{
		{"u8, u16, u32, u64", "unsigned, little endian"},
		{"i16", "signed, little endian"},
		{"bool", "u8, 0 or 1, nothing else"},
		{"u8 Role, u16 Status, ...", "a number of that enumeration, nothing else"},
		{string(schema.Bytes), "16 raw bytes"},
		{string(schema.String), fmt.Sprintf("u16 length, UTF-8, at most %d bytes", schema.StringBytesMax)},
		{string(schema.Text), fmt.Sprintf("u16 length, UTF-8, at most %d bytes", schema.TextBytesMax)},
		{string(schema.Facts), fmt.Sprintf("u32 length, a JSON object of string to string in UTF-8, at most %d bytes; written with sorted keys and no blanks", schema.FactsBytesMax)},
		{string(schema.Keys), fmt.Sprintf("u32 count up to %d, %d raw bytes each", schema.FrameKeysMax, schema.KeyBytes)},
		{string(schema.IDs), fmt.Sprintf("u32 count up to %d, u64 each", schema.FrameIDsMax)},
		{string(schema.Sizes), fmt.Sprintf("u32 count up to %d, u64 each, bytes", schema.RanksMax)},
		{string(schema.Runs), fmt.Sprintf("u32 count up to %d, records {part u16, zero u16, count u32, first u64}", schema.FrameRunsMax)},
		{string(schema.Ranges), fmt.Sprintf("u32 count up to %d, records {first u32, count u32}", schema.FrameRangesMax)},
		{string(schema.Grants), fmt.Sprintf("u32 count up to %d, records {grant u8, zero u8, zero u16, count u32}", schema.FrameGrantsMax)},
		{string(schema.Slices), fmt.Sprintf("u32 count up to %d, records {rank u16, part u16, zero u32, offset u64, bytes u64}", schema.RanksMax)},
	}
	var b strings.Builder
	b.WriteString("| kind | layout |\n|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |\n", r[0], r[1])
	}
	return b.String()
}

func framesTable() string {
	var b strings.Builder
	b.WriteString("| type | frame | sender | reply | meaning |\n|---|---|---|---|---|\n")
	for _, m := range schema.Messages {
		fmt.Fprintf(&b, "| %d | [%s](#%s) | %s | %s | %s |\n", m.Type, m.Name, m.Name, m.Sender, m.Reply, m.Doc)
	}
	return b.String()
}

func messageTables() string {
	var b strings.Builder
	for _, m := range schema.Messages {
		fmt.Fprintf(&b, "### %s\n\n| field | kind | meaning |\n|---|---|---|\n", m.Name)
		for _, f := range m.Fields {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, f.Kind, f.Doc)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func enumTables() string {
	var b strings.Builder
	for _, e := range schema.Enums {
		fmt.Fprintf(&b, "**%s**: %s\n\n| name | number | meaning |\n|---|---|---|\n", e.Name, lowerFirst(e.Doc))
		for _, v := range e.Values {
			fmt.Fprintf(&b, "| `%s` | %d | %s |\n", v.Name, v.Value, v.Doc)
		}
		b.WriteString("\n")
	}
	return b.String()
}
