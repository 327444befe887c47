package main

import (
	_ "embed"
	"fmt"
	"strings"

	"orbitkv/internal/wire/schema"
)

//go:embed python_head.txt
var pythonHead string

//go:embed python_tail.txt
var pythonTail string

// scalar holds the struct format letter of each fixed kind.
var scalar = map[schema.Kind]string{
	schema.U8: "B", schema.Bool: "B", schema.U16: "H", schema.I16: "h", schema.U32: "I", schema.U64: "Q", schema.Bytes: "16s",
}

// pythonKind is how one field kind reads in Python: M stands for the member, N for the quoted name.
type pythonKind struct {
	typ    string
	encode string // an expression; of a scalar the value to pack, else the bytes
	decode string // an expression; of a scalar from the unpacked value M, else from the reader r
}

func pythonField(kind schema.Kind) pythonKind {
	if enum, _, ok := enumOf(kind); ok {
		return pythonKind{enum, "M", fmt.Sprintf("_enum(_%s_VALUES, M, N)", strings.ToUpper(enum))}
	}
	switch kind {
	case schema.Bool:
		return pythonKind{"bool", "M", "_bool(M, N)"}
	case schema.Bytes:
		return pythonKind{"bytes", "_bytes16(M, N)", "M"}
	case schema.String:
		return pythonKind{"str", "_put_text(M, STRING_BYTES_MAX, N)", "r.text(STRING_BYTES_MAX, N)"}
	case schema.Text:
		return pythonKind{"str", "_put_text(M, TEXT_BYTES_MAX, N)", "r.text(TEXT_BYTES_MAX, N)"}
	case schema.Facts:
		return pythonKind{"Mapping[str, str]", "_put_facts(M, N)", "r.facts(N)"}
	case schema.Keys:
		return pythonKind{"bytes", "_put_keys(M, N)", "bytes(r.array(_KEY, FRAME_KEYS_MAX, N))"}
	case schema.IDs:
		return pythonKind{"Sequence[int]", "_put_words(M, FRAME_IDS_MAX, N)", "r.words(FRAME_IDS_MAX, N)"}
	case schema.Sizes:
		return pythonKind{"Sequence[int]", "_put_words(M, RANKS_MAX, N)", "r.words(RANKS_MAX, N)"}
	case schema.Runs:
		return pythonKind{"Sequence[Run]", "_put_records(M, _RUN, FRAME_RUNS_MAX, N)", "r.runs(N)"}
	case schema.Ranges:
		return pythonKind{"Sequence[Range]", "_put_records(M, _RANGE, FRAME_RANGES_MAX, N)", "r.ranges(N)"}
	case schema.Grants:
		return pythonKind{"Sequence[GrantRun]", "_put_records(M, _GRANT, FRAME_GRANTS_MAX, N)", "r.grants(N)"}
	case schema.Slices:
		return pythonKind{"Sequence[Slice]", "_put_records(M, _SLICE, RANKS_MAX, N)", "r.slices(N)"}
	}
	return pythonKind{"int", "M", "M"}
}

func isScalar(kind schema.Kind) bool { return scalarOf(kind) != "" }

func scalarOf(kind schema.Kind) string {
	if _, number, ok := enumOf(kind); ok {
		kind = number
	}
	return scalar[kind]
}

func pythonCodec() []byte {
	var b strings.Builder
	b.WriteString(pythonHead)
	for _, c := range constants() {
		fmt.Fprintf(&b, "#: %s\n%s: Final = %d\n", c.doc, upperSnake(c.name), c.value)
	}
	b.WriteString("\n")
	for _, e := range schema.Enums {
		fmt.Fprintf(&b, "\nclass %s(IntEnum):\n    %s\n\n", e.Name, pythonDoc(e.Doc, ""))
		for _, v := range e.Values {
			fmt.Fprintf(&b, "    #: %s\n    %s = %d\n", v.Doc, strings.ToUpper(v.Name), v.Value)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, e := range schema.Enums {
		fmt.Fprintf(&b, "_%s_VALUES: Final = {int(value): value for value in %s}\n", strings.ToUpper(e.Name), e.Name)
	}
	names := []string{}
	for _, m := range schema.Messages {
		pythonMessage(&b, m)
		names = append(names, camel(m.Name))
	}
	fmt.Fprintf(&b, "\n\nMessage: TypeAlias = (\n    %s\n)\n\n", strings.Join(names, "\n    | "))
	b.WriteString(pythonTail)
	for _, m := range schema.Messages {
		pythonCodecOf(&b, m)
	}
	b.WriteString("\n\n_ENCODERS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {\n")
	for _, m := range schema.Messages {
		fmt.Fprintf(&b, "    %s: (%d, _encode_%s),\n", camel(m.Name), m.Type, m.Name)
	}
	b.WriteString("}\n_DECODERS: Final[dict[int, Callable[[_Reader], Message]]] = {\n")
	for _, m := range schema.Messages {
		fmt.Fprintf(&b, "    %d: _decode_%s,\n", m.Type, m.Name)
	}
	b.WriteString("}\n")
	return []byte(b.String())
}

func pythonMessage(b *strings.Builder, m schema.Message) {
	fmt.Fprintf(b, "\n\nclass %s(NamedTuple):\n    %s\n\n", camel(m.Name), pythonDoc(fmt.Sprintf("Frame %d (sender: %s; reply: %s).", m.Type, m.Sender, m.Reply), m.Doc))
	for _, f := range m.Fields {
		for _, line := range wrap(f.Doc, 94) {
			fmt.Fprintf(b, "    #: %s\n", line)
		}
		fmt.Fprintf(b, "    %s: %s\n", f.Name, pythonField(f.Kind).typ)
	}
}

// pythonCodecOf writes the encoder and the decoder of one message. Neighbouring fixed fields share one struct.
func pythonCodecOf(b *strings.Builder, m schema.Message) {
	var structs, decode strings.Builder
	parts := []call{}
	for i, group := range groups(m.Fields) {
		if !isScalar(group[0].Kind) {
			k := pythonField(group[0].Kind)
			name, args, _ := strings.Cut(strings.TrimSuffix(fill(k.encode, "m."+group[0].Name, group[0].Name), ")"), "(")
			parts = append(parts, call{name, strings.Split(args, ", ")})
			fmt.Fprintf(&decode, "    %s = %s\n", group[0].Name, fill(k.decode, group[0].Name, group[0].Name))
			continue
		}
		name := fmt.Sprintf("_%s_%d", strings.ToUpper(m.Name), i)
		layout, packed := pythonFixed(&decode, name, group)
		fmt.Fprintf(&structs, "%s: Final = struct.Struct(\"%s\")\n", name, layout)
		parts = append(parts, call{name + ".pack", packed})
	}
	encode := parts[0].render("    return ", "")
	if len(parts) > 1 {
		encode = "    return b\"\".join(\n        (\n"
		for _, part := range parts {
			encode += part.render("            ", ",")
		}
		encode += "        )\n    )\n"
	}
	class, args := camel(m.Name), []string{}
	for _, f := range m.Fields {
		args = append(args, local(f.Name))
	}
	if structs.Len() > 0 {
		fmt.Fprintf(b, "\n\n%s", structs.String())
	}
	fmt.Fprintf(b, "\n\ndef _encode_%s(m: %s) -> bytes:\n%s", m.Name, class, encode)
	fmt.Fprintf(b, "\n\ndef _decode_%s(r: _Reader) -> %s:\n%s%s", m.Name, class, decode.String(), call{class, args}.render("    return ", ""))
}

// pythonFixed writes how neighbouring fixed fields are read and returns their struct format and what is packed.
func pythonFixed(decode *strings.Builder, name string, group []schema.Field) (layout string, packed []string) {
	layout = "<"
	var names []string
	var checks strings.Builder
	for _, f := range group {
		k := pythonField(f.Kind)
		layout += scalarOf(f.Kind)
		packed = append(packed, fill(k.encode, "m."+f.Name, f.Name))
		names = append(names, local(f.Name))
		if k.decode != "M" {
			names[len(names)-1] = f.Name + "_raw"
			fmt.Fprintf(&checks, "    %s = %s\n", local(f.Name), fill(k.decode, f.Name+"_raw", f.Name))
		}
	}
	target := strings.Join(names, ", ")
	if len(names) == 1 {
		target = "(" + target + ",)"
	}
	read := fmt.Sprintf("    %s = r.fixed(%s)\n", target, name)
	if len(read) > pythonColumns+1 {
		read = fmt.Sprintf("    (\n        %s,\n    ) = r.fixed(%s)\n", strings.Join(names, ",\n        "), name)
	}
	decode.WriteString(read + checks.String())
	return layout, packed
}

// local is the name of a field as a local variable, which must not hide a builtin.
func local(field string) string {
	switch field {
	case "bytes", "id", "open":
		return field + "_"
	}
	return field
}

// pythonColumns is the line length of the project's Python formatter, whose form the output has.
const pythonColumns = 120

// call is one Python call.
type call struct {
	name string
	args []string
}

// render writes the call on one line, or one argument a line when it would not fit.
func (c call) render(before, after string) string {
	line := before + c.name + "(" + strings.Join(c.args, ", ") + ")" + after
	if len(line) <= pythonColumns {
		return line + "\n"
	}
	pad := "\n" + strings.Repeat(" ", len(before)-len(strings.TrimLeft(before, " ")))
	return before + c.name + "(" + pad + "    " + strings.Join(c.args, ","+pad+"    ") + "," + pad + ")" + after + "\n"
}

// groups cuts fields into runs of fixed ones and single others.
func groups(fields []schema.Field) [][]schema.Field {
	var out [][]schema.Field
	for _, f := range fields {
		if n := len(out); n > 0 && isScalar(f.Kind) && isScalar(out[n-1][0].Kind) {
			out[n-1] = append(out[n-1], f)
			continue
		}
		out = append(out, []schema.Field{f})
	}
	return out
}

func fill(expression, member, name string) string {
	return fillStatement(strings.NewReplacer("M", member, "N", fmt.Sprintf("%q", name)), expression)
}

// pythonDoc writes the docstring of a class: a summary line, then the rest.
func pythonDoc(summary, rest string) string {
	if rest == "" {
		return `"""` + summary + `"""`
	}
	return `"""` + summary + "\n\n    " + strings.Join(wrap(rest, 90), "\n    ") + "\n    " + `"""`
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
