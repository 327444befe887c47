package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// lineAt hands a handler one line of a message at a time in seconds.
func lineAt(t *testing.T, handler slog.Handler, message string, seconds float64) {
	t.Helper()
	at := time.Unix(0, int64(seconds*1e9))
	if err := handler.Handle(context.Background(), slog.NewRecord(at, slog.LevelWarn, message, 0)); err != nil {
		t.Fatal(err)
	}
}

func TestARepeatedMessageIsLimitedAndTheDroppedLinesAreTold(t *testing.T) {
	var out bytes.Buffer
	limited := newLimiter(slog.NewTextHandler(&out, nil))
	for i := range 1000 {
		lineAt(t, limited.WithAttrs([]slog.Attr{slog.Int("pid", i)}), "attach refused", 1)
	}
	lineAt(t, limited, "pool populated", 1)
	if got := strings.Count(out.String(), "attach refused"); got != logBurst {
		t.Fatalf("%d lines of one message passed in one interval, want %d", got, logBurst)
	}
	if !strings.Contains(out.String(), "pool populated") {
		t.Fatal("another message was held up")
	}
	out.Reset()
	lineAt(t, limited, "attach refused", 2.5)
	if want := fmt.Sprintf("lines_like_this_dropped=%d", 1000-logBurst); !strings.Contains(out.String(), want) {
		t.Fatalf("the line after the interval says %q, want %s", out.String(), want)
	}
	out.Reset()
	lineAt(t, limited, "attach refused", 2.6)
	if strings.Contains(out.String(), "dropped") {
		t.Fatalf("dropped lines were told twice: %q", out.String())
	}
}

func TestTheLimiterKeepsABoundedNumberOfMessages(t *testing.T) {
	limited := newLimiter(slog.NewTextHandler(&bytes.Buffer{}, nil))
	for i := range 10 * logMessages {
		lineAt(t, limited, fmt.Sprintf("message %d", i), 1)
	}
	if got := len(limited.counts.messages); got > logMessages {
		t.Fatalf("%d messages are counted, the bound is %d", got, logMessages)
	}
}
