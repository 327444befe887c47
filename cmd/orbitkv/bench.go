package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// benchCommand gathers what measures: engines with their cache backends, and OrbitKV's own parts.
func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure cache backends on a real engine, and OrbitKV's parts beside their ceilings",
		Long: "Measures and keeps the evidence. Every verb says how often it measured, what a figure's ceiling is, and which figures it could\n" +
			"not verify. Nothing else should use the machine meanwhile.",
		Args: knownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(flagError)
	cmd.AddCommand(append(microCommands(), singleNodeCommand(), compareCommand(), reportCommand())...)
	return cmd
}

// knownVerb refuses a word in the place of a verb; cobra calls it only where no verb has that name.
func knownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var verbs []string
	for _, verb := range cmd.Commands() {
		if verb.IsAvailableCommand() {
			verbs = append(verbs, verb.Name())
		}
	}
	return fmt.Errorf("`%s` has no verb %q: name one of %s", cmd.CommandPath(), args[0], strings.Join(verbs, ", "))
}

// flagsAlone refuses words that belong to no flag.
func flagsAlone(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q belongs to no flag, and `%s` takes flags alone: several values of one flag are joined by commas without blanks; `%s --help` lists the flags",
		args[0], cmd.CommandPath(), cmd.CommandPath())
}

// wanted says what a flag takes, by the type of its value.
var wanted = map[string]string{
	"bool": "true or false", "int": "a whole number", "int64": "a whole number", "float64": "a number", "intSlice": "whole numbers joined by commas",
	"stringSlice": "words joined by commas", "duration": "a time with its unit, such as 3s or 500ms",
}

// flagError says which flag cannot be read, what was written and what is wanted.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if wants := wanted[invalid.GetFlag().Value.Type()]; wants != "" {
			return fmt.Errorf("--%s: %q cannot be read: give %s", invalid.GetFlag().Name, invalid.GetValue(), wants)
		}
	}
	return fmt.Errorf("%w: `%s --help` lists the flags", err, cmd.CommandPath())
}
