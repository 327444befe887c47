package single

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/bench/record"
)

// pseudoTerminal returns both ends of a terminal that is so many columns wide.
func pseudoTerminal(t *testing.T, columns uint16) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
	}
	if err != nil {
		t.Skipf("this machine has no pseudo terminals: %v", err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}

// tell lets a progress tell of a short run.
func tell(p *progress) {
	p.plan(4, 3)
	p.ahead(1, 10*time.Second)
	row := record.Sample{Place: record.Place{Cell: "orbitkv/p0/latency/8192/0"}, Phase: record.Pressure, TTFTms: 9}
	p.sample(&row)
	p.await() // A reader who keeps up sees every line.
	row.Phase, row.Measured, row.TTFTms, row.Source = record.AfterPressure, true, 41.25, record.FromExternal
	p.finished(20 * time.Second)
	p.sample(&row)
	p.await()
	row.Error = "broke off"
	p.sample(&row)
	p.close()
}

func TestProgressIsOneLineForEachMeasuredRequestWhereThereIsNoTerminal(t *testing.T) {
	var out bytes.Buffer
	tell(newProgress(&out, time.Now))
	want := "1 of 4 cells were measured before\n" +
		"cell 3 of 4: orbitkv/p0/latency/8192/0 after_pressure: TTFT 41.2 ms, external; about 50s left\n" +
		"cell 3 of 4: orbitkv/p0/latency/8192/0 after_pressure: failed: broke off; about 50s left\n"
	if out.String() != want {
		t.Errorf("it told\n%swant\n%s", out.String(), want)
	}
}

func TestProgressIsHarmlessToATerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, time.Now)
	p.line("failed: \x1b]0;title\x07two\nlines\x00")
	p.step("asking \u202epython\r")
	p.close()
	if want := "failed: ?]0;title?two lines?\nasking ?python?\n"; out.String() != want {
		t.Errorf("it told %q, want %q", out.String(), want)
	}
}

func TestProgressOnATerminalIsOneLineThatFits(t *testing.T) {
	screen, terminal := pseudoTerminal(t, 40)
	tell(newProgress(terminal, time.Now))
	fmt.Fprintln(terminal, "THE END")
	var shown strings.Builder
	for buffer := make([]byte, 4096); !strings.Contains(shown.String(), "THE END"); {
		n, err := screen.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(buffer[:n])
	}
	lines := strings.Split(shown.String(), "\n")
	if len(lines) != 4 { // what was before, the line that changes, THE END, and nothing
		t.Errorf("%d lines are on the screen: %q", len(lines), lines)
	}
	updates := strings.Split(strings.TrimSuffix(lines[1], "\r"), "\r\x1b[K")
	if len(updates) != 4 {
		t.Errorf("the line was written %d times, want 3 (pressure is shown, too): %q", len(updates)-1, updates)
	}
	for _, update := range updates {
		if len(update) >= 40 {
			t.Errorf("%q does not fit into 40 columns", update)
		}
	}
}

// TestProgressThatNobodyReadsStopsNothing tells more than a pipe holds and reads it only when all is told.
func TestProgressThatNobodyReadsStopsNothing(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	p := newProgress(writer, time.Now)
	row := record.Sample{Place: record.Place{Cell: "orbitkv/p0/latency/8192/0"}, Phase: record.Cold, Measured: true}
	const samples = 10_000
	for range samples {
		p.sample(&row)
	}
	p.line("failed: the first")
	for range samples {
		p.sample(&row)
	}
	p.line("failed: the last")
	p.close()
	var all strings.Builder
	for buffer := make([]byte, 1<<16); !strings.Contains(all.String(), "failed: the last\n"); {
		n, err := reader.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(buffer[:n])
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	text := all.String()
	if !strings.Contains(text, "failed: the first\n") || strings.Count(text, "are left out here: nobody read them\n") < 2 {
		t.Errorf("of %d samples and two failures it told %d lines, the last of them %q", 2*samples, strings.Count(text, "\n"), text[max(0, len(text)-600):])
	}
}
