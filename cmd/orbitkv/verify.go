package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"orbitkv/internal/admin"
	"orbitkv/internal/config"
)

// verifyWait is for the invariants: a verification reads every page record, and waits for its turn.
const verifyWait = 60 * time.Second

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the invariants of the running Manager, or the pages of an SSD",
		Long: "Check the invariants of the running Manager, or the pages of an SSD.\n\n" +
			"Without --ssd and --ssd-cache-path the Manager answers no engine while it reads every page record, about one second for each million pages;\n" +
			"engines compute meanwhile what they would restore. It runs one check at a time and rests after each.\n\n" +
			"With --ssd the running Manager reads every page of its SSD and compares it with its digest, behind what engines wait for. It needs the Manager's\n" +
			"token. With --ssd-cache-path the folder of a Manager that was stopped is read. What differs is named and forgotten: it is a miss from then on.\n\n" +
			"The exit status is 0 when everything is right, and 1 otherwise.",
		Args: cobra.NoArgs,
	}
	addFlags(cmd, config.FlagHTTP, config.FlagSocket, config.FlagToken)
	v := ssdVerification{}
	cmd.Flags().BoolVar(&v.running, "ssd", false, "let the running Manager read every page of its SSD")
	cmd.Flags().StringVar(&v.folder, folderFlag, "", "read the folder of a Manager that was stopped")
	cmd.Flags().BoolVar(&v.rebuild, "rebuild-index", false, "with --"+folderFlag+": first make the index anew from the pages themselves")
	cmd.Flags().StringVar(&v.rate, "rate", "0", "bytes to read in a second, such as 200mib; 0 for as fast as it goes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if v.wanted(cmd) {
			return v.run(cmd)
		}
		return verifyInvariants(cmd)
	}
	return cmd
}

func verifyInvariants(cmd *cobra.Command) error {
	body, err := ask(cmd, "/verify", verifyWait)
	if err != nil {
		return err
	}
	var found admin.Verification
	if err := json.Unmarshal(body, &found); err != nil {
		return fmt.Errorf("the verification cannot be read: %w: is another program at this address, or another release?", err)
	}
	if found.Violations == nil || found.OK != (len(found.Violations) == 0) {
		return fmt.Errorf("the answer is no verification of a Cache Manager: is another program at this address?")
	}
	for _, v := range found.Violations {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "invariant %d is broken: %s\n", v.Invariant, v.Text); err != nil {
			return err
		}
	}
	if !found.OK {
		return errSilent
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "every invariant holds")
	return err
}
