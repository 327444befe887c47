package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"orbitkv/internal/config"
	"orbitkv/internal/daemon"
	"orbitkv/internal/doctor"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the Cache Manager of this host",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig(cmd)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
			defer stop()
			signal.Ignore(syscall.SIGPIPE) // the end of whoever reads the log is not the end of the cache
			lines := newLogQueue(os.Stderr)
			defer lines.Close()
			log := slog.New(newLimiter(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: cfg.LogLevel})))
			for _, name := range config.UnknownVariables(os.Environ()) {
				log.Warn("nothing reads this variable: look for its right name in docs/reference/configuration.md, or unset it", "variable", name)
			}
			return daemon.Run(ctx, daemon.Options{Config: cfg, Version: versionText(), Log: log, Timeline: lines})
		},
	}
	addFlags(cmd, allFlags...)
	return cmd
}

// endSignals is what ends the Manager in order. SIGHUP, the end of the terminal, is among them unless whoever started it had it ignored (nohup).
func endSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// allFlags is every flag of serve, in the order of the table.
var allFlags = func() (flags []string) {
	for _, k := range config.Keys {
		if k.Flag != "" {
			flags = append(flags, k.Flag)
		}
	}
	return flags
}()

// addFlags gives a verb flags of the table. Their values stay text, which config.Read checks.
func addFlags(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		key := config.Find(flag)
		usage := key.Meaning + " Environment: " + key.Environment + ". Default: " + key.Default
		if bounds := key.Bounds(); bounds != "" {
			usage += ". Bounds: " + bounds
		}
		usage = strings.ReplaceAll(usage, "`", "") // pflag would show a quoted word as the flag's type.
		switch key.Unit {
		case "switch":
			cmd.Flags().VarPF(&text{kind: "bool"}, flag, "", usage).NoOptDefVal = "true"
		case "paths":
			cmd.Flags().Var(&list{text: text{kind: "path"}}, flag, usage)
		default:
			cmd.Flags().Var(&text{kind: "value"}, flag, usage)
		}
	}
}

// list is a flag that may be written several times.
type list struct {
	text
	written bool
}

// Set implements pflag.Value.
func (l *list) Set(value string) error {
	if l.written {
		value = l.value + config.PathSeparator + value
	}
	l.value, l.written = value, true
	return nil
}

// text is a flag's value as it was written, and the word behind the flag in the help, where pflag leaves out "bool".
type text struct{ value, kind string }

// String implements pflag.Value.
func (t *text) String() string { return t.value }

// Set implements pflag.Value.
func (t *text) Set(value string) error {
	t.value = value
	return nil
}

// Type implements pflag.Value.
func (t *text) Type() string { return t.kind }

func readConfig(cmd *cobra.Command) (config.Config, error) {
	allowed, err := doctor.AllowedMemory(os.DirFS("/"))
	if err != nil {
		return config.Config{}, err
	}
	return config.Read(flagsOf(cmd), os.LookupEnv, doctor.DefaultPoolBytes(allowed.Bytes))
}

// flagsOf says what was written on the command line.
func flagsOf(cmd *cobra.Command) config.Source {
	return func(name string) (string, bool) {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || !flag.Changed {
			return "", false
		}
		return flag.Value.String(), true
	}
}
