package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"orbitkv/bench/launch"
	"orbitkv/bench/record"
	"orbitkv/bench/report"
	"orbitkv/bench/single"
)

// gpuNode is there on hosts with a GPU whose driver is loaded.
const gpuNode = "/dev/nvidiactl"

func singleNodeCommand() *cobra.Command {
	ask := single.Defaults()
	cmd := &cobra.Command{
		Use:   "single-node",
		Short: "Measure cache backends on one engine, with the evidence for where each prompt's KV came from",
		Long: "Starts the engine with each backend in turn, sends every request of the workload over HTTP, and keeps what came of it in --output:\n" +
			"manifest.json (command lines, versions, machine), samples.jsonl and windows.jsonl (every request with its counters), logs, and the reports\n" +
			"summary.json and report.html. A sample counts as an external hit only where counters and restored bytes establish it.\n\n" +
			"Exit status 0 says that everything was measured and given back. A backend that cannot start is kept as a failure with its reason.",
		Example: "  orbitkv bench single-node --engine vllm --backend native,cpu,orbitkv --model /models/qwen3-8b \\\n" +
			"      --engine-python /venv/bin/python --output results/latency\n" +
			"  orbitkv bench single-node ... --order pairs --part-seconds 600 --output results/latency --resume",
		Args: flagsAlone,
	}
	singleNodeFlags(cmd.Flags(), &ask)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ask.Written = map[string]bool{}
		cmd.Flags().Visit(func(f *pflag.Flag) { ask.Written[f.Name] = true })
		if ask.Output == "" && !ask.Resume {
			ask.Output = fmt.Sprintf("orbitkv-bench-%s-%s", ask.Engine, time.Now().UTC().Format("20060102T150405Z"))
		}
		program, err := os.Executable()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals()...)
		defer stop()
		context.AfterFunc(ctx, stop) // A second signal ends the program at once; its processes end with it.
		return single.Measure(ctx, ask, single.ThisHost(program, version), os.Args, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// singleNodeFlags declares every flag; the defaults stand in the Ask.
func singleNodeFlags(f *pflag.FlagSet, ask *single.Ask) {
	f.StringVar(&ask.Engine, "engine", "", "`engine`: vllm or sglang")
	f.StringSliceVar(&ask.Backends, single.FlagBackend, ask.Backends, "one or several `backends`: native, cpu, orbitkv, lmcache, flexkv")
	f.StringVar(&ask.Model, "model", "", "`folder` of the checkpoint")
	f.StringVar(&ask.EnginePython, "engine-python", ask.EnginePython, "`path` of the Python that the engine is installed for")
	f.StringVar(&ask.Device, "device", deviceOfHost(), "`device` of the engine: cpu or cuda")
	f.StringArrayVar(&ask.EngineArguments, "engine-arg", nil, "further `argument` of the engine; may be repeated")
	f.StringVar(&ask.CPUConnector, single.FlagCPUConnector, ask.CPUConnector, "vLLM's `connector` for the backend cpu: offloading or simple")
	f.StringVar(&ask.Workload, "workload", ask.Workload, "`workload`: latency, partial, concurrent or sustained")
	f.IntSliceVar(&ask.Lengths, single.FlagLengths, ask.Lengths, "`tokens` of the prompts")
	f.IntVar(&ask.Repeats, single.FlagRepeats, ask.Repeats, "independent `prefixes` of each length")
	f.IntVar(&ask.OutputTokens, "output-tokens", ask.OutputTokens, "`tokens` of each answer")
	f.IntVar(&ask.GPUTokens, single.FlagGPUTokens, ask.GPUTokens, "`tokens` that device memory holds")
	f.IntVar(&ask.PageSize, single.FlagPageSize, ask.PageSize, "`tokens` of a page; vLLM's block size")
	f.IntVar(&ask.PrefillTokens, "prefill-tokens", ask.PrefillTokens, "`tokens` of one step of the engine")
	f.IntVar(&ask.PressureTokens, single.FlagPressure, 0, "`tokens` of a pressure request (default three quarters of --gpu-tokens)")
	f.Float64Var(&ask.HostGiB, single.FlagHostGiB, ask.HostGiB, "`GiB` of host memory for the external cache's payload")
	f.Float64Var(&ask.QueryBudgetGiB, single.FlagQueryBudget, 0, "`GiB` that queries of OrbitKV may hold (default of the Manager)")
	f.Float64Var(&ask.SSDGiB, single.FlagSSDGiB, 0, "`GiB` of SSD behind OrbitKV's host memory, in the output folder; adds the phase in which hits come from it")
	f.StringVar(&ask.SSDWritePolicy, single.FlagWritePolicy, "", "`policy` of what OrbitKV writes to it: all or reuse (default of the Manager)")
	f.IntVar(&ask.ProtectedPercent, single.FlagProtected, 0, "`percent` of OrbitKV's host memory that prefixes hit before are kept in, 0 to 90")
	f.IntVar(&ask.ReadBatchMiB, single.FlagReadBatch, 0, "`MiB` of unfinished SSD reads that one query of OrbitKV may have (default of the Manager)")
	f.StringVar(&ask.StopPolicy, single.FlagStopPolicy, "", "`policy` of when a query of OrbitKV takes what is read: wait_complete, best_effort or timeout (default of the Manager)")
	f.IntVar(&ask.ReadTimeoutMs, single.FlagReadTimeout, 0, "`ms` after which it does, with --stop-policy timeout")
	f.StringVar(&ask.QueueWarmup, "queue-warmup", ask.QueueWarmup, "`on or off`: reads for queued requests; on is refused by this version")
	f.StringVar(&ask.TransferBackend, single.FlagTransfer, "", "OrbitKV's transfer `backend`: auto, host, direct or kernel (default auto)")
	f.BoolVar(&ask.TraceTransfers, single.FlagTrace, false, "keep the timeline of OrbitKV's restores")
	f.IntSliceVar(&ask.Concurrencies, single.FlagConcurrencies, ask.Concurrencies, "`requests` at a time")
	f.IntVar(&ask.DurationSeconds, single.FlagDuration, ask.DurationSeconds, "`seconds` in which a sustained window admits requests")
	f.IntVar(&ask.MaxRequests, single.FlagMaxRequests, ask.MaxRequests, "`requests` that a sustained window admits at most")
	f.IntVar(&ask.WorkingSet, single.FlagWorkingSet, ask.WorkingSet, "`prefixes` that are stored before a sustained window")
	f.Float64Var(&ask.ReuseRatio, single.FlagReuseRatio, ask.ReuseRatio, "`share` of a sustained window's requests that ask for one of them")
	f.Float64Var(&ask.SLOTTFTms, single.FlagSLOTTFT, 0, "goodput counts requests whose first text came within `ms`")
	f.Float64Var(&ask.SLOTPOTms, single.FlagSLOTPOT, 0, "goodput counts requests whose further tokens came within `ms` each")
	f.Float64Var(&ask.SettleSeconds, "settle-seconds", ask.SettleSeconds, "least `seconds` between two serial requests")
	f.Int64Var(&ask.Seed, "seed", ask.Seed, "`number` that all prompts follow from")
	f.StringVar(&ask.Order, "order", ask.Order, "`order`: forward, reversed, or pairs (both, backends and lengths turned round in the second pass)")
	f.StringVar(&ask.Output, single.FlagOutput, "", "`folder` of the run, absent or empty (default orbitkv-bench-ENGINE-TIME)")
	f.BoolVar(&ask.Resume, single.FlagResume, false, "go on with the run in --output, which was asked for by the same flags")
	f.IntVar(&ask.PartSeconds, "part-seconds", 0, "end before so many `seconds`, the last 20 of which are kept for the end of the backend; --resume goes on (default no limit)")
}

// deviceOfHost is the device that an engine here most likely has.
func deviceOfHost() string {
	if _, err := os.Stat(gpuNode); err == nil {
		return launch.OnCUDA
	}
	return launch.OnCPU
}

func compareCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare FOLDER FOLDER...",
		Short: "Compare the runs in two or more output folders of bench single-node",
		Long: "Pairs samples of equal seed, length, prefix, phase and pass, says what differs between the machines, versions and options, and refuses runs of\n" +
			"different engines or models: their figures do not differ by the cache alone.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return fmt.Errorf("%d folders are named: name two or more output folders of `orbitkv bench single-node`", len(args))
			}
			return nil
		},
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var runs []*record.Run
		for i, path := range args {
			if err := notTwice(args[:i], path); err != nil {
				return err
			}
			run, err := record.Load(path)
			if err != nil {
				return err
			}
			runs = append(runs, run)
		}
		comparison, err := report.Compare(runs)
		if err != nil {
			return err
		}
		if *asJSON {
			return report.WriteJSON(cmd.OutOrStdout(), comparison)
		}
		return report.WriteComparison(cmd.OutOrStdout(), comparison)
	}
	return cmd
}

func reportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "report FOLDER",
		Short: "Make the tables, summary.json and report.html of an output folder again",
		Long: "Reads the rows that `orbitkv bench single-node` kept in a folder, prints its tables and writes summary.json and report.html anew: after an\n" +
			"upgrade, or where a run was killed before it wrote them. No row is changed, and nothing is measured.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%d folders are named: name one output folder of `orbitkv bench single-node`", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return single.Publish(args[0], cmd.OutOrStdout()) },
	}
}

// notTwice refuses a folder that was named before, by whatever path: a run differs from itself in nothing.
func notTwice(before []string, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil // whoever reads the folder says why not
	}
	for _, other := range before {
		if known, err := os.Stat(other); err == nil && os.SameFile(known, info) {
			return fmt.Errorf("%s and %s are one folder: name two or more output folders of `orbitkv bench single-node`", other, path)
		}
	}
	return nil
}
