package main

import "github.com/spf13/cobra"

// benchCommand gathers what measures: engines with their cache backends, and OrbitKV's own parts.
func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure cache backends on a real engine, and OrbitKV's parts beside their ceilings",
		Long: "Measures and keeps the evidence. Every verb says how often it measured, what a figure's ceiling is, and which figures it could\n" +
			"not verify. Nothing else should use the machine meanwhile.",
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(append(microCommands(), singleNodeCommand(), compareCommand(), reportCommand())...)
	return cmd
}
