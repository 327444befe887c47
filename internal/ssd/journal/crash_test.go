package journal

import (
	"fmt"
	"reflect"
	"testing"

	"orbitkv/internal/vfs/twin"
)

const (
	scripts     = 16
	scriptSteps = 32
)

// TestACrashAtEveryOperationLeavesWhatWasCommitted cuts the power before each operation of a script that changes the disk, and again before each one
// of the recovery that follows.
func TestACrashAtEveryOperationLeavesWhatWasCommitted(t *testing.T) {
	crashes := 0
	for seed := range uint64(scripts) {
		disk := twin.New(seed)
		s := newScript(seed, disk)
		disk.Hook(func(e twin.Event) {
			for range 2 {
				crashes++
				if err := survive(disk.Crash(), s.o); err != nil {
					t.Fatalf("seed %d, crash before %s of %s: %v", seed, e.Operation, e.Name, err)
				}
			}
		})
		if err := s.open(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for step := range scriptSteps {
			if err := s.step(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
	}
	if crashes < scripts*scriptSteps {
		t.Fatalf("%d crashes in %d steps", crashes, scripts*scriptSteps)
	}
}

// survive recovers a disk, with a crash before each operation of the recovery and one behind it: what recovery told must be so
// from then on.
func survive(disk *twin.Disk, o *oracle) error {
	var within error
	disk.Hook(func(e twin.Event) {
		_, state, err := Open(disk.Crash(), volume, limits)
		if err == nil {
			err = o.check(state)
		}
		if err != nil && within == nil {
			within = fmt.Errorf("and again before %s of %s: %w", e.Operation, e.Name, err)
		}
	})
	j, state, err := Open(disk, volume, limits)
	if err == nil {
		err = within
	}
	if err == nil {
		err = o.check(state)
	}
	if err != nil {
		return err
	}
	disk.Hook(nil)
	told := known(state)
	if err := remains(disk, told); err != nil {
		return fmt.Errorf("after the recovery: %w", err)
	}
	if len(state.Puts) > 0 {
		j.Drop(state.Puts[0].Offset)
		delete(told.pages, state.Puts[0].Sequence)
	}
	if err := j.Commit(); err != nil {
		return err
	}
	return remains(disk, told)
}

// remains says whether a crash leaves exactly what the oracle has.
func remains(disk *twin.Disk, o *oracle) error {
	_, state, err := Open(disk.Crash(), volume, limits)
	if err != nil {
		return err
	}
	if len(state.Problems) > 0 || !reflect.DeepEqual(known(state), o) {
		return fmt.Errorf("problems %v, pages %+v, want %+v", state.Problems, state.Puts, o.pages)
	}
	return nil
}

// TestAKilledProcessLeavesWhatTheNextOneMakesDurable kills the process, not the disk, before each operation: the next one reads what was not yet
// durable, and may act on it.
func TestAKilledProcessLeavesWhatTheNextOneMakesDurable(t *testing.T) {
	for seed := range uint64(scripts) {
		for victim := 0; ; victim++ {
			disk := twin.New(seed)
			s := newScript(seed, disk)
			if !killed(t, s, disk, victim) {
				break
			}
			next := &script{draw: s.draw, fs: disk, o: s.o, spaces: s.spaces, keys: s.keys}
			if err := next.open(); err != nil {
				t.Fatalf("seed %d, killed before operation %d: %v", seed, victim, err)
			}
			if err := remains(disk, next.o); err != nil {
				t.Fatalf("seed %d, killed before operation %d, then a crash: %v", seed, victim, err)
			}
		}
	}
}

// killed runs a script until the victim among its operations, and says whether it came so far.
func killed(t *testing.T, s *script, disk *twin.Disk, victim int) (died bool) {
	t.Helper()
	type death struct{}
	defer func() {
		disk.Hook(nil)
		if reason := recover(); reason != nil {
			if _, ours := reason.(death); !ours {
				panic(reason)
			}
			died = true
		}
	}()
	operations := 0
	disk.Hook(func(twin.Event) {
		if operations == victim {
			panic(death{})
		}
		operations++
	})
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	for range scriptSteps / 2 {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	return false
}
