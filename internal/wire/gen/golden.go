package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"orbitkv/internal/wire/schema"
)

// goldenFiles writes two frames of every type, one with small made-up values and one with empty strings and arrays, from an
// encoder of its own: a fault of the generated codecs cannot hide in them.
func goldenFiles(files map[string][]byte) error {
	for _, m := range schema.Messages {
		for _, variant := range []string{"full", "empty"} {
			frame, fields := goldenFrame(m, variant == "full")
			name := fmt.Sprintf("%s/%s.%s", goldenDir, m.Name, variant)
			files[name+".bin"] = frame
			text, err := json.MarshalIndent(map[string]any{"type": m.Type, "name": m.Name, "id": goldenID(m), "fields": fields}, "", " ")
			if err != nil {
				return err
			}
			files[name+".json"] = append(text, '\n')
		}
	}
	return nil
}

func goldenID(m schema.Message) uint64 {
	if m.Reply == "none" && m.Sender == schema.Client {
		return 0
	}
	return 0x0102030405060700 + uint64(m.Type)
}

func goldenFrame(m schema.Message, full bool) (frame []byte, fields map[string]any) {
	fields = map[string]any{}
	body := []byte{}
	for i, f := range m.Fields {
		seed := uint64(m.Type)*16 + uint64(i) + 1
		if !full {
			seed = 0
		}
		body, fields[f.Name] = goldenValue(body, f.Kind, seed)
	}
	frame = binary.LittleEndian.AppendUint32(nil, uint32(schema.HeaderBytes+len(body)))
	frame = binary.LittleEndian.AppendUint16(frame, m.Type)
	frame = binary.LittleEndian.AppendUint16(frame, 0)
	frame = binary.LittleEndian.AppendUint64(frame, goldenID(m))
	return append(frame, body...), fields
}

// goldenValue appends one field and returns its JSON form; seed zero stands for empty.
func goldenValue(b []byte, kind schema.Kind, seed uint64) ([]byte, any) {
	le := binary.LittleEndian
	if enum, number, ok := enumOf(kind); ok {
		return goldenValue(b, number, enumSeed(enum, seed))
	}
	switch kind {
	case schema.U8:
		return append(b, uint8(seed)), seed
	case schema.Bool:
		return append(b, uint8(seed%2)), seed%2 == 1
	case schema.U16:
		return le.AppendUint16(b, uint16(seed)), seed
	case schema.I16:
		return le.AppendUint16(b, uint16(-int16(seed))), -int64(seed)
	case schema.U32:
		return le.AppendUint32(b, uint32(seed<<16)), seed << 16
	case schema.U64:
		return le.AppendUint64(b, seed<<40|seed), seed<<40 | seed
	case schema.Bytes:
		raw := goldenBytes(seed, 16)
		return append(b, raw...), hex.EncodeToString(raw)
	case schema.String, schema.Text:
		s := ""
		if seed > 0 {
			s = fmt.Sprintf("text %d é", seed)
		}
		return append(le.AppendUint16(b, uint16(len(s))), s...), s
	case schema.Facts:
		s := "{}"
		facts := map[string]string{}
		if seed > 0 {
			s, facts = `{"dtype":"bfloat16","model":"m/<a>"}`, map[string]string{"dtype": "bfloat16", "model": "m/<a>"}
		}
		return append(le.AppendUint32(b, uint32(len(s))), s...), facts
	}
	return goldenArray(b, kind, seed)
}

// goldenArray appends seed%3+1 records of an array kind, none for seed zero.
func goldenArray(b []byte, kind schema.Kind, seed uint64) ([]byte, any) {
	le := binary.LittleEndian
	n := seed%3 + 1
	if seed == 0 {
		n = 0
	}
	b = le.AppendUint32(b, uint32(n))
	records := []any{}
	var keys strings.Builder
	for i := seed; i < seed+n; i++ {
		switch kind {
		case schema.Keys:
			raw := goldenBytes(i, schema.KeyBytes)
			b = append(b, raw...)
			keys.WriteString(hex.EncodeToString(raw))
		case schema.IDs, schema.Sizes:
			b, records = le.AppendUint64(b, i<<33), append(records, i<<33)
		case schema.Runs:
			b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, uint32(i)), uint32(i+1)), i<<48|4096)
			records = append(records, []uint64{i, i + 1, i<<48 | 4096})
		case schema.Ranges:
			b = le.AppendUint32(le.AppendUint32(b, uint32(i)), uint32(i+2))
			records = append(records, []uint64{i, i + 2})
		case schema.Grants:
			b = le.AppendUint32(le.AppendUint32(b, uint32(i%4+1)), uint32(i))
			records = append(records, []uint64{i%4 + 1, i})
		case schema.Slices:
			b = le.AppendUint32(le.AppendUint16(le.AppendUint16(b, uint16(i)), uint16(i+1)), 0)
			b = le.AppendUint64(le.AppendUint64(b, i<<12), i)
			records = append(records, []uint64{i, i + 1, i << 12, i})
		default:
			panic("no golden form for kind " + string(kind))
		}
	}
	if kind == schema.Keys {
		return b, keys.String()
	}
	return b, records
}

func goldenBytes(seed uint64, n int) []byte {
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = byte(seed*31 + uint64(i)*7)
	}
	return raw
}

// enumSeed picks a value of an enumeration, the first one for seed zero.
func enumSeed(name string, seed uint64) uint64 {
	for _, e := range schema.Enums {
		if e.Name == name {
			return uint64(e.Values[seed%uint64(len(e.Values))].Value)
		}
	}
	panic("no enumeration " + name)
}
