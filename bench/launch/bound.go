package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// logBounds say how much of a log stays on the disk, in bytes: its head, its tail, and what may come before the tail is cut anew. The head has room for
// the records of transfers that a measurement takes out of it.
type logBounds struct {
	head, tail, slack int64
	every             time.Duration // between two looks
	punch             func(file *os.File, from, to int64) error
}

var ordinaryLog = logBounds{head: 192 << 20, tail: 32 << 20, slack: 32 << 20, every: time.Second, punch: punchHole}

// boundedLog keeps one log of a process within bounds. The process writes into the file itself, and no pipe can hold it up; what lies between head and tail
// is given back to the disk while it goes on. One goroutine uses it.
type boundedLog struct {
	logBounds
	file  *os.File // of its own: writes to it do not append
	cutTo int64    // where the tail began at the latest cut; 0 before the first
}

func openBounded(path string, bounds logBounds) (*boundedLog, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &boundedLog{logBounds: bounds, file: file}, nil
}

// punchHole gives a part of a file back to the disk; it reads as zeros then.
func punchHole(file *os.File, from, to int64) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
}

// notice stands in the log where a part of it is missing. It has the same length for every number.
func (b *boundedLog) notice() string {
	return fmt.Sprintf("\n[orbitkv bench cut %15d bytes out of this log here, which had passed its bound]\n", b.cutTo-b.head)
}

// look cuts the log if it has passed its bounds. The error says that it cannot be kept within them.
func (b *boundedLog) look() error {
	info, err := b.file.Stat()
	if err != nil {
		return err
	}
	if info.Size()-max(b.cutTo, b.head) <= b.tail+b.slack {
		return nil
	}
	b.cutTo = info.Size() - b.tail
	if err := b.punch(b.file, b.head, b.cutTo); err != nil {
		return fmt.Errorf("its log passed %d MiB, and the file system cannot cut it: %w", info.Size()>>20, err)
	}
	_, err = b.file.WriteAt([]byte(b.notice()), b.head)
	return err
}

// finish closes the log, to which nobody writes any more, and puts a file without the hole in the place of one with a hole: copies of it would fill the hole.
func (b *boundedLog) finish() error {
	defer b.file.Close()
	if b.cutTo == 0 {
		return nil
	}
	info, err := b.file.Stat()
	if err != nil {
		return err
	}
	whole := b.file.Name() + ".whole"
	to, err := os.OpenFile(whole, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.MultiReader(
		io.NewSectionReader(b.file, 0, b.head+int64(len(b.notice()))), io.NewSectionReader(b.file, b.cutTo, info.Size()-b.cutTo),
	))
	if err := errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, os.Remove(whole))
	}
	return os.Rename(whole, b.file.Name())
}

// keepLog keeps the child's log within bounds until nothing of the child is left to write. A child whose log cannot be bounded is ended.
func (c *child) keepLog(log *boundedLog, quiet <-chan struct{}) {
	tick := time.NewTicker(log.every)
	defer tick.Stop()
	for {
		select {
		case <-quiet:
			_ = log.finish() // the log with its hole stays, which says the same
			return
		case <-tick.C:
			if err := log.look(); err != nil {
				tick.Stop()
				c.abandon("SIGKILL by the measurement: " + err.Error())
			}
		}
	}
}
