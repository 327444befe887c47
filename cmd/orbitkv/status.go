package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"orbitkv/internal/admin"
	"orbitkv/internal/config"
)

// Bounds of a look at a running Manager.
const (
	askWait        = 10 * time.Second
	answerBytesMax = 64 << 20
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who is attached to the running Manager, what is held and how full it is",
		Args:  cobra.NoArgs,
	}
	addFlags(cmd, config.FlagHTTP)
	asJSON := cmd.Flags().Bool("json", false, "print the whole status as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		body, err := ask(cmd, "/status", askWait)
		if err != nil {
			return err
		}
		if *asJSON {
			_, err := cmd.OutOrStdout().Write(body)
			return err
		}
		var status admin.Status
		if err := json.Unmarshal(body, &status); err != nil {
			return fmt.Errorf("the status cannot be read: %w: is another program at this address, or another release?", err)
		}
		if status.PID == 0 {
			return fmt.Errorf("the answer is no status of a Cache Manager: is another program at this address?")
		}
		return printStatus(cmd.OutOrStdout(), status)
	}
	return cmd
}

// absent says that nobody answers.
func absent(address string, err error) error {
	return fmt.Errorf("no Cache Manager answers at %s (%w): start one with `orbitkv serve`, or name its address with --%s", address, err, config.FlagHTTP)
}

// ask reads one page of the running Manager. An answer of /verify may have status 500: it is the finding.
func ask(cmd *cobra.Command, path string, wait time.Duration) (body []byte, err error) {
	address, err := config.HTTPAddress(flagsOf(cmd), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: wait}
	answer, err := client.Get("http://" + address + path)
	if err != nil {
		return nil, absent(address, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, answerBytesMax))
	if err != nil {
		return nil, fmt.Errorf("the answer of %s at %s broke off: %w: is another program there?", path, address, err)
	}
	if answer.StatusCode == http.StatusServiceUnavailable {
		return nil, fmt.Errorf("%s at %s: %s", path, address, strings.TrimSpace(string(body)))
	}
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusInternalServerError {
		err = fmt.Errorf("%s at %s answered %s: is another program there?", path, address, answer.Status)
	}
	return body, err
}
