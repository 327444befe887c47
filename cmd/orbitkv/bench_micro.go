package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"orbitkv/bench/micro"
	"orbitkv/internal/config"
)

// microCommands are the verbs below `orbitkv bench` that measure OrbitKV's own parts.
func microCommands() []*cobra.Command {
	return []*cobra.Command{benchChannelCommand(), benchPoolCommand(), benchSSDCommand(), benchEchoCommand()}
}

func benchChannelCommand() *cobra.Command {
	o := micro.ChannelOptions{}
	cmd := &cobra.Command{
		Use:   "channel",
		Short: "Measure calls over the socket of a real Cache Manager, beside a bare Unix socket",
		Long:  "Starts an `orbitkv serve` of this program with a socket of its own, measures pings, queries and publishing beside a bare Unix socket, and ends it.",
		Args:  flagsAlone,
	}
	read := microFlags(cmd, &o.Options, "ping, query, publish")
	pool := cmd.Flags().String("pool", "4gib", "size of the Manager's pool, of pages of 4 KiB")
	cmd.Flags().IntSliceVar(&o.Keys, "keys", []int{64, 512}, "keys of the queries")
	cmd.RunE = microRun(func(ctx context.Context) error {
		var err error
		if o.Program, err = os.Executable(); err == nil {
			err = errors.Join(read(), readSize("pool", *pool, &o.PoolBytes))
		}
		if err != nil {
			return err
		}
		return micro.Channel(ctx, o, cmd.OutOrStdout())
	})
	return cmd
}

func benchPoolCommand() *cobra.Command {
	o := micro.PoolOptions{}
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Measure the memory pool and the index in this process, beside plain memory",
		Long: "Measures how fast arenas are populated, copies into and out of their mappings with 1 and more threads, reserving and evicting, queries with a slower tier\n" +
			"below the pool, and the index's memory for each page, beside plain memory. Starts no Manager. Needs three times --pool of memory.",
		Args: flagsAlone,
	}
	read := microFlags(cmd, &o.Options, "populate, copy, reclaim, tier, index")
	pool := cmd.Flags().String("pool", "1gib", "size of the arenas that are populated and copied")
	cmd.Flags().IntVar(&o.IndexPages, "index-pages", 10_000_000, "pages of the index section")
	cmd.RunE = microRun(func(ctx context.Context) error {
		if err := errors.Join(read(), readSize("pool", *pool, &o.PoolBytes)); err != nil {
			return err
		}
		return micro.Pool(ctx, o, cmd.OutOrStdout())
	})
	return cmd
}

func benchSSDCommand() *cobra.Command {
	o := micro.SSDOptions{}
	cmd := &cobra.Command{
		Use:   "ssd FOLDER",
		Short: "Measure the SSD tier beside the disk below it: raw aligned reads and writes, the store, a hit behind writes, recovery",
		Long: "Makes a file in FOLDER, fills it, reads and writes it at random places with O_DIRECT by a pool of threads, and removes it; however the run ends, no page\n" +
			"is left. Then the SSD store of `orbitkv serve` does the same in folders of its own, with every byte compared; a demand read is timed behind a backlog of\n" +
			"writes on a disk that is slowed on purpose; and a store is opened that has many pages. Figures are only given where O_DIRECT really holds. It writes to the disk for as long as it runs.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%d folders are named: name the FOLDER on the disk to measure, as in `orbitkv bench ssd /mnt/cache`", len(args))
			}
			return nil
		},
	}
	read := microFlags(cmd, &o.Options, "read, write, store, backlog, recovery")
	size := cmd.Flags().String("size", "2gib", "size of the file, and of a store beside it")
	blocks := cmd.Flags().StringSlice("blocks", []string{"4kib", "128kib", "1mib", "9mib"}, "bytes of one read or write")
	cmd.Flags().IntSliceVar(&o.Depths, "depths", []int{1, 8, 32}, "reads or writes at a time")
	pages := cmd.Flags().StringSlice("pages", []string{"64kib", "256kib", "9mib"}, "bytes of the store's pages")
	cmd.Flags().StringSliceVar(&o.Engines, "engines", []string{"pool", "uring"}, "engines of the store: pool, uring")
	throttle := cmd.Flags().String("throttle", "200mib", "bytes a second that the disk of the section backlog reads, and writes")
	cmd.Flags().IntVar(&o.RecoveryPages, "recovery-pages", 100_000, "pages of the section recovery; each takes 36 KiB of the disk meanwhile")
	cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
		o.Path = arguments[0]
		return microRun(func(ctx context.Context) error {
			err := errors.Join(read(), readSize("size", *size, &o.FileBytes), readSize("throttle", *throttle, &o.Throttle),
				readSizes("blocks", *blocks, &o.Blocks), readSizes("pages", *pages, &o.Pages))
			if err != nil {
				return err
			}
			return micro.SSD(ctx, o, cmd.OutOrStdout())
		})(cmd, arguments)
	}
	return cmd
}

// readSizes reads the values of a flag that is a list of sizes.
func readSizes(flag string, texts []string, to *[]uint64) error {
	for _, text := range texts {
		var bytes uint64
		if err := readSize(flag, text, &bytes); err != nil {
			return err
		}
		*to = append(*to, bytes)
	}
	return nil
}

// benchEchoCommand is the other end of the bare byte exchange, for `orbitkv bench channel` alone.
func benchEchoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    micro.EchoVerb + " SOCKET",
		Short:  "Answer bytes with bytes on a Unix socket until SIGTERM",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
		return microRun(func(ctx context.Context) error { return micro.ServeEcho(ctx, arguments[0]) })(cmd, arguments)
	}
	return cmd
}

// microFlags gives a verb the flags that all of them have. The function that it returns reads those which are more than a value.
func microFlags(cmd *cobra.Command, o *micro.Options, sections string) (read func() error) {
	flags := cmd.Flags()
	flags.StringVar(&o.JSONPath, "json", "", "file to append one JSON line a figure and round to")
	flags.IntVar(&o.Rounds, "rounds", 3, "times that all sections run, every second time in the opposite order")
	flags.DurationVar(&o.RowTime, "time", 3*time.Second, "time of each figure in each round")
	only := flags.String("only", "", "regular expression of the sections to run: "+sections)
	o.Progress = os.Stderr
	return func() error {
		if *only == "" {
			return nil
		}
		var err error
		if o.Only, err = regexp.Compile(*only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		return nil
	}
}

// readSize reads the value of a flag that is a size.
func readSize(flag, text string, bytes *uint64) error {
	var err error
	if *bytes, err = config.ParseSize(text); err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}

// microRun gives a measurement a context that ends when the user interrupts it.
func microRun(measure func(context.Context) error) func(*cobra.Command, []string) error {
	return func(*cobra.Command, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
		defer stop()
		context.AfterFunc(ctx, stop) // A second signal ends the program at once, and its processes with it.
		return measure(ctx)
	}
}
