package single

import (
	"context"
	"os"
	"time"

	"orbitkv/bench/evidence"
	"orbitkv/bench/launch"
	"orbitkv/bench/load"
	"orbitkv/bench/record"
	"orbitkv/internal/doctor"
)

// Completer asks an engine for completions.
type Completer interface {
	Complete(ctx context.Context, request load.Request) (load.Answer, error)
	Healthy(ctx context.Context) error
	Warm(ctx context.Context, n int) error
	Close()
}

// Counters reads what the engine and the cache service count.
type Counters interface {
	Read(ctx context.Context) (evidence.Snapshot, error)
	Settle(ctx context.Context, atLeast time.Duration) (evidence.Snapshot, error)
	Drain(ctx context.Context) record.Drain
	// Watch samples until the returned function is called, which gives the largest values and the number of samples.
	Watch(ctx context.Context, every time.Duration) func() (map[string]float64, int)
}

// Stack is a started engine with its cache service.
type Stack interface {
	Engine() string // base URLs; empty for what the stack does not have
	Manager() string
	Service() string
	Died() <-chan string
	StopWithin(limit time.Duration) error
	// Volume tells what the SSD tier writes to, and how its file is open.
	Volume() (record.Volume, error)
	// CleanMemory empties the memory of OrbitKV's Manager, and says how many pages left and how many of them are still leased.
	CleanMemory(ctx context.Context) (evicted, leased int, err error)
}

// Host is everything outside of this package that a run uses.
type Host struct {
	Start    func(ctx context.Context, spec launch.Spec, note func(record.Launch)) (Stack, error)
	Client   func(engine, url, model string) Completer
	Counters func(engine string, stack Stack) Counters
	Probe    func(ctx context.Context, python, device string) (record.Probe, error)
	Machine  func(ctx context.Context) record.Machine
	Model    func(path string) (record.Model, error)
	Storage  func(use, path string) (record.Storage, error)
	Memory   func() (doctor.Allowance, error)  // that is free now
	DiskFree func(path string) (uint64, error) // bytes that the file system of a path can still give
	Program  string                            // path of the orbitkv program
	Version  string                            // of it
	Now      func() time.Time
}

// ThisHost returns the real one.
func ThisHost(program, version string) Host {
	return Host{
		Start: func(ctx context.Context, spec launch.Spec, note func(record.Launch)) (Stack, error) {
			stack, err := launch.Start(ctx, spec, note)
			if err != nil {
				return nil, err
			}
			return stack, nil
		},
		Client: func(engine, url, model string) Completer { return load.New(engine, url, model) },
		Counters: func(engine string, stack Stack) Counters {
			return scraper{evidence.NewScraper(engine, stack.Engine(), stack.Manager(), stack.Service())}
		},
		Probe: func(ctx context.Context, python, device string) (record.Probe, error) {
			return launch.RunProbe(ctx, program, python, device)
		},
		Machine: launch.Machine, Model: launch.ReadModel, Storage: launch.StorageOf,
		Memory:   func() (doctor.Allowance, error) { return doctor.FreeMemory(os.DirFS("/")) },
		DiskFree: launch.DiskFree,
		Program:  program, Version: version, Now: time.Now,
	}
}

// scraper gives the real scraper the shape of Counters.
type scraper struct{ *evidence.Scraper }

// Watch implements Counters.
func (s scraper) Watch(ctx context.Context, every time.Duration) func() (map[string]float64, int) {
	return s.Scraper.Watch(ctx, every).Stop
}
