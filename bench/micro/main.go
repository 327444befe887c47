// Command micro measures the Cache Manager without an engine: calls over the socket of a real `orbitkv serve`, and the cache's own
// tables in process. It passes and fails nothing; each figure stands beside its ceiling.
//
// It owns the scenarios and their report: a table for people and one JSON line a figure for programs. Sections run in order, every
// second round in the opposite order, so that a machine that warms up or tires shows in the rounds and not in the comparison.
//
// Concurrency: sections run one after the other; inside one, each client is a goroutine with its own connections, and what it measured
// is joined when all have ended. It must not be imported, and the Manager that it starts is stopped before it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	binary     string
	jsonPath   string
	only       *regexp.Regexp
	rounds     int
	rowTime    time.Duration
	indexPages int
	poolBytes  uint64
}

// section is one group of figures that share a Manager or a filled cache.
type section struct {
	name string
	run  func(context.Context, options, *report) error
}

func sections() []section {
	return []section{
		{"ping", measurePing},
		{"bytes", measureBytes},
		{"query", measureQuery},
		{"publish", measurePublish},
		{"reclaim", measureReclaim},
		{"index", measureIndex},
	}
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == echoVerb {
		exitOn(serveEcho(os.Args[2], os.Stdin))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	exitOn(err)
}

func exitOn(err error) {
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "micro:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string, out io.Writer) error {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	r := &report{machine: thisMachine()}
	for round := range o.rounds {
		order := sections()
		if round%2 == 1 {
			slices.Reverse(order)
		}
		r.round = round + 1
		for _, s := range order {
			if !o.only.MatchString(s.name) {
				continue
			}
			fmt.Fprintf(os.Stderr, "micro: round %d of %d: %s\n", r.round, o.rounds, s.name)
			if err := s.run(ctx, o, r); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	if o.jsonPath != "" {
		if err := r.writeJSON(o.jsonPath); err != nil {
			return err
		}
	}
	return r.print(out)
}

func parse(arguments []string) (options, error) {
	var o options
	var only string
	flags := flag.NewFlagSet("micro", flag.ContinueOnError)
	flags.StringVar(&o.binary, "orbitkv", "bin/orbitkv", "the Manager's `binary`, made by make build")
	flags.StringVar(&o.jsonPath, "json", "", "`file` to append one JSON line a figure to")
	flags.StringVar(&only, "only", "", "`pattern` of the sections to run: ping, bytes, query, publish, reclaim, index")
	flags.IntVar(&o.rounds, "rounds", 3, "`times` that all sections run, every second time in the opposite order")
	flags.DurationVar(&o.rowTime, "time", 3*time.Second, "`duration` of each figure")
	flags.IntVar(&o.indexPages, "index-pages", 10_000_000, "`pages` of the index section")
	flags.Uint64Var(&o.poolBytes, "pool", 4<<30, "`bytes` of the Manager's pool; at least 4 GiB for the full set of queries")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.rounds < 1 || o.indexPages < queryKeysMax || o.poolBytes < poolBytesMin {
		return o, fmt.Errorf("want no further arguments, 1 round, %d index pages and a pool of %d bytes at least", queryKeysMax, uint64(poolBytesMin))
	}
	pattern, err := regexp.Compile(only)
	o.only = pattern
	return o, err
}
