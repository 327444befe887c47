package blockio

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"orbitkv/internal/vfs"
)

// What Config.Want may ask for. The last two are also the names of the engines.
const (
	WantAuto = "auto" // io_uring where it works, else the pool
	WantRing = "uring"
	WantPool = "pool"
)

// Bounds of Choose.
const (
	ProbeBytes     = 2 * vfs.Align // overwritten at the start of the file
	PoolThreadsMax = 32            // of a pool; each waits in the kernel for one transfer

	operationsPerTransfer = 4 // that a ring has room for, so that the buffers of one transfer do not take the place of another
)

// Config says what engine is wanted, and for what.
type Config struct {
	Want   string   // WantAuto, WantRing or WantPool
	File   vfs.File // opened with vfs.Direct; its first ProbeBytes are overwritten
	Depth  int      // transfers that shall run at a time, 1..RingDepthMax; a pool runs at most PoolThreadsMax
	Memory [][]byte // as in RingConfig
}

// Choose makes the engine that is wanted and proves it: it writes random bytes to the file and reads them back. The reason says, for people, what
// was chosen and why; where WantAuto ends with the pool it names what the kernel refused, the errno and the remedy. After an error, which says
// the same, there is no engine: with WantAuto it means that the file can be neither written nor read.
func Choose(cfg Config) (engine Engine, reason string, err error) {
	if cfg.Depth < 1 || cfg.Depth > RingDepthMax {
		return nil, "", fmt.Errorf("%d transfers at a time are not possible: 1 to %d are", cfg.Depth, RingDepthMax)
	}
	switch cfg.Want {
	case WantPool:
		engine, err = provenPool(cfg)
		return engine, "pool: it was asked for", err
	case WantAuto, WantRing:
	default:
		return nil, "", fmt.Errorf("there is no I/O engine %q: ask for %s, %s or %s", cfg.Want, WantAuto, WantRing, WantPool)
	}
	ring, refused := provenRing(cfg)
	switch {
	case refused == nil:
		return ring, "uring: it wrote and read back; " + registering(ring), nil
	case cfg.Want == WantRing:
		return nil, "", fmt.Errorf("io_uring was asked for and cannot be used: %w; or ask for %s", refused, WantAuto)
	}
	engine, err = provenPool(cfg)
	return engine, fmt.Sprintf("pool: io_uring cannot be used: %v", refused), err
}

func provenRing(cfg Config) (Engine, error) {
	if _, ok := cfg.File.Descriptor(); !ok {
		return nil, errors.New("the file has no descriptor, and its I/O must come through it")
	}
	ring, err := NewRing(RingConfig{Depth: min(cfg.Depth*operationsPerTransfer, RingDepthMax), Memory: cfg.Memory})
	if err != nil {
		return nil, explained(err, ringRemedy)
	}
	return proven(ring, cfg.File)
}

func provenPool(cfg Config) (Engine, error) {
	return proven(NewPool(min(cfg.Depth, PoolThreadsMax)), cfg.File)
}

// proven returns the engine if it writes and reads back.
func proven(engine Engine, file vfs.File) (Engine, error) {
	if err := prove(engine, file); err != nil {
		engine.Close()
		return nil, explained(err, fileRemedy)
	}
	return engine, nil
}

func prove(engine Engine, file vfs.File) error {
	wrote, read := vfs.AlignedBuffer(ProbeBytes), vfs.AlignedBuffer(ProbeBytes)
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32()) // bytes of an earlier probe must not pass for these
	}
	if _, err := rand.NewChaCha8(seed).Read(wrote); err != nil {
		return err
	}
	for _, step := range []struct {
		write  bool
		memory []byte
	}{{true, wrote}, {false, read}} {
		done := make(chan error, 1)
		engine.Submit(&Transfer{
			File: file, Write: step.write, Buffers: [][]byte{step.memory[:vfs.Align], step.memory[vfs.Align:]}, Done: func(err error) { done <- err },
		})
		if err := <-done; err != nil {
			return err
		}
	}
	if !bytes.Equal(wrote, read) {
		return fmt.Errorf("%d bytes were written and others read back: the device does not keep what it is given", ProbeBytes)
	}
	return nil
}

func registering(engine Engine) string {
	if refused := engine.(*Ring).Stats().NotRegistered; refused != "" {
		return "memory is not registered, which costs processor time: " + refused
	}
	return "memory is registered as it is touched"
}

// explained adds the errno's name and the remedy to an error of the kernel.
func explained(err error, remedy func(unix.Errno) string) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	return fmt.Errorf("%w (%s): %s", err, unix.ErrnoName(errno), remedy(errno))
}

// ringRemedy is what to do when no ring can be made.
func ringRemedy(errno unix.Errno) string {
	switch errno {
	case unix.EPERM, unix.EACCES:
		if value := disabled(); value != "" && value != "0" {
			return fmt.Sprintf("the sysctl kernel.io_uring_disabled is %s: set it to 0", value)
		}
		return "a seccomp filter forbids it, as the default one of container runtimes does: allow io_uring_setup, io_uring_enter and io_uring_register in it"
	case unix.ENOSYS:
		return "this kernel has no io_uring, or a sandbox hides it: it takes Linux 5.6 or newer with CONFIG_IO_URING"
	case unix.EINVAL:
		return "the io_uring of this kernel is too old: it takes Linux 5.6 or newer"
	case unix.ENOMEM:
		return "memory is short, or, before Linux 5.12, the limit of locked memory is: " + remedyLocked
	case unix.EMFILE:
		return "raise the limit of open files (LimitNOFILE of a service, --ulimit nofile of a container)"
	case unix.ENFILE:
		return "raise the sysctl fs.file-max"
	}
	return "see the kernel's log"
}

// disabled is the value of the sysctl that forbids io_uring; empty where the kernel has none, or it cannot be read.
func disabled() string {
	value, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(value))
}

// fileRemedy is what to do when an engine cannot write the file or read it.
func fileRemedy(errno unix.Errno) string {
	switch errno {
	case unix.EINVAL, unix.EOPNOTSUPP:
		return fmt.Sprintf("the file system takes no direct I/O in blocks of %d bytes: name a folder on ext4 or XFS", vfs.Align)
	case unix.ENOSPC, unix.EDQUOT:
		return "free space in the file system, or lower --ssd-cache-capacity"
	case unix.EROFS:
		return "the file system is mounted read-only: mount it for writing, or name another folder"
	}
	return "see the kernel's log for the state of the disk, or name a folder on another one"
}
