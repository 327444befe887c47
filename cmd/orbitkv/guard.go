package main

import (
	"github.com/spf13/cobra"

	"orbitkv/bench/launch"
)

// guardCommand is how a measurement runs an engine, so that it ends with the measurement. It is nothing for people, so the help leaves it out.
func guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    launch.GuardVerb + " -- COMMAND",
		Short:  "Run one process of a measurement and see to its end",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		RunE:   func(_ *cobra.Command, command []string) error { return launch.Guard(command) },
	}
}
