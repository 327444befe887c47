package single

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"orbitkv/bench/evidence"
	"orbitkv/bench/launch"
	"orbitkv/bench/record"
	"orbitkv/internal/doctor"
)

// tinyConfig is a model of 64 bytes of KV a token.
const tinyConfig = `{"model_type":"qwen3","num_hidden_layers":1,"num_attention_heads":1,"num_key_value_heads":1,"head_dim":16,"hidden_size":16,` +
	`"vocab_size":4096,"max_position_embeddings":16384}`

const tinyBytesPerToken = 64

// rig is a host whose engines are fakes in this process, with counters that are at rest at once.
type rig struct {
	*testing.T
	script   []rule
	refuse   map[string]*launch.StartError // backends that do not start
	hang     map[string]bool               // backends that never become ready
	restless bool                          // the counters never settle
	unrest   int                           // number of the one wait in which they do not
	leases   float64                       // that the Manager still holds at the end
	leased   int                           // pages that are still leased whenever its memory is emptied
	buffered bool                          // its SSD tier goes through the page cache
	deaf     bool                          // it refuses to empty its memory
	diskFree func(string) (uint64, error)  // what the disk of the output can still give
	sick     bool                          // the drain check and the end of a stack take all the time that they are given
	step     time.Duration                 // that the clock goes on at each look

	mu      sync.Mutex
	at      time.Time
	specs   []launch.Spec
	engines []*fakeEngine
	running int
	waits   int // for the counters
	cancel  context.CancelFunc
	out     bytes.Buffer
	errs    bytes.Buffer
}

func newRig(t *testing.T, script ...rule) *rig {
	free := func(string) (uint64, error) { return 64 << 30, nil }
	return &rig{T: t, script: script, at: time.Unix(1_800_000_000, 0), step: time.Millisecond, diskFree: free}
}

// small is what a test measures when it says nothing else: two backends, one length, two prefixes.
func (r *rig) small() Ask {
	ask := Defaults()
	ask.Engine, ask.Device, ask.Model, ask.Output = record.VLLM, launch.OnCPU, r.model(), filepath.Join(r.TempDir(), "out")
	ask.Backends, ask.Lengths, ask.Repeats = []string{record.Native, record.OrbitKV}, []int{256}, 2
	ask.GPUTokens, ask.OutputTokens, ask.SettleSeconds, ask.EnginePython = 2048, 4, 0, "/bin/sh"
	return ask
}

func (r *rig) model() string {
	folder := r.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(tinyConfig), 0o600); err != nil {
		r.Fatal(err)
	}
	return folder
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(r.step)
	return r.at
}

// pass lets time go by.
func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(d)
}

func (r *rig) host() Host {
	host := ThisHost("/proc/self/exe", "test")
	host.Start = r.start
	host.Counters = r.counters
	host.Probe = func(context.Context, string, string) (record.Probe, error) {
		return record.Probe{Python: "cpython 3.11", Packages: map[string]string{"vllm": "0.29.0"}}, nil
	}
	host.Machine = func(context.Context) record.Machine { return record.Machine{CPUs: 2} }
	host.Memory = func() (doctor.Allowance, error) { return doctor.Allowance{Bytes: 64 << 30, Source: "the rig"}, nil }
	host.DiskFree = r.diskFree
	host.Now = r.now
	return host
}

// measure runs what is asked to its end and reads the directory.
func (r *rig) measure(ask Ask) (*record.Run, error) {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.cancel = cancel
	failure := Measure(ctx, ask, r.host(), []string{"test"}, &r.out, &r.errs)
	r.mu.Lock()
	running := r.running
	r.mu.Unlock()
	if running != 0 {
		r.Errorf("%d stacks were left running", running)
	}
	run, err := record.Load(ask.Output)
	if err != nil {
		r.Fatalf("%v; the run itself ended with: %v", err, failure)
	}
	return run, failure
}

// fakeStack is a fake engine on a server of its own.
type fakeStack struct {
	rig             *rig
	fake            *fakeEngine
	engine, manager *httptest.Server
	died            chan string
	stop            sync.Once
	spec            launch.Spec
	mu              sync.Mutex
	done            served
}

func (k *fakeStack) Engine() string      { return k.engine.URL }
func (k *fakeStack) Service() string     { return "" }
func (k *fakeStack) Died() <-chan string { return k.died }

func (k *fakeStack) Manager() string {
	if k.manager == nil {
		return ""
	}
	return k.manager.URL
}

// Volume implements Stack.
func (k *fakeStack) Volume() (record.Volume, error) {
	v := record.Volume{
		Backend: k.spec.Backend, Pass: k.spec.Pass, Attempt: k.spec.Attempt, File: filepath.Join(k.spec.SSDFolder, "payload"), FileBytes: 4096, CapacityBytes: 1 << 30,
		Flags: []string{"02140002"}, Direct: !k.rig.buffered, Findmnt: record.Mount{Target: "/", Source: "/dev/vda", FSType: "ext4", Options: "rw"},
	}
	_, err := os.Stat(v.File)
	return v, err
}

// CleanMemory implements Stack.
func (k *fakeStack) CleanMemory(context.Context) (evicted, leased int, err error) {
	if k.rig.deaf {
		return 0, 0, errors.New("401 Unauthorized")
	}
	evicted = k.fake.forget()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done.Evicted += evicted
	return evicted, k.rig.leased, nil
}

func (k *fakeStack) StopWithin(limit time.Duration) error {
	k.stop.Do(func() {
		if k.rig.sick {
			k.rig.pass(limit)
		}
		k.engine.CloseClientConnections()
		k.engine.Close()
		if k.manager != nil {
			k.manager.Close()
		}
		k.rig.mu.Lock()
		k.rig.running--
		k.rig.mu.Unlock()
	})
	return nil
}

func (r *rig) start(ctx context.Context, spec launch.Spec, note func(record.Launch)) (Stack, error) {
	if r.hang[spec.Backend] {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.specs = append(r.specs, spec)
	r.at = r.at.Add(time.Second)
	if refused := r.refuse[spec.Backend]; refused != nil {
		failure := *refused
		failure.Log = spec.LogPath(failure.Part)
		return nil, &failure
	}
	note(record.Launch{Backend: spec.Backend, Pass: spec.Pass, Attempt: spec.Attempt, Part: record.PartEngine, Control: spec.Control, Started: r.at})
	o := &spec.Options
	if spec.SSDFolder != "" {
		if err := errors.Join(os.Mkdir(spec.SSDFolder, 0o700), os.WriteFile(filepath.Join(spec.SSDFolder, "payload"), nil, 0o600)); err != nil {
			return nil, err
		}
	}
	k := &fakeStack{rig: r, spec: spec, fake: newFakeEngine(o.Engine, spec.Backend, o.PageSize, o.GPUTokens, r.script), died: make(chan string, 1)}
	k.fake.cancel = r.cancel
	k.fake.die = func() { k.died <- "the engine ended on its own with exit status 3" }
	k.fake.served = func(more served) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.done.add(more)
	}
	k.engine = httptest.NewServer(k.fake)
	if spec.Backend == record.OrbitKV {
		k.manager = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			k.mu.Lock()
			defer k.mu.Unlock()
			managerMetrics(w, k.done, r.leases)
		}))
	}
	r.engines = append(r.engines, k.fake)
	r.running++
	return k, nil
}

// restedCounters are the real scraper's looks without its waits.
type restedCounters struct {
	*evidence.Scraper
	rig   *rig
	stack Stack
}

func (r *rig) counters(engine string, stack Stack) Counters {
	return restedCounters{evidence.NewScraper(engine, stack.Engine(), stack.Manager(), ""), r, stack}
}

func (c restedCounters) Settle(ctx context.Context, _ time.Duration) (evidence.Snapshot, error) {
	c.rig.mu.Lock()
	c.rig.waits++
	restless := c.rig.restless || c.rig.waits == c.rig.unrest
	c.rig.mu.Unlock()
	if restless {
		return evidence.Snapshot{}, errors.New("after 60 s still moving: vllm:prompt_tokens_total")
	}
	return c.Read(ctx)
}

func (c restedCounters) Drain(ctx context.Context) record.Drain {
	if end, bounded := ctx.Deadline(); c.rig.sick && bounded {
		c.rig.pass(time.Until(end))
		return record.Drain{Why: "it was broken off, and until then not given back: orbitkv_leases is 2"}
	}
	if c.stack.Manager() == "" {
		return record.Drain{Drained: true, Why: "it tells nothing"}
	}
	drain := record.Drain{Checked: true, Drained: c.rig.leases == 0, Values: map[string]float64{"orbitkv_leases": c.rig.leases}}
	if !drain.Drained {
		drain.Why = "not given back within 30s: orbitkv_leases is 2"
	}
	return drain
}

func (c restedCounters) Watch(ctx context.Context, every time.Duration) func() (map[string]float64, int) {
	return c.Scraper.Watch(ctx, every).Stop
}

// tells fails unless the progress of the runs told each of the words.
func (r *rig) tells(words ...string) {
	r.Helper()
	for _, word := range words {
		if !strings.Contains(r.errs.String(), word) {
			r.Errorf("nothing was told of %q:\n%s", word, r.errs.String())
		}
	}
}

// says fails unless an error has all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// pick returns the final samples that a filter takes.
func pick(run *record.Run, take func(*record.Sample) bool) []record.Sample {
	var all []record.Sample
	for i := range run.Samples {
		if row := &run.Samples[i]; run.Final(row.Place) && take(row) {
			all = append(all, *row)
		}
	}
	return all
}

// sources counts the sources of measured final samples of a backend and phase.
func sources(run *record.Run, backend string, phase record.Phase) map[record.Source]int {
	found := map[record.Source]int{}
	for _, row := range pick(run, func(s *record.Sample) bool { return s.Measured && s.Backend == backend && s.Phase == phase }) {
		found[row.Source]++
	}
	return found
}
