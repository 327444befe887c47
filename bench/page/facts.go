package page

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

// whatRan is the section that says how to run the measurement again.
func whatRan(m *record.Manifest, s *report.Summary) section {
	return section{ID: "run", Title: "What was run", Parts: []part{
		{Facts: subject(m, s)},
		{Title: "Starts of the run", Logs: attempts(m.Attempts)},
		{Title: "Machine", Facts: machine(&m.Machine, s), Table: gpuTable(m.Machine.GPUs)},
		storagePart(m.Storage),
		{Title: "Versions", Facts: versions(m), Narrow: true},
		{Title: "Options", Facts: options(&m.Options), Narrow: true},
		launchPart(m.Launches),
	}}
}

func subject(m *record.Manifest, s *report.Summary) []fact {
	model := &m.Model
	return []fact{
		{"Engine", strings.TrimSpace(oneLine(s.Engine + " " + s.EngineVersion))},
		{"OrbitKV", oneLine(m.Version)},
		{"Model", oneLine(model.Path)},
		{"Its shape", oneLine(fmt.Sprintf("%s, %d layers, %d KV heads of %d, %s tokens of vocabulary, %s positions, %s of KV a token",
			model.Type, model.Layers, model.KVHeads, model.HeadDim, grouped(int64(model.Vocabulary)), grouped(int64(model.Positions)), size(float64(model.BytesPerToken))))},
		{"config.json, SHA-256", oneLine(model.ConfigSHA256)},
		{"Started", moment(m.Started)},
	}
}

func attempts(all []record.Attempt) []logText {
	var logs []logText
	for i, a := range all {
		outcome := a.Outcome
		if outcome == "" {
			outcome = "did not end, or was killed"
		}
		logs = append(logs, logText{
			Name: oneLine(fmt.Sprintf("Attempt %d: %s to %s, %s", i+1, moment(a.Started), moment(a.Ended), outcome)),
			Text: commandLine(a.Command),
		})
	}
	return logs
}

// commandLine writes a command so that a shell reads it back.
func commandLine(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = shellQuoted(cleaned(word))
	}
	return strings.Join(quoted, " ")
}

func shellQuoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func machine(m *record.Machine, s *report.Summary) []fact {
	facts := []fact{
		{"CPU", oneLine(fmt.Sprintf("%s, %d for this run, %s", m.CPU, m.CPUs, counted(m.NUMANodes, "NUMA node")))},
		{"Memory", size(float64(m.MemoryBytes))},
		{"Kernel", oneLine(m.Kernel)},
		{"Device of the engine", oneLine(s.Device)},
	}
	link := "was not measured"
	if s.Link.BytesPerS > 0 {
		link = linkRate(s.Link.BytesPerS) + ", " + s.Link.How
	}
	facts = append(facts, fact{"Link", oneLine(link)})
	if len(m.GPUs) == 0 {
		facts = append(facts, fact{"GPU", "none seen"})
	}
	return facts
}

func gpuTable(gpus []record.GPU) *table {
	if len(gpus) == 0 {
		return nil
	}
	t := &table{Head: []column{
		{Text: "GPU"},
		{Text: "Memory", Number: true},
		{Text: "Driver"},
		{Text: "PCIe"},
		{Text: "SM clock, largest"},
		{Text: "Power limit"},
		{Text: "Other processes before", Number: true},
	}}
	for _, g := range gpus {
		t.Rows = append(t.Rows, row{Cells: []cell{
			textCell(g.Name),
			numberCell(size(float64(g.MemoryMiB) * (1 << 20))),
			textCell(g.Driver),
			textCell(g.PCIe),
			textCell(g.SMClock),
			textCell(g.PowerCap),
			countCell(g.OtherUses, g.OtherUses > 0),
		}})
	}
	return t
}

func storagePart(all []record.Storage) part {
	out := part{Title: "Storage"}
	if len(all) == 0 {
		out.Text = []string{"Where the run's files lie was not recorded."}
		return out
	}
	out.Table = &table{Head: []column{{Text: "Use"}, {Text: "Path"}, {Text: "Mount"}, {Text: "File system"}, {Text: "Device"}, {Text: "O_DIRECT"}}}
	for _, s := range all {
		out.Table.Rows = append(out.Table.Rows, row{Cells: []cell{
			textCell(s.Use), codeCell(s.Path), codeCell(s.Mount), textCell(s.Filesystem), codeCell(s.Device),
			{Text: oneLine(s.Direct), Look: strings.HasPrefix(s.Direct, "refused")},
		}})
	}
	return out
}

func versions(m *record.Manifest) []fact {
	facts := []fact{{"Python of the engine", oneLine(m.Probe.Python)}}
	for _, name := range slices.Sorted(maps.Keys(m.Probe.Packages)) {
		facts = append(facts, fact{oneLine(name), oneLine(m.Probe.Packages[name])})
	}
	return facts
}

// optionsOf says which workloads read an option that not all of them read, by its name in manifest.json.
var optionsOf = map[string][]string{
	"partial_percents": {record.WorkloadPartial},
	"repeats":          {record.WorkloadLatency, record.WorkloadPartial, record.WorkloadConcurrent},
	"concurrencies":    {record.WorkloadConcurrent, record.WorkloadSustained},
	"duration_seconds": {record.WorkloadSustained},
	"max_requests":     {record.WorkloadSustained},
	"working_set":      {record.WorkloadSustained},
	"reuse_ratio":      {record.WorkloadSustained},
}

// options writes every option that the workload reads by the name it has in manifest.json, in that order.
func options(o *record.Options) []fact {
	text, err := json.Marshal(o)
	if err != nil {
		return []fact{{"options", "cannot be written: " + oneLine(err.Error())}}
	}
	// An encoder keeps the order of the fields, and so does a decoder that is read token by token.
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if _, err := decoder.Token(); err != nil {
		return []fact{{"options", "cannot be read: " + oneLine(err.Error())}}
	}
	var facts []fact
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			break
		}
		var value any
		if err := decoder.Decode(&value); err != nil {
			break
		}
		if readers, some := optionsOf[fmt.Sprint(name)]; !some || slices.Contains(readers, o.Workload) {
			facts = append(facts, fact{oneLine(words(fmt.Sprint(name))), optionText(value)})
		}
	}
	return facts
}

func optionText(value any) string {
	switch v := value.(type) {
	case nil:
		return "none"
	case string:
		if v == "" {
			return "none"
		}
		return oneLine(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case json.Number:
		return v.String()
	case []any:
		parts := make([]string, len(v))
		for i, each := range v {
			parts[i] = optionText(each)
		}
		if len(parts) == 0 {
			return "none"
		}
		return strings.Join(parts, ", ")
	}
	return oneLine(fmt.Sprint(value))
}

// launchesMax bounds the processes whose commands are written out; manifest.json has all of them.
const launchesMax = 64

func launchPart(all []record.Launch) part {
	out := part{Title: "Processes"}
	if len(all) == 0 {
		out.Text = []string{"The run started no process."}
		return out
	}
	if len(all) > launchesMax {
		out.Text = []string{fmt.Sprintf("The first %d of %d; manifest.json has all.", launchesMax, len(all))}
		all = all[:launchesMax]
	}
	for i := range all {
		out.Logs = append(out.Logs, logText{launchName(&all[i]), launchText(&all[i])})
	}
	return out
}

func launchName(l *record.Launch) string {
	name := fmt.Sprintf("%s of %s, pass %d, attempt %d", l.Part, l.Backend, l.Pass, l.Attempt)
	if l.Control {
		name += ", control"
	}
	if l.ReadySeconds > 0 {
		name += fmt.Sprintf(": ready after %s s", number(l.ReadySeconds))
	} else {
		name += ": never ready"
	}
	if l.Exit != "" {
		name += ", ended: " + l.Exit
	}
	if l.Log != "" {
		name += "; " + l.Log
	}
	return oneLine(name)
}

// launchText writes a process's environment and command as a shell would take them.
func launchText(l *record.Launch) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l.Environment)) {
		fmt.Fprintf(&text, "%s=%s \\\n", cleaned(name), shellQuoted(cleaned(l.Environment[name])))
	}
	text.WriteString(commandLine(l.Command))
	return text.String()
}
