package launch

import (
	"errors"
	"fmt"
	"slices"

	"orbitkv/bench/record"
)

// The devices.
const (
	OnCPU  = "cpu"
	OnCUDA = "cuda"
)

// The connectors of vLLM that the backend cpu may use.
const (
	OffloadingConnector = "offloading"
	SimpleConnector     = "simple"
)

// Spec is one engine with one backend, as it is to be started.
type Spec struct {
	Options     record.Options
	Backend     string
	Pass        int
	Attempt     int
	Control     bool                     // a start to attribute a difference; only kept with the launch
	Manager     string                   // path of the orbitkv program: it serves as the Cache Manager and as the guard of each process
	MaxModelLen int                      // tokens of the longest request, answer included
	MaxSeqs     int                      // requests that the engine runs at a time
	LogPath     func(part string) string // where the output of a part goes; the folder must exist
	SSDFolder   string                   // where the Manager's SSD tier lies; the Manager makes it. Its owner removes it
	Model       record.Model
}

// check says what of a Spec cannot be started.
func (s *Spec) check() error {
	o := &s.Options
	switch {
	case o.Engine != record.VLLM && o.Engine != record.SGLang:
		return fmt.Errorf("launch: there is no engine %q: name %s or %s", o.Engine, record.VLLM, record.SGLang)
	case !slices.Contains([]string{record.Native, record.CPU, record.OrbitKV, record.LMCache, record.FlexKV}, s.Backend):
		return fmt.Errorf("launch: there is no backend %q: name %s, %s, %s, %s or %s", s.Backend, record.Native, record.CPU, record.OrbitKV, record.LMCache, record.FlexKV)
	case o.Device != OnCPU && o.Device != OnCUDA:
		return fmt.Errorf("launch: there is no device %q: name %s or %s", o.Device, OnCPU, OnCUDA)
	case o.Engine == record.VLLM && s.Backend == record.CPU && o.CPUConnector != OffloadingConnector && o.CPUConnector != SimpleConnector:
		return fmt.Errorf("launch: vLLM has no CPU connector %q: name %s or %s", o.CPUConnector, OffloadingConnector, SimpleConnector)
	case o.PageSize <= 0 || o.GPUTokens < o.PageSize || o.GPUTokens%o.PageSize != 0:
		return fmt.Errorf("launch: %d tokens of device memory are not whole pages of %d: take a multiple of the page size", o.GPUTokens, o.PageSize)
	case s.MaxModelLen <= 0 || s.MaxModelLen > o.GPUTokens:
		return fmt.Errorf("launch: requests of up to %d tokens do not fit into device memory for %d: give more device tokens or shorter prompts", s.MaxModelLen, o.GPUTokens)
	case s.MaxSeqs <= 0 || o.PrefillTokens <= 0:
		return errors.New("launch: the requests at a time and the prefill tokens must be above 0")
	case s.Backend != record.Native && o.HostGiB <= 0:
		return fmt.Errorf("launch: the backend %s needs host memory: give it more than 0 GiB", s.Backend)
	case o.QueryBudgetGiB < 0 || o.QueryBudgetGiB > o.HostGiB:
		return fmt.Errorf("launch: a query budget of %g GiB is not within the %g GiB of host memory", o.QueryBudgetGiB, o.HostGiB)
	case s.Backend == record.OrbitKV && o.SSDGiB > 0 && s.SSDFolder == "":
		return errors.New("launch: an SSD tier needs a folder: name one")
	case s.LogPath == nil || s.Manager == "" || o.EnginePython == "" || o.Model == "":
		return errors.New("launch: the engine's Python, the model, the orbitkv program and the place of logs must all be named")
	}
	return nil
}

// StartError says why a stack did not become ready. Nothing of it is left running.
type StartError struct {
	Part   string // engine, manager or lmcache
	Reason string // the last meaningful line of its log, or what was waited for in vain
	Log    string // path of its log, as LogPath gave it
}

// Error implements error.
func (e *StartError) Error() string {
	return fmt.Sprintf("the %s did not start: %s; its whole log is %s", e.Part, e.Reason, e.Log)
}
