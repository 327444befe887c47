package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestQuantilesAndMedians(t *testing.T) {
	var samples []time.Duration
	for i := 1; i <= 200; i++ {
		samples = append(samples, time.Duration(i))
	}
	for percent, want := range map[int]time.Duration{0: 1, 1: 2, 50: 100, 99: 198, 100: 200} {
		if got := quantile(samples, percent); got != want {
			t.Errorf("%d %% is %d, want %d", percent, got, want)
		}
	}
	if quantile(nil, 50) != 0 {
		t.Error("no samples have a quantile")
	}
	if median([]float64{9, 1, 4}) != 4 || median([]float64{9, 1, 4, 2}) != 3 {
		t.Error("median")
	}
}

// TestTheTableJoinsRounds checks that rounds are joined by name and clients, and that a ceiling is found among equal clients.
func TestTheTableJoinsRounds(t *testing.T) {
	r := &report{}
	for r.round = 1; r.round <= 3; r.round++ {
		r.add(figure{Name: "low", Clients: 8, Unit: "us", N: 1, P50: 5})
		r.add(figure{Name: "low", Clients: 1, Unit: "us", N: 1, P50: 10})
		r.add(figure{Name: "call", Clients: 1, Unit: "us", N: 2, P50: float64(10 * r.round), Ceiling: "low"})
	}
	r.round = 3
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	last := lines[len(lines)-2]
	for _, part := range []string{"| call ", "| 20.0 ", "| 6 ", "| low, 10.0 ", "| 50 %"} {
		if !strings.Contains(last, part) {
			t.Errorf("%q is not in %q", part, last)
		}
	}
}

// TestTheHostFindsWhatItPublished runs the in-process scenarios' own checks: pages found, granted, reclaimed.
func TestTheHostFindsWhatItPublished(t *testing.T) {
	const pages = 4096
	h, err := newHost(pages*sliceBytes, sliceBytes, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.fill(context.Background(), 0, pages); err != nil {
		t.Fatal(err)
	}
	for client := range 2 {
		if _, err := h.query(client, keysOf(100, 512)); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.query(0, keysOf(pages, 1)); err == nil {
		t.Error("an absent page was found")
	}
	if _, err := h.reserveAndSeal(keysOf(pages, pages/2)); err != nil {
		t.Error(err)
	}
	if violations := h.cache.Check(); len(violations) > 0 {
		t.Error(violations)
	}
}

// TestTheEchoServerGivesBackWhatIsAskedFor exchanges bytes with the server in this process.
func TestTheEchoServerGivesBackWhatIsAskedFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ended := make(chan error, 1)
	alive, end := io.Pipe()
	go func() { ended <- serveEcho(socket, alive) }()
	conn, err := dialEcho(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for _, bytes := range [][2]int{{24, 24}, {1 << 19, 64}, {8, 1 << 19}} {
		if err := exchange(conn, buf, bytes[0], bytes[1]); err != nil {
			t.Errorf("%d bytes for %d: %v", bytes[0], bytes[1], err)
		}
	}
	if err := errors.Join(conn.Close(), end.Close(), <-ended); err != nil {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	for _, arguments := range [][]string{{"-rounds", "0"}, {"-pool", "1"}, {"-index-pages", "1"}, {"x"}, {"-only", "("}} {
		if _, err := parse(arguments); err == nil {
			t.Errorf("%q was taken", arguments)
		}
	}
	if o, err := parse([]string{"-only", "index"}); err != nil || o.only.MatchString("query") || !o.only.MatchString("index") {
		t.Errorf("%+v, %v", o, err)
	}
}
