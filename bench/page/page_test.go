package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"orbitkv/bench/record"
	"orbitkv/bench/report"
)

func render(t *testing.T, run *record.Run, s *report.Summary) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, run, s); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// parsed is what a page is made of.
type parsed struct {
	elements   map[string]int
	attributes []xml.Attr
	text       string
	figures    []string // the text of each
	styles     []string
}

// parse reads a page as a browser would, without its forgiveness: everything that is opened must be closed.
func parse(t *testing.T, page string) parsed {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(page))
	decoder.Strict = false
	decoder.AutoClose = xml.HTMLAutoClose
	decoder.Entity = xml.HTMLEntity
	out := parsed{elements: map[string]int{}}
	var open []string
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		switch each := token.(type) {
		case xml.StartElement:
			open = append(open, each.Name.Local)
			out.elements[each.Name.Local]++
			out.attributes = append(out.attributes, each.Attr...)
			if each.Name.Local == "figure" {
				out.figures = append(out.figures, "")
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			out.text += string(each)
			if slices.Contains(open, "style") {
				out.styles = append(out.styles, string(each))
			}
			if slices.Contains(open, "figure") {
				out.figures[len(out.figures)-1] += string(each) + "\n"
			}
		}
	}
}

// allowed are the elements that a report has. None of them runs or fetches anything.
var allowed = strings.Fields(`html head meta title style body header main section footer nav h1 h2 h3 p a b i small span ul li dl div dt dd
	table thead tbody tr th td figure figcaption pre svg g path text`)

// TestNothingFromOutside reads every element and attribute of reports whose texts try to break out.
func TestNothingFromOutside(t *testing.T) {
	for name, make := range map[string]func(*testing.T) (*record.Run, *report.Summary){"latency": latencyRun, "sustained": loadRun} {
		t.Run(name, func(t *testing.T) {
			run, s := make(t)
			page := parse(t, render(t, run, s))
			for element := range page.elements {
				if !slices.Contains(allowed, element) {
					t.Errorf("an element %s", element)
				}
			}
			for _, a := range page.attributes {
				value := strings.ToLower(a.Value)
				switch {
				case a.Name.Local == "href" && !strings.HasPrefix(value, "#"),
					a.Name.Local == "src", strings.HasPrefix(strings.ToLower(a.Name.Local), "on"):
					t.Errorf("an attribute %s=%q", a.Name.Local, a.Value)
				case a.Name.Local != "aria-label" && (strings.Contains(value, "url(") || strings.Contains(value, "//") || strings.Contains(value, "@import")):
					t.Errorf("an attribute %s=%q", a.Name.Local, a.Value)
				}
			}
			if len(page.styles) != 1 {
				t.Errorf("%d style sheets", len(page.styles))
			}
			for _, sheet := range page.styles {
				for _, word := range []string{"url(", "@import", "//", "expression"} {
					if strings.Contains(sheet, word) {
						t.Errorf("the style sheet has %s", word)
					}
				}
			}
			if !strings.Contains(page.text, "<script>alert(1)</script>") {
				t.Error("hostile text is not shown as text")
			}
			if strings.ContainsAny(page.text, "\x1b\u202e") {
				t.Error("control characters reached the page")
			}
		})
	}
}

// TestFiguresComeBeforeListsOfProcesses sees what a reader looks for before what the run was made of.
func TestFiguresComeBeforeListsOfProcesses(t *testing.T) {
	run, s := latencyRun(t)
	_, body, _ := strings.Cut(render(t, run, s), "<main>")
	var got []string
	for _, rest := range strings.Split(body, `<section id="`)[1:] {
		id, _, _ := strings.Cut(rest, `"`)
		got = append(got, id)
	}
	if want := strings.Fields("headline figures outputs failures drain run notes"); !slices.Equal(got, want) {
		t.Errorf("the sections are %q, want %q", got, want)
	}
}

// TestSections has what each kind of run must show in words.
func TestSections(t *testing.T) {
	run, s := latencyRun(t)
	text := parse(t, render(t, run, s)).text
	for _, want := range []string{
		"45 of 60 planned cells are finished", "flexkv failed at its start (engine)", "AttributeError: get_kv_cache_shape", "Not everything was given back at the end: cpu",
		"1 of 90 compared outputs differ", "the engine alone gives both texts", "Link share", "NVIDIA H200", "refused: EINVAL", "orbitkv bench single-node", "PYTHONHASHSEED=0",
		"torch", "2.13.0+cu130", "seed", "55.30 GB/s, pinned host memory", "The link moved 55.30 GB/s", "Restored in all", "Time to first text", "20260920", "nowhere (miss)", "pending bytes stayed at 8192", "the engine said:", "the answer claims tokens that no counter shows",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	run, s = loadRun(t)
	text = parse(t, render(t, run, s)).text
	for _, want := range []string{
		"Goodput", "48 of 64", "orbitkv_pending_bytes", "592 MiB", "The run did not trace transfers", "The run started no process", "No answer was compared", "No backend came to its end", "no GPU", "No backend told what it still holds",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of windows does not say %q", want)
		}
	}
}

// TestFindings marks what makes the figures say less, and gives what came out no mark.
func TestFindings(t *testing.T) {
	run, s := latencyRun(t)
	s.Cautions, s.Outcomes = []string{"cold TTFT is apart"}, []string{"orbitkv: TTFT <a tenth>"}
	page := render(t, run, s)
	for _, want := range []string{
		`<li class="look"><b>!</b> Cold TTFT is apart.</li>`, `<li class="plain"><b>•</b> orbitkv: TTFT &lt;a tenth&gt;.</li>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	untold := drainFinding(&report.Summary{Coverage: []report.Coverage{{Backend: record.Native}}})
	if untold.Mark != plain {
		t.Errorf("a drain that nobody tells of is %s", untold.Mark)
	}
	if told := drainFinding(&report.Summary{Coverage: []report.Coverage{{Backend: record.OrbitKV}}}); told.Mark != look {
		t.Errorf("a drain that OrbitKV should have told of is %s", told.Mark)
	}
}

// TestBursts have no admission and no drain of their own, say which prompts they hold, and warn where that differs by concurrency.
func TestBursts(t *testing.T) {
	run, s := loadRun(t)
	const warning = "compare between backends at one concurrency"
	cells := func(t *table) string {
		var all []string
		for i, c := range t.Rows[0].Cells {
			all = append(all, t.Head[i].Text+" "+c.Text)
		}
		return strings.ReplaceAll(strings.Join(all, "; "), "\u00a0", " ")
	}
	prompts := "Prompts 4 of " + grouped(1024) + ", 4 of " + grouped(4096)
	if got := cells(rateTable(s.Windows)); !strings.Contains(got, "Failed 0; Admission 60.0; ended by window; Drain 0.40; Wall 60.4; Requests/s 0.13") {
		t.Error(got)
	}
	if got := cells(windowLatencyTable(s.Windows)); !strings.Contains(got, prompts) {
		t.Error(got)
	}
	if strings.Contains(render(t, run, s), warning) {
		t.Error("the windows of a closed loop are said not to compare")
	}
	for i := range s.Windows {
		w := &s.Windows[i]
		w.Workload, w.Variant, w.Phase, w.AdmitSeconds, w.DrainSeconds = record.WorkloadConcurrent, record.Mixed, record.Cold, 0, w.WallSeconds
	}
	if got := cells(rateTable(s.Windows)); !strings.Contains(got, "Failed 0; "+prompts+"; Wall 60.4; Requests/s 0.13") {
		t.Error(got)
	}
	page := parse(t, render(t, run, s))
	if strings.Count(page.text, warning) != 2 || !strings.Contains(strings.Join(page.figures, ""), "not one C with the next") {
		t.Error("the page does not say that mixed windows do not compare across concurrencies")
	}
}

// TestOptionsOfTheWorkload leaves out what it does not read.
func TestOptionsOfTheWorkload(t *testing.T) {
	for workload, want := range map[string]string{
		record.WorkloadLatency: "repeats", record.WorkloadPartial: "partial percents, repeats",
		record.WorkloadConcurrent: "concurrencies, repeats",
		record.WorkloadSustained:  "concurrencies, duration seconds, max requests, working set, reuse ratio",
	} {
		var got []string
		common := 0
		for _, f := range options(&record.Options{Workload: workload}) {
			if _, some := optionsOf[strings.ReplaceAll(f.Name, " ", "_")]; some {
				got = append(got, f.Name)
			} else {
				common++
			}
		}
		if strings.Join(got, ", ") != want || common < 10 {
			t.Errorf("%s: %q and %d that every workload reads", workload, got, common)
		}
	}
}

// TestOutputs says of differing outputs what a control shows and who gave the same text, and of every two backends how often they agree.
func TestOutputs(t *testing.T) {
	run, s := latencyRun(t)
	d := &s.Differing[0]
	differs, own := true, 960
	d.Verdict, d.Reused, d.ControlReused, d.ControlDiffers, d.SameText, d.Others = record.OtherBoundary, 1023, &own, &differs, []string{"cpu"}, 2
	text := parse(t, render(t, run, s)).text
	for _, want := range []string{
		"0 unexplained by the engine alone, 1 at a boundary that the engine alone cannot show", "no proof either way", "960 differs, too", "1 023",
		"cpu and orbitkv: the same text in 44 of 45 corresponding requests.", "native and cpu: the same text in all 45 corresponding requests.", "4 of 5",
	} {
		if !strings.Contains(text, strings.ReplaceAll(want, "1 023", grouped(1023))) {
			t.Errorf("the page does not say %q", want)
		}
	}
	d.Verdict, d.Why = record.Unexplained, "the engine alone reuses the same 960 tokens"
	if text := parse(t, render(t, run, s)).text; !strings.Contains(text, "1 unexplained by the engine alone") || !strings.Contains(text, d.Why) {
		t.Error("the page does not say what is unexplained and why")
	}
	d.Verdict = ""
	if text := parse(t, render(t, run, s)).text; !strings.Contains(text, "1 without a control yet") || !strings.Contains(text, "no control yet") {
		t.Error("the page does not say that a control is missing")
	}
}

// TestMixedHits tells a hit in device memory that restored a tail from a sample that came from a wrong source.
func TestMixedHits(t *testing.T) {
	run, s := latencyRun(t)
	hit := slices.IndexFunc(s.Groups, func(g report.Group) bool { return g.Backend == "cpu" && g.Phase == record.HBMHit })
	s.Groups[hit].Sources, s.Groups[hit].Unexpected = []report.SourceCount{{Source: record.FromBoth, N: 5}}, 5
	want := "; 5 HBM hits restored a part from outside, too (mixed); 2 came from another cache source"
	if text := parse(t, render(t, run, s)).text; !strings.Contains(text, want) {
		t.Errorf("the page does not say %q", want)
	}
}

// TestDifferencesOfTheSummary writes each paired difference with its interval and pairs beside its mark.
func TestDifferencesOfTheSummary(t *testing.T) {
	run, s := latencyRun(t)
	drawn := strings.Join(parse(t, render(t, run, s)).figures, "\n")
	for i := range s.Paired {
		p := &s.Paired[i]
		want := fmt.Sprintf("%s, n=%d", plus(p.Difference), p.N)
		if p.Interval != nil {
			want = fmt.Sprintf("%s [%s, %s], n=%d", plus(p.Difference), plus(p.Interval.Low), plus(p.Interval.High), p.N)
		}
		if !strings.Contains(drawn, want) {
			t.Errorf("%s, %s less %s: no %q", pairingName(p), p.B.Backend, p.A.Backend, want)
		}
	}
	if len(s.Paired) == 0 {
		t.Error("the fixture has no pair")
	}
}

// TestBounds keeps a page of very many failures and differences readable, and says what it leaves out.
func TestBounds(t *testing.T) {
	run, s := latencyRun(t)
	s.Failures = slices.Repeat(s.Failures, 100)
	s.Differing = slices.Repeat(s.Differing, 1000)
	s.Attributions = slices.Repeat(s.Attributions, 1000)
	page := parse(t, render(t, run, s))
	for _, want := range []string{"There are 95 failures more", "The first 50 of 100", "The first 200 of 1000", "The first 40 of 1000"} {
		if !strings.Contains(page.text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if got := strings.Count(page.text, "Finished later"); got != failuresMax {
		t.Errorf("%d failures are shown", got)
	}
}

// TestEmptyRun has no figure and says so.
func TestEmptyRun(t *testing.T) {
	f := newFixture(t, record.Options{Backends: []string{"orbitkv"}, Workload: "latency", Lengths: []int{1024}, Repeats: 1, TraceTransfers: true}, record.Machine{})
	run, s := f.load("failed")
	page := parse(t, render(t, run, s))
	for _, want := range []string{
		"The run ended before it planned any cell", "No finished cell has a measured request", "The exposed restore time is not known", "no pair of backends",
		"Tracing was on and no process wrote a record",
	} {
		if !strings.Contains(page.text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if len(page.figures) != 0 {
		t.Errorf("%d figures of nothing", len(page.figures))
	}
}

// TestNBesideEveryFigure wants the number of samples in each drawing or under it.
func TestNBesideEveryFigure(t *testing.T) {
	for name, make := range map[string]func(*testing.T) (*record.Run, *report.Summary){"latency": latencyRun, "sustained": loadRun} {
		run, s := make(t)
		for _, each := range parse(t, render(t, run, s)).figures {
			if !strings.Contains(each, "n=") && !strings.Contains(each, "n: ") && !slices.Contains(strings.Split(each, "\n"), "n") {
				t.Errorf("%s: a figure without n: %.300s", name, each)
			}
		}
	}
}

// TestSamplesOfTheSummary draws exactly the samples that the tables count: none of an unfinished cell, none of another source.
func TestSamplesOfTheSummary(t *testing.T) {
	for _, make := range []func(*testing.T) (*record.Run, *report.Summary){latencyRun, loadRun} {
		run, s := make(t)
		data := gather(run, s)
		rows, drawn := 0, 0
		for i := range s.Groups {
			g := &s.Groups[i]
			for _, r := range g.Rows {
				rows++
				if got := len(data.ttft[rowKey{g.Key, r.Source}]); got != r.N {
					t.Errorf("%+v from %s: %d samples, the table counts %d", g.Key, r.Source, got, r.N)
				}
			}
			for _, each := range data.strips(g) {
				drawn += len(each.dots)
			}
		}
		if len(data.ttft) != rows || drawn != s.Counts.Measured {
			t.Errorf("%d rows of samples and %d in the tables; %d marks for %d samples", len(data.ttft), rows, drawn, s.Counts.Measured)
		}
	}
}

// TestOneColour wants a backend's colour in the style sheet, and no colour that is two backends'.
func TestOneColour(t *testing.T) {
	sheet := string(styleSheet())
	seen := map[string]string{}
	for backend, look := range styles {
		ink := hex(look.ink)
		if other, taken := seen[ink]; taken {
			t.Errorf("%s and %s are both %s", backend, other, ink)
		}
		seen[ink] = backend
		if want := "." + chipOf(backend) + " { background: " + ink; !strings.Contains(sheet, want) {
			t.Errorf("the style sheet has no %q", want)
		}
	}
	if got := chipOf(`x"><script>`); got != otherChip {
		t.Errorf("an unknown backend became the class %q", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestWriteError says which report could not be written.
func TestWriteError(t *testing.T) {
	run, s := loadRun(t)
	if err := Write(fullDisk{}, run, s); !errors.Is(err, io.ErrShortWrite) || !strings.Contains(err.Error(), s.Path) {
		t.Errorf("got %v", err)
	}
}
