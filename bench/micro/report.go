package micro

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
	"orbitkv/bench/stat"
)

// Units of rates.
const (
	gibPerSecond   = "GiB/s"
	pagesPerSecond = "pages/s"
)

// figure is one measured row of one round.
type figure struct {
	Bench    string          `json:"bench"` // channel, pool or ssd
	Name     string          `json:"name"`
	Parallel int             `json:"parallel"` // clients, threads or depth of the queue; zero where that says nothing
	Round    int             `json:"round"`
	Unit     string          `json:"unit"` // of P50, P99 and Max
	N        int             `json:"n"`
	P50      float64         `json:"p50"`
	P99      float64         `json:"p99,omitempty"` // absent below stat.P99Min samples
	Max      float64         `json:"max,omitempty"`
	Rate     float64         `json:"rate,omitempty"` // of all clients together
	RateUnit string          `json:"rate_unit,omitempty"`
	Ceiling  string          `json:"ceiling,omitempty"` // name of the figure, of as many clients, that this one cannot beat
	Machine  machine         `json:"machine"`
	Storage  *record.Storage `json:"storage,omitempty"`
}

// machine is what the figures were measured on.
type machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func thisMachine() machine {
	host := launch.Host()
	return machine{CPU: host.CPU, CPUs: host.CPUs, Kernel: host.Kernel, Go: runtime.Version()}
}

// report collects the figures of all rounds.
type report struct {
	bench    string
	parallel string // what Parallel counts: the head of its column
	about    string // a line above the table
	note     string // a line below it
	machine  machine
	storage  *record.Storage
	round    int
	name     string // of the section that runs
	figures  []figure
}

func newReport(bench, parallel string) *report {
	return &report{bench: bench, parallel: parallel, machine: thisMachine()}
}

// times adds the distribution of samples in microseconds.
func (r *report) times(name string, parallel int, ceiling string, samples []time.Duration) {
	r.rated(name, parallel, ceiling, samples, 0, "")
}

// rated adds the distribution of samples in microseconds, and the rate of all clients together. Without samples it adds zeros.
func (r *report) rated(name string, parallel int, ceiling string, samples []time.Duration, rate float64, unit string) {
	f := figure{Name: name, Parallel: parallel, Unit: "us", N: len(samples), Ceiling: ceiling, Rate: rate, RateUnit: unit}
	values := make([]float64, len(samples))
	for i, sample := range samples {
		values[i] = micros(sample)
	}
	if len(values) > 0 {
		f.P50, f.Max = stat.Median(values), slices.Max(values)
	}
	if p99 := stat.Rare(values, 0.99); p99 != nil {
		f.P99 = *p99
	}
	r.add(f)
}

// add keeps a figure of the current round.
func (r *report) add(f figure) {
	f.Bench, f.Round, f.Machine, f.Storage = r.bench, r.round, r.machine, r.storage
	r.figures = append(r.figures, f)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// gib is calls of so many bytes a second in GiB/s.
func gib(callsPerSecond float64, bytes uint64) float64 {
	return callsPerSecond * float64(bytes) / (1 << 30)
}

// medians joins the rounds: each number is the median of the rounds' numbers, n is their sum, the order is that of the first round.
func (r *report) medians() []figure {
	type place struct {
		name     string
		parallel int
	}
	rounds := map[place][]figure{}
	var order []place
	for _, f := range r.figures {
		p := place{f.Name, f.Parallel}
		if len(rounds[p]) == 0 {
			order = append(order, p)
		}
		rounds[p] = append(rounds[p], f)
	}
	var joined []figure
	for _, p := range order {
		same := rounds[p]
		f := same[0]
		f.Round, f.N = 0, 0
		var p50, p99, top, rates []float64
		for _, one := range same {
			f.N += one.N
			p50, top, rates = append(p50, one.P50), append(top, one.Max), append(rates, one.Rate)
			if one.P99 > 0 {
				p99 = append(p99, one.P99)
			}
		}
		f.P50, f.Max, f.Rate = stat.Median(p50), stat.Median(top), stat.Median(rates)
		if len(p99) > 0 {
			f.P99 = stat.Median(p99)
		}
		joined = append(joined, f)
	}
	return joined
}

// print writes the medians as a Markdown table, so that a page can take it as it is.
func (r *report) print(w io.Writer) error {
	joined := r.medians()
	rated := slices.ContainsFunc(joined, func(f figure) bool { return f.Rate > 0 })
	fmt.Fprintf(w, "%s, %d CPUs, Linux %s, %s; medians of %d rounds\n", r.machine.CPU, r.machine.CPUs, r.machine.Kernel, r.machine.Go, r.round)
	if r.about != "" {
		fmt.Fprintln(w, r.about)
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	row := func(cells ...string) {
		if !rated {
			cells = slices.Delete(cells, 6, 7)
		}
		fmt.Fprintf(table, "| %s\t|\n", strings.Join(cells, "\t| "))
	}
	row("what", r.parallel, "unit", "p50", "p99", "max", "rate", "n", "ceiling", "of it")
	row(slices.Repeat([]string{"---"}, 10)...)
	for _, f := range joined {
		ceiling, share := of(f, joined)
		parallel := "-"
		if f.Parallel > 0 {
			parallel = fmt.Sprint(f.Parallel)
		}
		row(f.Name, parallel, f.Unit, number(f.P50), number(f.P99), number(f.Max), rate(f), fmt.Sprint(f.N), ceiling, share)
	}
	err := table.Flush()
	if r.note != "" {
		fmt.Fprintf(w, "\n%s\n", r.note)
	}
	return err
}

// of returns the ceiling of a figure among the others and which share of it the figure reaches: by their rates where both have one of the same
// unit, else by their medians.
func of(f figure, all []figure) (ceiling, share string) {
	for _, c := range all {
		if c.Name != f.Ceiling || c.Parallel != f.Parallel || f.P50 == 0 {
			continue
		}
		if c.Rate > 0 && c.RateUnit == f.RateUnit {
			return c.Name + ", " + rate(c), fmt.Sprintf("%.0f %%", 100*f.Rate/c.Rate)
		}
		return c.Name + ", " + number(c.P50), fmt.Sprintf("%.0f %%", 100*c.P50/f.P50)
	}
	return "-", "-"
}

func rate(f figure) string {
	switch {
	case f.Rate == 0:
		return "-"
	case f.RateUnit == gibPerSecond:
		return fmt.Sprintf("%.3g %s", f.Rate, f.RateUnit)
	}
	return fmt.Sprintf("%.3g M %s", f.Rate/1e6, f.RateUnit)
}

func number(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// lines is the file for programs. It is opened before anything is measured, so that a path that cannot be written costs no one their time.
type lines struct {
	file *os.File // nil when none is wanted
	made bool     // by openLines
}

func openLines(path string) (*lines, error) {
	if path == "" {
		return &lines{}, nil
	}
	const flags = os.O_APPEND | os.O_CREATE | os.O_WRONLY
	file, err := os.OpenFile(path, flags|os.O_EXCL, 0o644)
	made := err == nil
	if errors.Is(err, os.ErrExist) {
		file, err = os.OpenFile(path, flags, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("--json: %w", err)
	}
	return &lines{file: file, made: made}, nil
}

// keep appends the figures and closes the file.
func (l *lines) keep(figures []figure) error {
	if l.file == nil {
		return nil
	}
	buffered := bufio.NewWriter(l.file)
	out := json.NewEncoder(buffered)
	for _, f := range figures {
		if err := out.Encode(f); err != nil {
			return errors.Join(err, l.file.Close())
		}
	}
	return errors.Join(buffered.Flush(), l.file.Close())
}

// discard closes the file and removes it unless it was there before.
func (l *lines) discard() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	if l.made {
		err = errors.Join(err, os.Remove(l.file.Name()))
	}
	return err
}
