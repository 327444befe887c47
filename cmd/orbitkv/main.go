// Command orbitkv is the one binary of OrbitKV: the Cache Manager and the verbs that look at it.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// Set by the linker.
var (
	version = "dev"
	commit  = ""
)

// errSilent ends a verb that has printed what is wrong with a status other than zero.
var errSilent = errors.New("see above")

func main() {
	if err := root().Execute(); err != nil {
		if !errors.Is(err, errSilent) {
			fmt.Fprintln(os.Stderr, "orbitkv:", harmless(err.Error()))
		}
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "orbitkv",
		Short:         "External KV cache for LLM inference",
		Long:          "OrbitKV keeps the KV cache of LLM inference outside the engine. `orbitkv serve` runs the Cache Manager of this host.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: `%s --help` lists the flags", err, cmd.CommandPath())
	})
	cmd.AddCommand(serveCommand(), statusCommand(), verifyCommand(), doctorCommand(), benchCommand(), traceCommand(), versionCommand(), guardCommand())
	return cmd
}
