package launch

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const (
	tailBytes   = 512 << 10 // of a log that are read for the reason of an end
	reasonRunes = 1000      // of the reason
)

// tailOf reads the end of a log, nothing before an offset; one that cannot be read is empty.
func tailOf(path string, from int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(from, info.Size()-tailBytes), tailBytes))
	if err != nil {
		return ""
	}
	return string(text)
}

var (
	colour = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	// What engines put before each line: the process, the level with its time and place, or the time alone.
	linePrefix = regexp.MustCompile(`^(?:\([^()]*pid=\d+\)\s?|\[[^][]*\d\d:\d\d:\d\d[^][]*\]\s?|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+[-\d]+ [\d:.,]+ \[[^][]*\]\s?)`)
	levelWord  = regexp.MustCompile(`(?:\b(?:ERROR|CRITICAL|FATAL|Error|error|fatal error)\b|level=ERROR)`)
	// The line that ends a traceback: a class's name, with its module, and mostly what it says.
	exceptionLine = regexp.MustCompile(`^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?$`)
)

// echoes are ends of tracebacks that only say that another process ended; the reason stands in an earlier one.
var echoes = []string{
	"See root cause above", "check the stack trace above for the root cause", "EngineDeadError", "Engine core initialization failed", "Engine process failed to start",
	"KeyboardInterrupt", "SystemExit", "BrokenPipeError", "ConnectionResetError", "CancelledError", "EOFError",
}

const tracebackHead = "Traceback (most recent call last):"

// lastReason finds the line of a log that says why the program ended: the end of the last traceback that is not the echo of another
// process's end, else the last line that speaks of an error, else the last line. It is fit for a terminal.
func lastReason(log string) string { return plain(reasonOf(bareLines(log))) }

func reasonOf(lines []logLine) string {
	ends := tracebackEnds(lines)
	slices.Reverse(ends)
	for _, end := range ends {
		if !slices.ContainsFunc(echoes, func(echo string) bool { return strings.Contains(end, echo) }) {
			return end
		}
	}
	if len(ends) > 0 {
		return ends[0]
	}
	last := ""
	for _, line := range slices.Backward(lines) {
		text := strings.TrimSpace(line.text)
		if text == "" {
			continue
		}
		if line.isError {
			return text
		}
		if last == "" {
			last = text
		}
	}
	return last
}

// plain cuts a line that has no end, and makes visible what would move a terminal's cursor, change its colours or turn its text round.
func plain(line string) string {
	line = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, strings.ToValidUTF8(line, "?"))
	if runes := []rune(line); len(runes) > reasonRunes {
		return string(runes[:reasonRunes]) + "..."
	}
	return line
}

// logLine is a line without its prefixes. Its indentation stays: it tells a traceback's frames from its end.
type logLine struct {
	text    string
	isError bool
}

func bareLines(log string) []logLine {
	var lines []logLine
	for whole := range strings.Lines(log) {
		text := strings.TrimRight(colour.ReplaceAllString(whole, ""), "\r\n")
		line := logLine{isError: levelWord.MatchString(text)}
		for prefix := linePrefix.FindString(text); prefix != ""; prefix = linePrefix.FindString(text) {
			text = text[len(prefix):]
		}
		line.text = text
		lines = append(lines, line)
	}
	return lines
}

// tracebackEnds returns the last line of each traceback, in their order.
func tracebackEnds(lines []logLine) []string {
	var ends []string
	inside := false
	for _, line := range lines {
		switch {
		case strings.HasSuffix(strings.TrimSpace(line.text), tracebackHead):
			inside = true
		case !inside || line.text == "" || line.text[0] == ' ' || line.text[0] == '\t':
		case exceptionLine.MatchString(line.text):
			ends = append(ends, line.text)
			inside = false
		}
	}
	return ends
}
