package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"orbitkv/internal/wire/schema"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the release, its commit and the ABI of the channel",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "orbitkv %s abi %d\n", versionText(), schema.ABI)
			return err
		},
	}
}

func versionText() string {
	if commit == "" {
		return version
	}
	return version + " (" + commit + ")"
}
