package single

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"orbitkv/bench/record"
)

// The names of what OrbitKV's Manager may be told of its SSD tier.
var (
	writePolicies = []string{"all", "reuse"}
	stopPolicies  = []string{"wait_complete", "best_effort", stopTimeout}
)

// stopTimeout is the policy that has a time.
const stopTimeout = "timeout"

func checkSSD(a *Ask) error {
	switch {
	case a.Written[FlagSSDGiB] && !(a.SSDGiB > 0) || !(a.SSDGiB >= 0 && a.SSDGiB <= hostGiBMax):
		return fmt.Errorf("--%s: %g: take more than 0, and at most %d; leave the flag out for no SSD tier", FlagSSDGiB, a.SSDGiB, hostGiBMax)
	case a.SSDWritePolicy != "" && !slices.Contains(writePolicies, a.SSDWritePolicy):
		return fmt.Errorf("--%s: there is no policy %q: name all or reuse, or leave the flag out for the Manager's own", FlagWritePolicy, a.SSDWritePolicy)
	}
	if a.SSDGiB > 0 {
		return nil
	}
	for _, name := range []string{FlagWritePolicy, FlagReadBatch, FlagStopPolicy, FlagReadTimeout} {
		if a.Written[name] {
			return fmt.Errorf("--%s: it is a matter of the SSD tier, and there is none: give it by --%s, or leave the flag out", name, FlagSSDGiB)
		}
	}
	return nil
}

// checkReads refuses what no query's reads could be bounded by.
func checkReads(a *Ask) error {
	switch {
	case a.Written[FlagReadBatch] && a.ReadBatchMiB < 1 || a.ReadBatchMiB < 0 || a.ReadBatchMiB > readBatchMax:
		return fmt.Errorf("--%s: %d: take between 1 and %d", FlagReadBatch, a.ReadBatchMiB, readBatchMax)
	case a.StopPolicy != "" && !slices.Contains(stopPolicies, a.StopPolicy):
		return fmt.Errorf("--%s: there is no policy %q: name wait_complete, best_effort or timeout, or leave the flag out for the Manager's own", FlagStopPolicy, a.StopPolicy)
	case a.StopPolicy == stopTimeout && a.ReadTimeoutMs == 0:
		return fmt.Errorf("--%s %s: no time is given: say by --%s after how many milliseconds a query takes what is read", FlagStopPolicy, stopTimeout, FlagReadTimeout)
	case a.ReadTimeoutMs != 0 && a.StopPolicy != stopTimeout:
		return fmt.Errorf("--%s: only --%s %s has a time: give that policy, or leave the flag out", FlagReadTimeout, FlagStopPolicy, stopTimeout)
	case a.ReadTimeoutMs < 0 || a.ReadTimeoutMs > readTimeoutMax:
		return fmt.Errorf("--%s: %d: take between 1 and %d", FlagReadTimeout, a.ReadTimeoutMs, readTimeoutMax)
	}
	return nil
}

func checkProtected(a *Ask) error {
	if a.ProtectedPercent < 0 || a.ProtectedPercent > protectedMax {
		return fmt.Errorf("--%s: %d: take between 0 and %d", FlagProtected, a.ProtectedPercent, protectedMax)
	}
	return nil
}

// checkDisk refuses an SSD tier that does not fit onto the disk of the output folder.
func (a *Ask) checkDisk(free func(path string) (uint64, error)) error {
	if a.SSDGiB == 0 {
		return nil
	}
	at := absolute(a.Output)
	for { // the folder itself may still have to be made
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	bytes, err := free(at)
	if err != nil {
		return err
	}
	if gib := float64(bytes) / (1 << 30); a.SSDGiB > gib {
		return fmt.Errorf("--%s: an SSD tier of %g GiB does not fit into the %.1f GiB that are free in %s, where --%s lies: take less, or name a folder on another disk",
			FlagSSDGiB, a.SSDGiB, gib, at, FlagOutput)
	}
	return nil
}

// ssdNotes says what a reader must know of an SSD tier beside the other sizes.
func (a *Ask) ssdNotes(m record.Model) []string {
	if a.SSDGiB == 0 {
		return nil
	}
	var all []string
	gibs := func(tokens int) float64 { return float64(tokens) * float64(m.BytesPerToken) / (1 << 30) }
	if a.Workload == record.WorkloadSustained {
		set := 0
		for i := range a.WorkingSet {
			set += a.Lengths[i%len(a.Lengths)]
		}
		if memory := gibs(a.GPUTokens) + a.HostGiB; gibs(set) <= memory {
			all = append(all, fmt.Sprintf("the working set is %.2f GiB, and device and host memory hold %.2f: nothing of it needs to come from the SSD; a larger --%s or a smaller --%s changes that",
				gibs(set), memory, FlagWorkingSet, FlagHostGiB))
		}
		if gibs(set) > a.SSDGiB {
			all = append(all, fmt.Sprintf("the working set is %.2f GiB and the SSD tier %g: it does not hold all of it", gibs(set), a.SSDGiB))
		}
		return all
	}
	if need := gibs(a.widest() + 2*pressureCount*a.PressureTokens); need > a.SSDGiB {
		all = append(all, fmt.Sprintf("a prompt and what presses it out twice need %.2f GiB and the SSD tier has %g: the prompt may be gone before it is asked for again", need, a.SSDGiB))
	}
	for _, backend := range a.Backends {
		if !a.Evicts(backend) {
			all = append(all, fmt.Sprintf("the host memory of %s cannot be emptied from outside: it has no phase %s", backend, record.AfterHostEviction))
		}
	}
	return all
}
