package launch

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// bindVariable tells vLLM's CPU build which processors its worker computes on.
const bindVariable = "VLLM_CPU_OMP_THREADS_BIND"

// workerCores is what bindVariable is set to for every backend: of the processors that this process may use, all but the last one, which stays free for
// the engine's other processes. Left to itself, vLLM keeps one more free where a connector is configured, and a backend with one would compute on fewer
// cores than one without. Empty, which leaves the choice as it is, where the caller's environment makes it or the kernel does not tell.
func workerCores() string {
	var set unix.CPUSet
	if _, chosen := os.LookupEnv(bindVariable); chosen || unix.SchedGetaffinity(0, &set) != nil {
		return ""
	}
	var allowed []int
	for cpu := 0; len(allowed) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return allButLast(allowed)
}

// allButLast writes processors for vLLM, without the last one where there are several.
func allButLast(cpus []int) string {
	words := make([]string, 0, len(cpus))
	for _, cpu := range cpus[:max(min(len(cpus), 1), len(cpus)-1)] {
		words = append(words, strconv.Itoa(cpu))
	}
	return strings.Join(words, ",")
}
