package main

import (
	"os"

	"github.com/spf13/cobra"

	"orbitkv/internal/config"
	"orbitkv/internal/doctor"
)

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine offers, line by line good or bad with the fix",
		Args:  cobra.NoArgs,
	}
	addFlags(cmd, config.FlagSocket, config.FlagPoolSize, config.FlagHugePages, config.FlagSSDPath, config.FlagSSDCapacity, config.FlagSSDBackend)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := readConfig(cmd)
		if err != nil {
			return err
		}
		named, _ := flagsOf(cmd)(config.FlagSocket)
		options := doctor.Options{PoolBytes: cfg.PoolBytes, HugePages: cfg.HugePages, UID: os.Geteuid(), SSD: doctor.SSD{
			Paths: cfg.SSD.Paths, CapacityBytes: cfg.SSD.CapacityBytes, RingOnly: cfg.SSD.Backend == config.BackendUring, NoRing: cfg.SSD.Backend == config.BackendPool,
		}}
		if _, written := flagsOf(cmd)(config.FlagPoolSize); !written && os.Getenv(config.Find(config.FlagPoolSize).Environment) == "" {
			options.PoolBytes = 0 // The doctor takes the default itself, and says so.
		}
		if cfg.SSD.CapacityDefault {
			options.SSD.DefaultCapacity = config.Find(config.FlagSSDCapacity).Default
		}
		for _, p := range config.SocketPaths(named, os.LookupEnv) {
			options.Sockets = append(options.Sockets, doctor.Socket{Source: p.Source, Path: p.Path})
		}
		lines := doctor.Run(options)
		write := doctor.Print
		if *asJSON {
			write = doctor.PrintJSON
		}
		if err := write(cmd.OutOrStdout(), lines); err != nil {
			return err
		}
		if doctor.AnyBad(lines) {
			return errSilent
		}
		return nil
	}
	return cmd
}
