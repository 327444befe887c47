package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// figure is one measured row of one round.
type figure struct {
	Name    string  `json:"name"`
	Clients int     `json:"clients"`
	Round   int     `json:"round"`
	Unit    string  `json:"unit"`
	N       int     `json:"n"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99,omitempty"`
	Max     float64 `json:"max,omitempty"`
	Ceiling string  `json:"ceiling,omitempty"` // name of the figure, with as many clients, that this one cannot beat
	Machine machine `json:"machine"`
}

// machine is what the figures were measured on.
type machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func thisMachine() machine {
	m := machine{CPU: "unknown", CPUs: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	return m
}

// report collects the figures of all rounds.
type report struct {
	machine machine
	round   int
	figures []figure
}

// times adds the distribution of samples in microseconds.
func (r *report) times(name string, clients int, ceiling string, samples []time.Duration) {
	slices.Sort(samples)
	r.add(figure{
		Name: name, Clients: clients, Unit: "us", N: len(samples), Ceiling: ceiling,
		P50: micros(quantile(samples, 50)), P99: micros(quantile(samples, 99)), Max: micros(quantile(samples, 100)),
	})
}

// add keeps a figure of the current round.
func (r *report) add(f figure) {
	f.Round, f.Machine = r.round, r.machine
	r.figures = append(r.figures, f)
}

// quantile returns the smallest sorted sample that percent of all are not above, zero without samples.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func (r *report) writeJSON(path string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(file)
	out := json.NewEncoder(buffered)
	for _, f := range r.figures {
		if err = out.Encode(f); err != nil {
			break
		}
	}
	if flushing := buffered.Flush(); err == nil {
		err = flushing
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	return err
}

// medians joins the rounds: each number is the median of the rounds' numbers, n is their sum, the order is that of the first round.
func (r *report) medians() []figure {
	type place struct {
		name    string
		clients int
	}
	rounds := map[place][]figure{}
	var order []place
	for _, f := range r.figures {
		p := place{f.Name, f.Clients}
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
		var p50, p99, top []float64
		for _, one := range same {
			f.N += one.N
			p50, p99, top = append(p50, one.P50), append(p99, one.P99), append(top, one.Max)
		}
		f.P50, f.P99, f.Max = median(p50), median(p99), median(top)
		joined = append(joined, f)
	}
	return joined
}

func median(values []float64) float64 {
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

// print writes the medians as a Markdown table, so that a page can take it as it is.
func (r *report) print(w io.Writer) error {
	joined := r.medians()
	fmt.Fprintf(w, "%s, %d CPUs, Linux %s, %s; medians of %d rounds\n\n", r.machine.CPU, r.machine.CPUs, r.machine.Kernel, r.machine.Go, r.round)
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(table, "| what\t| clients\t| unit\t| p50\t| p99\t| max\t| n\t| ceiling\t| of it\t|")
	fmt.Fprintln(table, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, f := range joined {
		ceiling, share := "-", "-"
		for _, c := range joined {
			if c.Name == f.Ceiling && c.Clients == f.Clients && f.P50 > 0 {
				ceiling, share = fmt.Sprintf("%s, %s", c.Name, number(c.P50)), fmt.Sprintf("%.0f %%", 100*c.P50/f.P50)
			}
		}
		fmt.Fprintf(table, "| %s\t| %d\t| %s\t| %s\t| %s\t| %s\t| %d\t| %s\t| %s\t|\n",
			f.Name, f.Clients, f.Unit, number(f.P50), number(f.P99), number(f.Max), f.N, ceiling, share)
	}
	return table.Flush()
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
