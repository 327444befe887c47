package record_test

import (
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

// TestARowThatIsWrittenInPartIsTakenBack lets the kernel end a row in its middle, as a full disk does: the row is an error and the file keeps whole lines.
func TestARowThatIsWrittenInPartIsTakenBack(t *testing.T) {
	path := t.TempDir()
	d := create(t, path)
	must(t, d.Sample(sample("a", 1, 0)))
	info, err := os.Stat(filepath.Join(path, "samples.jsonl"))
	must(t, err)

	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(info.Size()) + 10, Max: limit.Max}))
	short := d.Sample(sample("a", 1, 1))
	must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	refused(t, short, "writing a row")

	must(t, d.Sample(sample("a", 1, 2)), d.Finish(record.Finished{Place: record.Place{Cell: "a", Attempt: 1}}), d.Close("complete"))
	run := load(t, path)
	if len(run.Samples) != 2 || run.Samples[1].PromptIndex != 2 || len(run.Notes) != 0 {
		t.Errorf("%d rows, notes %q", len(run.Samples), run.Notes)
	}
}
