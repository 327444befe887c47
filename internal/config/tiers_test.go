package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTheSSDTierHasDefaultsOnceAFolderIsNamed(t *testing.T) {
	cfg, err := Read(from(nil), from(map[string]string{"ORBITKV_SSD_CACHE_PATH": "/a:/b/../c"}), 1<<20)
	want := SSD{
		Paths: []string{"/a", "/c"}, CapacityBytes: 512e9, CapacityDefault: true, Backend: BackendAuto, WriteQueueBatches: 8, ReadQueueBatches: 2,
		WritesInflight: 2, ReadsInflight: 16, WritePolicy: WriteAll, ScrubRate: 8 << 20,
	}
	if err != nil || !reflect.DeepEqual(cfg.SSD, want) {
		t.Errorf("%+v, %v\nwant %+v", cfg.SSD, err, want)
	}
}

func TestAnEmptyPathIsNoTier(t *testing.T) {
	cfg, err := Read(from(map[string]string{"ssd-cache-path": ""}), from(map[string]string{"ORBITKV_SSD_CACHE_PATH": "/a"}), 1<<20)
	if err != nil || !reflect.DeepEqual(cfg.SSD, SSD{}) {
		t.Errorf("%+v, %v: the flag wins over the environment", cfg.SSD, err)
	}
}

func TestBoundsAreTold(t *testing.T) {
	for flag, want := range map[string]string{FlagReadBatch: "4 KiB to 32 MiB", FlagSSDCapacity: "at least 24 MiB", FlagSSDWrites: "1 to 256", FlagSSDBackend: "auto, uring, pool"} {
		if got := Find(flag).Bounds(); got != want {
			t.Errorf("--%s: %q, want %q", flag, got, want)
		}
	}
}

func TestEveryKeyOfTheTiersIsRead(t *testing.T) {
	flags := map[string]string{
		"ssd-cache-path": "/a", "ssd-cache-capacity": "1gib", "ssd-backend": "pool", "ssd-write-queue-depth": "3", "ssd-prefetch-queue-depth": "4",
		"ssd-write-inflight": "5", "ssd-prefetch-inflight": "6", "ssd-write-policy": "reuse", "ssd-scrub-rate": "0", "ssd-fault-injection": "write-eio=2",
		"query-read-batch": "1mib", "query-stop-policy": "timeout", "query-read-timeout-ms": "250", "cache-protected-percent": "40",
		"enable-lfu-admission": "true", "pool-scrub-rate": "1mb",
	}
	cfg, err := Read(from(flags), from(map[string]string{"ORBITKV_SSD_CACHE_PATH": "/other"}), 1<<20)
	want := SSD{
		Paths: []string{"/a"}, CapacityBytes: 1 << 30, Backend: BackendPool, WriteQueueBatches: 3, ReadQueueBatches: 4,
		WritesInflight: 5, ReadsInflight: 6, WritePolicy: WriteReuse, FaultInjection: "write-eio=2",
	}
	if err != nil || !reflect.DeepEqual(cfg.SSD, want) {
		t.Errorf("%+v, %v\nwant %+v", cfg.SSD, err, want)
	}
	if cfg.ReadBatchBytes != 1<<20 || cfg.StopPolicy != StopTimeout || cfg.ReadTimeout != 250*time.Millisecond || cfg.ProtectedPercent != 40 || !cfg.LFUAdmission || cfg.PoolScrubRate != 1e6 {
		t.Errorf("%+v", cfg)
	}
}

func TestWhatIsWrongWithATierIsNamedWithItsSource(t *testing.T) {
	for _, c := range []struct {
		flags, env map[string]string
		want       []string
	}{
		{map[string]string{"ssd-cache-path": "/a::/b"}, nil, []string{"--ssd-cache-path", "the path is empty"}},
		{nil, map[string]string{"ORBITKV_SSD_CACHE_PATH": "/a:/b/../a"}, []string{"ORBITKV_SSD_CACHE_PATH", "/a is named twice"}},
		{map[string]string{"ssd-write-policy": "all"}, nil, []string{"--ssd-write-policy", "--ssd-cache-path"}},
		{nil, map[string]string{"ORBITKV_SSD_CACHE_CAPACITY": "1tb"}, []string{"ORBITKV_SSD_CACHE_CAPACITY", "--ssd-cache-path"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-cache-capacity": "512"}, nil, []string{"--ssd-cache-capacity", "24 MiB", "512gib"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-cache-capacity": "23mib"}, nil, []string{"--ssd-cache-capacity", "24 MiB"}},
		{map[string]string{"ssd-cache-path": "/a:/b", "ssd-cache-capacity": "47mib"}, nil, []string{"--ssd-cache-capacity", "47 MiB", "2 folders", "24 MiB", "raise the capacity"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-backend": "aio"}, nil, []string{"--ssd-backend", `"aio"`, "auto, uring, pool"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-write-policy": "some"}, nil, []string{"--ssd-write-policy", "all, reuse"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-write-queue-depth": "0"}, nil, []string{"--ssd-write-queue-depth", "1 to 1024"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-prefetch-queue-depth": "1025"}, nil, []string{"--ssd-prefetch-queue-depth", `"1025"`}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-write-inflight": "1.5"}, nil, []string{"--ssd-write-inflight", "whole number"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-prefetch-inflight": "-1"}, nil, []string{"--ssd-prefetch-inflight", "1 to 256"}},
		{map[string]string{"ssd-cache-path": "/a", "ssd-scrub-rate": "fast"}, nil, []string{"--ssd-scrub-rate", "fast"}},
		{map[string]string{"query-read-batch": "33mib"}, nil, []string{"--query-read-batch", "32 MiB"}},
		{map[string]string{"query-read-batch": "1"}, nil, []string{"--query-read-batch", "4 KiB"}},
		{map[string]string{"query-stop-policy": "never"}, nil, []string{"--query-stop-policy", "wait_complete, best_effort, timeout"}},
		{map[string]string{"query-stop-policy": "timeout"}, nil, []string{"--query-stop-policy", "--query-read-timeout-ms"}},
		{map[string]string{"query-read-timeout-ms": "5"}, nil, []string{"--query-read-timeout-ms", "--query-stop-policy timeout"}},
		{map[string]string{"query-stop-policy": "timeout", "query-read-timeout-ms": "0"}, nil, []string{"--query-read-timeout-ms", "1 to 600000"}},
		{map[string]string{"cache-protected-percent": "91"}, nil, []string{"--cache-protected-percent", "0 to 90"}},
		{map[string]string{"enable-lfu-admission": "perhaps"}, nil, []string{"--enable-lfu-admission", "perhaps"}},
		{map[string]string{"pool-scrub-rate": "-1"}, nil, []string{"--pool-scrub-rate"}},
	} {
		_, err := Read(from(c.flags), from(c.env), 1<<20)
		for _, word := range c.want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v %v: %v, want %q in the error", c.flags, c.env, err, word)
			}
		}
	}
}

func TestWordsAndNumbersTakeTheirOwnDefaults(t *testing.T) {
	for _, k := range Keys {
		r := &reader{flags: from(nil), environment: from(nil)}
		switch {
		case k.Flag == "" || strings.HasPrefix(k.Default, "("):
			continue
		case len(k.Words) > 0:
			r.word(k.Flag)
		case strings.HasPrefix(k.Unit, "bytes"):
			r.sizeInTable(k.Flag)
		case k.Most > 0:
			r.number(k.Flag)
		}
		if r.err != nil {
			t.Errorf("the default of --%s is refused: %v", k.Flag, r.err)
		}
	}
}

func TestTheTokenIsWhereTheManagersOwnConfigurationPutsIt(t *testing.T) {
	env := map[string]string{"XDG_RUNTIME_DIR": "/x"}
	for _, flags := range []map[string]string{{}, {"socket": "/a/s"}, {"admin-token-file": "/t"}, {"socket": "/a/s", "admin-token-file": "/t"}} {
		cfg, err := Read(from(flags), from(env), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if path, err := TokenFile(from(flags), from(env)); err != nil || path != cfg.AdminTokenFile {
			t.Errorf("%v: %s, %v; the Manager has it at %s", flags, path, err, cfg.AdminTokenFile)
		}
	}
	if _, err := TokenFile(from(map[string]string{"admin-token-file": ""}), from(env)); err == nil {
		t.Error("an empty path was taken")
	}
}
