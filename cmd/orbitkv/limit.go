package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	logBurst    = 20          // lines of one message in one logInterval; the rest is counted and told with the first line after it
	logInterval = time.Second // what logBurst is counted in
	logMessages = 256         // messages that are counted apart; past it the counts begin anew
)

// limiter is a handler that passes at most logBurst lines of one message in each logInterval, so that a client which is refused again and
// again cannot fill the log. Messages are constants of the program; what differs between two lines stands in their attributes. Its clones
// with attributes or groups share the counts.
type limiter struct {
	next   slog.Handler
	counts *lineCounts
}

// lineCounts is what a limiter and its clones count.
type lineCounts struct {
	mu       sync.Mutex
	messages map[string]*lineCount
}

// lineCount is one message's lines in the interval that began at since.
type lineCount struct {
	since   time.Time
	lines   int
	dropped int
}

func newLimiter(next slog.Handler) *limiter {
	return &limiter{next: next, counts: &lineCounts{messages: map[string]*lineCount{}}}
}

// Enabled says whether the level is logged.
func (l *limiter) Enabled(ctx context.Context, level slog.Level) bool {
	return l.next.Enabled(ctx, level)
}

// Handle passes a line on or counts it as dropped. The first line of the next interval says how many were.
func (l *limiter) Handle(ctx context.Context, record slog.Record) error {
	pass, dropped := l.counts.take(record.Message, record.Time)
	if !pass {
		return nil
	}
	if dropped > 0 {
		record.AddAttrs(slog.Int("lines_like_this_dropped", dropped))
	}
	return l.next.Handle(ctx, record)
}

// WithAttrs returns a handler whose lines carry attributes.
func (l *limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limiter{next: l.next.WithAttrs(attrs), counts: l.counts}
}

// WithGroup returns a handler whose attributes stand in a group.
func (l *limiter) WithGroup(name string) slog.Handler {
	return &limiter{next: l.next.WithGroup(name), counts: l.counts}
}

// take counts a line; it says whether to pass it and how many lines before it were dropped and not told yet.
func (c *lineCounts) take(message string, at time.Time) (pass bool, dropped int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.messages[message]
	if count == nil {
		if len(c.messages) >= logMessages {
			clear(c.messages)
		}
		count = &lineCount{since: at}
		c.messages[message] = count
	}
	if at.Sub(count.since) >= logInterval {
		dropped = count.dropped
		*count = lineCount{since: at}
	}
	if count.lines >= logBurst {
		count.dropped++
		return false, 0
	}
	count.lines++
	return true, dropped
}
