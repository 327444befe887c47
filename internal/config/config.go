package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shares of the pool.
const (
	QueryBudgetPercent = 75
	PoolBytesMin       = 4 << 10
)

// Config is what orbitkv serve runs with.
type Config struct {
	Socket              string // absolute path
	PoolBytes           uint64
	QueryBudgetBytes    uint64
	InstanceBudgetBytes uint64
	HugePages           bool
	HTTPAddress         string // host:port, empty for none
	AdminTokenFile      string // absolute path
	TokenFileNamed      bool   // the user chose AdminTokenFile
	LogLevel            slog.Level
	ReadBatchBytes      uint64
	StopPolicy          string
	ReadTimeout         time.Duration // zero but for the policy timeout
	ProtectedPercent    uint64
	LFUAdmission        bool
	PoolScrubRate       uint64 // bytes/s, zero for none
	TraceTransfers      bool
	SSD                 SSD
}

// errNoPath is for a flag of a path with nothing behind it, as an unset variable of a script leaves it.
var errNoPath = errors.New("the path is empty: name one, or leave the flag out for the default")

// Source gives what a user wrote for a flag or a variable; ok is false when nothing was written.
type Source func(name string) (value string, ok bool)

// HTTPAddress returns where the verbs that look at a running Manager find it. It is an error when HTTP is switched off.
func HTTPAddress(flags, environment Source) (string, error) {
	r := &reader{flags: flags, environment: environment}
	address := r.address(true) // whoever asks may name any host
	if r.err == nil && address == "" {
		r.fail(FlagHTTP, fmt.Errorf("HTTP is off, so the Manager cannot be asked: name the address that it serves"))
	}
	return address, r.err
}

// TokenFile returns where the verbs that need the token of a running Manager find it: as that Manager's own configuration would name it.
func TokenFile(flags, environment Source) (string, error) {
	r := &reader{flags: flags, environment: environment}
	named, _ := flags(FlagSocket)
	path, _ := r.tokenFile(SocketPaths(named, environment)[0].Path)
	return path, r.err
}

// reader reads keys and remembers the first error, so that Read is one list.
type reader struct {
	flags, environment Source
	err                error
}

// Read makes the configuration of orbitkv serve. defaultPoolBytes is used when no pool size is given.
func Read(flags, environment Source, defaultPoolBytes uint64) (Config, error) {
	r := &reader{flags: flags, environment: environment}
	named, given := flags(FlagSocket)
	if given && named == "" {
		r.fail(FlagSocket, errNoPath)
	}
	var cfg Config
	cfg.Socket = SocketPaths(named, environment)[0].Path
	cfg.PoolBytes = r.size(FlagPoolSize, defaultPoolBytes, PoolBytesMin)
	cfg.QueryBudgetBytes = r.size(FlagQueryBudget, cfg.PoolBytes/100*QueryBudgetPercent+cfg.PoolBytes%100*QueryBudgetPercent/100, 1)
	cfg.InstanceBudgetBytes = r.size(FlagInstanceBudget, cfg.QueryBudgetBytes, 1)
	cfg.HugePages = r.bool(FlagHugePages)
	cfg.HTTPAddress = r.address(r.bool(FlagHTTPRemote))
	cfg.AdminTokenFile, cfg.TokenFileNamed = r.tokenFile(cfg.Socket)
	cfg.LogLevel = r.level()
	cfg.TraceTransfers = r.bool(FlagTrace)
	r.readTiers(&cfg)
	if r.err == nil && cfg.QueryBudgetBytes > cfg.PoolBytes {
		r.err = fmt.Errorf("--%s of %s is over --%s of %s: lower the first or raise the second",
			FlagQueryBudget, FormatSize(cfg.QueryBudgetBytes), FlagPoolSize, FormatSize(cfg.PoolBytes))
	}
	if r.err == nil && cfg.InstanceBudgetBytes > cfg.QueryBudgetBytes {
		r.err = fmt.Errorf("--%s of %s is over --%s of %s: lower the first or raise the second",
			FlagInstanceBudget, FormatSize(cfg.InstanceBudgetBytes), FlagQueryBudget, FormatSize(cfg.QueryBudgetBytes))
	}
	return cfg, r.err
}

// tokenFile is the file that the user named, or the one beside the socket.
func (r *reader) tokenFile(socket string) (path string, named bool) {
	path, named = r.text(FlagToken)
	if !named {
		path = socket + ".token"
	} else if path == "" {
		r.fail(FlagToken, errNoPath)
	}
	return absolute(path), named
}

// text returns what was written for a key, the flag before the environment.
func (r *reader) text(flag string) (value string, ok bool) {
	if value, ok = r.flags(flag); ok {
		return value, true
	}
	value, ok = r.environment(Find(flag).Environment)
	return value, ok && value != ""
}

// fail keeps the first error and says which source gave the value.
func (r *reader) fail(flag string, err error) {
	if r.err != nil {
		return
	}
	source := "--" + flag
	if _, ok := r.flags(flag); !ok {
		source = Find(flag).Environment
	}
	r.err = fmt.Errorf("%s: %w", source, err)
}

func (r *reader) size(flag string, fallback, least uint64) uint64 {
	text, ok := r.text(flag)
	if !ok {
		return fallback
	}
	return r.parseSize(flag, text, least)
}

func (r *reader) parseSize(flag, text string, least uint64) uint64 {
	bytes, err := ParseSize(text)
	if err == nil && bytes < least {
		err = fmt.Errorf("size %q is below the least of %s", text, FormatSize(least))
		if plain := strings.TrimSpace(text); bytes > 0 && strings.Trim(plain, "0123456789.") == "" {
			err = fmt.Errorf("%w; a number without a unit counts bytes: write %sgib for GiB", err, plain)
		}
	}
	if err != nil {
		r.fail(flag, err)
	}
	return bytes
}

func (r *reader) bool(flag string) bool {
	text, ok := r.text(flag)
	if !ok {
		return false
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		r.fail(flag, fmt.Errorf("%q is neither true nor false", text))
	}
	return on
}

func (r *reader) level() slog.Level {
	var level slog.Level
	if text, ok := r.text(FlagLogLevel); ok {
		if err := level.UnmarshalText([]byte(text)); err != nil || strings.ContainsAny(text, "+-") {
			r.fail(FlagLogLevel, fmt.Errorf("%q is none of debug, info, warn, error", text))
		}
	}
	return level
}

// address checks that only loopback is served unless the user allowed more.
func (r *reader) address(remote bool) string {
	text, ok := r.text(FlagHTTP)
	if !ok {
		text = Find(FlagHTTP).Default
	}
	if text == "off" {
		return ""
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		r.fail(FlagHTTP, fmt.Errorf("%q is not host:port, such as %s", text, Find(FlagHTTP).Default))
		return ""
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		r.fail(FlagHTTP, fmt.Errorf("port %q is not a number up to 65535", port))
	}
	ip := net.ParseIP(host)
	if loopback := host == "localhost" || ip != nil && ip.IsLoopback(); !loopback && !remote {
		r.fail(FlagHTTP, fmt.Errorf("%q can be reached from other hosts: name 127.0.0.1, or add --%s", text, FlagHTTPRemote))
	}
	return text
}

// SocketPath is one place where the socket may be.
type SocketPath struct {
	Source string // what named it
	Path   string // absolute
}

// SocketPaths returns where the socket may be, in the order of the search. A place that the user named is the only one; the Manager
// listens on the first, clients try each.
func SocketPaths(named string, environment Source) []SocketPath {
	if named != "" {
		return []SocketPath{{"--" + FlagSocket, absolute(named)}}
	}
	if path, _ := environment("ORBITKV_SOCKET"); path != "" {
		return []SocketPath{{"ORBITKV_SOCKET", absolute(path)}}
	}
	var paths []SocketPath
	if dir, _ := environment("XDG_RUNTIME_DIR"); dir != "" {
		paths = append(paths, SocketPath{"XDG_RUNTIME_DIR", absolute(filepath.Join(dir, "orbitkv", "orbitkv.sock"))})
	}
	return append(paths, SocketPath{"built-in default", "/run/orbitkv/orbitkv.sock"})
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// toolVariables are names of ours that the programs of the checkout read, and that are no keys.
var toolVariables = []string{"ORBITKV_CACHE"}

// Variables lists every variable that some program of ours reads, in order.
func Variables() []string {
	names := slices.Clone(toolVariables)
	for _, k := range Keys {
		if k.Environment != "" {
			names = append(names, k.Environment)
		}
	}
	slices.Sort(names)
	return names
}

// UnknownVariables lists, in order, the variables of an environment ("NAME=value" each) that look like ours and are not: nothing reads them, and
// a misspelt one would be missed silently.
func UnknownVariables(environ []string) (unknown []string) {
	known := Variables()
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "ORBITKV_") && !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
