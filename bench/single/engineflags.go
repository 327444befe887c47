package single

import (
	"errors"
	"fmt"
	"strings"

	"orbitkv/bench/record"
)

// engineFlags are the engine's own flags that a measurement sets, and what says it instead; empty where nothing does. How many requests an engine runs at
// a time is not among them: it may be raised.
var engineFlags = map[string]map[string]string{
	record.VLLM: {
		"host": "", "port": "", "model": "--model", "dtype": "", "seed": "", "max-model-len": "--" + FlagLengths + " and --" + FlagPressure,
		"max-num-batched-tokens": "--prefill-tokens", "block-size": "--" + FlagPageSize, "num-gpu-blocks-override": "--" + FlagGPUTokens,
		"enable-prefix-caching": "", "no-enable-prefix-caching": "", "prefix-caching-hash-algo": "", "kv-transfer-config": "--" + FlagBackend,
		"enable-prompt-tokens-details": "", "no-enable-prompt-tokens-details": "",
	},
	record.SGLang: {
		"host": "", "port": "", "model": "--model", "model-path": "--model", "dtype": "", "random-seed": "", "context-length": "--" + FlagLengths + " and --" + FlagPressure,
		"chunked-prefill-size": "--prefill-tokens", "page-size": "--" + FlagPageSize, "max-total-tokens": "--" + FlagGPUTokens, "device": "--device",
		"skip-server-warmup": "", "enable-cache-report": "", "enable-metrics": "", "disable-radix-cache": "",
		"enable-hierarchical-cache": "--" + FlagBackend, "hicache-size": "--" + FlagHostGiB, "hicache-write-policy": "", "radix-cache-backend": "--" + FlagBackend,
		"enable-unified-cache-external-linker": "", "enable-lmcache": "--" + FlagBackend, "lmcache-config-file": "", "enable-flexkv": "--" + FlagBackend,
	},
}

// checkEngineArguments refuses what the engine would take twice, from the measurement and from the caller: the later one would decide, and what is
// measured would not be what the manifest says.
func checkEngineArguments(a *Ask) error {
	for _, word := range a.EngineArguments {
		if strings.TrimSpace(word) == "" {
			return errors.New("--engine-arg: an empty argument: write the engine's own flag, such as --engine-arg=--enforce-eager")
		}
		name, flag := strings.CutPrefix(word, "--")
		if !flag {
			continue
		}
		name, _, _ = strings.Cut(name, "=")
		name = strings.ReplaceAll(name, "_", "-")
		instead, ours := engineFlags[a.Engine][name]
		switch {
		case !ours:
		case instead == "":
			return fmt.Errorf("--engine-arg: the measurement sets %s's --%s itself, alike for every backend: leave it out", a.Engine, name)
		default:
			return fmt.Errorf("--engine-arg: the measurement sets %s's --%s itself: say it by %s", a.Engine, name, instead)
		}
	}
	return nil
}
