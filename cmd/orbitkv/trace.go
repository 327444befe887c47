package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"orbitkv/bench/page"
	"orbitkv/internal/trace"
)

// traceAsk is what a user asked of the trace.
type traceAsk struct {
	html    string
	request string
	show    int
}

func traceCommand() *cobra.Command {
	var ask traceAsk
	cmd := &cobra.Command{
		Use:   "trace FILE...",
		Short: "Show what happened to requests, from the logs of engines and the Manager",
		Long: "trace reads the cache_timeline records in logs of engines and of the Cache Manager, which both write with ORBITKV_TRACE_TRANSFERS=1, and joins those of one\n" +
			"request: when it was queued, read from the SSD, copied to the device and first used. - reads the standard input.\n" +
			"Times of two processes stand on one axis only where both say that they read the same clock (boot and time namespace).",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error { return ask.run(cmd, files) },
	}
	f := cmd.Flags()
	f.StringVar(&ask.html, "html", "", "write the waterfalls into this file, too, as a page that needs nothing else")
	f.StringVar(&ask.request, "request", "", "show only requests whose id has this text in it")
	f.IntVar(&ask.show, "show", 20, "how many requests to show, those that took longest first; the figures below are of all")
	return cmd
}

func (a *traceAsk) run(cmd *cobra.Command, files []string) error {
	if a.show < 0 {
		return fmt.Errorf("--show is %d, and must not be below 0", a.show)
	}
	all, err := readTraces(cmd.InOrStdin(), files)
	if err != nil {
		return err
	}
	shown := all.Longest(a.show, func(q *trace.Request) bool { return strings.Contains(q.ID, a.request) })
	if len(shown) == 0 && a.show > 0 {
		return fmt.Errorf("no request has %q in its id: --show 20 without --request lists some of the %d", a.request, len(all.Requests))
	}
	if err := all.WriteText(cmd.OutOrStdout(), shown); err != nil || a.html == "" {
		return err
	}
	var out bytes.Buffer
	if err := page.WriteTrace(&out, all, shown, versionText()); err != nil {
		return err
	}
	if err := os.WriteFile(a.html, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// readTraces reads every file that is named. Without any record it says what to switch on.
func readTraces(standard io.Reader, files []string) (*trace.Trace, error) {
	c := trace.NewCollector()
	for _, name := range files {
		if err := readTrace(c, standard, name); err != nil {
			return nil, err
		}
	}
	all := c.Trace()
	if len(all.Requests) > 0 {
		return all, nil
	}
	if all.Damaged > 0 {
		return nil, fmt.Errorf("no record can be read; %s", strings.Join(all.Summary()[1:], "\n"))
	}
	return nil, fmt.Errorf("%s: no cache_timeline record of a request: start engine and Manager with ORBITKV_TRACE_TRANSFERS=1, and name their logs", strings.Join(files, ", "))
}

func readTrace(c *trace.Collector, standard io.Reader, name string) (err error) {
	if name == "-" {
		return c.Read("standard input", standard)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return c.Read(name, file)
}
