package config

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

func from(values map[string]string) Source {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{
		"4096": 4096, "1b": 1, "30gb": 30e9, "30GB": 30e9, " 2 mib ": 2 << 20, "1.5gib": 3 << 29, "7kb": 7000, "7KiB": 7168, "2tb": 2e12, "1tib": 1 << 40, "0.5kb": 500,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for text, hint := range map[string]string{
		"": "not a number", "gb": "not a number", "-1gb": "not a number", "12x": `unknown unit "x"`, "1e3mb": "not a number", "1_000": "not a number",
		"nan": `unknown unit "nan"`, "99999999tb": "larger than any", "18446744073709551615": "larger than any", "18446744073709551616": "larger than any", "99999999999999999999gib": "larger than any", "1.5.2gb": "not a number", "99999.5tb": "too large to be exact", "12 gb 3": "not a number",
	} {
		if _, err := ParseSize(text); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want an error with %q", text, err, hint)
		}
	}
	for bytes, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 4096: "4 KiB", 3 << 29: "1.5 GiB", 5 << 40: "5 TiB", 1234567: "1.18 MiB"} {
		if got := FormatSize(bytes); got != want {
			t.Errorf("%d bytes are %q, want %q", bytes, got, want)
		}
	}
}

func TestDefaults(t *testing.T) {
	cfg, err := Read(from(nil), from(map[string]string{"XDG_RUNTIME_DIR": "/x"}), 1000)
	want := Config{
		Socket: "/x/orbitkv/orbitkv.sock", PoolBytes: 1000, QueryBudgetBytes: 750, InstanceBudgetBytes: 750,
		HTTPAddress: "127.0.0.1:9091", AdminTokenFile: "/x/orbitkv/orbitkv.sock.token", LogLevel: slog.LevelInfo,
		ReadBatchBytes: 32 << 20, StopPolicy: StopWaitComplete,
	}
	if err != nil || !reflect.DeepEqual(cfg, want) {
		t.Errorf("%+v, %v\nwant %+v", cfg, err, want)
	}
}

func TestTheFlagWinsOverTheEnvironment(t *testing.T) {
	env := map[string]string{"ORBITKV_SOCKET": "/env", "ORBITKV_POOL_SIZE": "1gib", "ORBITKV_QUERY_BUDGET": "1mib", "ORBITKV_LOG_LEVEL": "warn", "ORBITKV_HTTP_ADDR": "off", "ORBITKV_ADMIN_TOKEN_FILE": "/t"}
	cfg, err := Read(from(map[string]string{"pool-size": "2gib", "use-hugepages": "true"}), from(env), 0)
	want := Config{
		Socket: "/env", PoolBytes: 2 << 30, QueryBudgetBytes: 1 << 20, InstanceBudgetBytes: 1 << 20, HugePages: true,
		AdminTokenFile: "/t", TokenFileNamed: true, LogLevel: slog.LevelWarn, ReadBatchBytes: 32 << 20, StopPolicy: StopWaitComplete,
	}
	if err != nil || !reflect.DeepEqual(cfg, want) {
		t.Errorf("%+v, %v\nwant %+v", cfg, err, want)
	}
}

func TestWhatIsWrongIsNamedWithItsSource(t *testing.T) {
	for _, c := range []struct {
		flags, env map[string]string
		want       []string
	}{
		{map[string]string{"pool-size": "12x"}, nil, []string{"--pool-size", `"12x"`}},
		{nil, map[string]string{"ORBITKV_POOL_SIZE": "12x"}, []string{"ORBITKV_POOL_SIZE", `"12x"`}},
		{map[string]string{"pool-size": "1kb"}, nil, []string{"--pool-size", "4 KiB"}},
		{map[string]string{"pool-size": "32"}, nil, []string{"--pool-size", "4 KiB", "write 32gib for GiB"}},
		{map[string]string{"pool-size": ""}, nil, []string{"--pool-size", "not a number"}},
		{map[string]string{"socket": ""}, map[string]string{"ORBITKV_SOCKET": "/env"}, []string{"--socket", "the path is empty"}},
		{map[string]string{"admin-token-file": ""}, nil, []string{"--admin-token-file", "the path is empty"}},
		{map[string]string{"pool-size": "1gb", "query-instance-budget": "1gb"}, nil, []string{"--query-instance-budget", "--query-budget"}},
		{map[string]string{"pool-size": "1gb", "query-budget": "2gb"}, nil, []string{"--query-budget", "--pool-size"}},
		{map[string]string{"use-hugepages": "maybe"}, nil, []string{"--use-hugepages", "maybe"}},
		{map[string]string{"http-addr": "0.0.0.0:9091"}, nil, []string{"--http-addr", "--http-allow-remote"}},
		{map[string]string{"http-addr": ":9091"}, nil, []string{"--http-allow-remote"}},
		{map[string]string{"http-addr": "127.0.0.1"}, nil, []string{"host:port"}},
		{map[string]string{"http-addr": "127.0.0.1:x"}, nil, []string{"port"}},
		{map[string]string{"log-level": "loud"}, nil, []string{"--log-level", "loud"}},
	} {
		_, err := Read(from(c.flags), from(c.env), 1<<20)
		for _, word := range c.want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v %v: %v, want %q in the error", c.flags, c.env, err, word)
			}
		}
	}
	if _, err := Read(from(map[string]string{"http-addr": "0.0.0.0:9091", "http-allow-remote": "true"}), from(nil), 1<<20); err != nil {
		t.Error(err)
	}
}

func TestTheSocketSearchOrder(t *testing.T) {
	env := map[string]string{"ORBITKV_SOCKET": "/b", "XDG_RUNTIME_DIR": "/c"}
	last := SocketPath{"built-in default", "/run/orbitkv/orbitkv.sock"}
	if got, want := SocketPaths("/a", from(env)), []SocketPath{{"--socket", "/a"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("named: %v", got)
	}
	if got, want := SocketPaths("", from(env)), []SocketPath{{"ORBITKV_SOCKET", "/b"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("environment: %v", got)
	}
	delete(env, "ORBITKV_SOCKET")
	if got, want := SocketPaths("", from(env)), []SocketPath{{"XDG_RUNTIME_DIR", "/c/orbitkv/orbitkv.sock"}, last}; !reflect.DeepEqual(got, want) {
		t.Errorf("runtime folder: %v", got)
	}
	if got, want := SocketPaths("", from(nil)), []SocketPath{last}; !reflect.DeepEqual(got, want) {
		t.Errorf("nothing set: %v", got)
	}
}

func TestTheTableHasNoTwins(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Keys {
		for _, name := range []string{"--" + k.Flag, k.Environment, k.Connector} {
			if name != "--" && name != "" && seen[name] {
				t.Errorf("%s stands twice in the table", name)
			}
			seen[name] = true
		}
		if k.Meaning == "" || k.Side == "" {
			t.Errorf("%+v lacks a meaning or a side", k)
		}
	}
}

func TestVariablesThatNothingReadsAreNamed(t *testing.T) {
	environ := []string{"PATH=/bin", "ORBITKV_SOCKT=/x", "ORBITKV_SOCKET=/y", "ORBITKV_CACHE=/z", "ORBITKV_FAULT_INJECTION=", "ORBITKV_POOLSIZE=1gib"}
	if got, want := UnknownVariables(environ), []string{"ORBITKV_POOLSIZE", "ORBITKV_SOCKT"}; !reflect.DeepEqual(got, want) {
		t.Fatalf("unknown variables are %v, want %v", got, want)
	}
}
