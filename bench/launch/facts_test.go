package launch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"orbitkv/bench/record"
)

func TestReadModel(t *testing.T) {
	for _, c := range []struct {
		name, config string
		want         record.Model
	}{
		{
			"grouped heads",
			`{"model_type":"qwen3","num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"hidden_size":4096,"vocab_size":151936,"max_position_embeddings":40960}`,
			record.Model{Type: "qwen3", Layers: 36, KVHeads: 8, HeadDim: 128, Vocabulary: 151936, Positions: 40960, BytesPerToken: 147456},
		},
		{
			"every head has keys, and their size is not told",
			`{"model_type":"gpt","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":256,"vocab_size":100}`,
			record.Model{Type: "gpt", Layers: 2, KVHeads: 4, HeadDim: 64, Vocabulary: 100, BytesPerToken: 2048},
		},
		{
			"latent attention",
			`{"model_type":"deepseek_v2","num_hidden_layers":10,"num_attention_heads":16,"num_key_value_heads":16,"hidden_size":2048,"vocab_size":100,"kv_lora_rank":512,"qk_rope_head_dim":64}`,
			record.Model{Type: "deepseek_v2", Layers: 10, KVHeads: 1, HeadDim: 576, Vocabulary: 100, BytesPerToken: 11520},
		},
		{
			"a language model inside",
			`{"model_type":"vlm","text_config":{"model_type":"t","num_hidden_layers":1,"num_attention_heads":1,"head_dim":8,"vocab_size":9}}`,
			record.Model{Type: "vlm", Layers: 1, KVHeads: 1, HeadDim: 8, Vocabulary: 9, BytesPerToken: 32},
		},
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadModel(folder)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if len(got.ConfigSHA256) != 64 {
			t.Errorf("%s: the digest is %q", c.name, got.ConfigSHA256)
		}
		c.want.Path, c.want.ConfigSHA256 = folder, got.ConfigSHA256
		if got != c.want {
			t.Errorf("%s: the model is %+v; want %+v", c.name, got, c.want)
		}
	}
}

func TestFoldersThatAreNoModel(t *testing.T) {
	folder := t.TempDir()
	if _, err := ReadModel(folder); err == nil || !strings.Contains(err.Error(), "is no folder of a model") {
		t.Errorf("an empty folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(`{"model_type":"mamba","num_hidden_layers":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadModel(folder); err == nil || !strings.Contains(err.Error(), "does not tell layers") {
		t.Errorf("a model without attention: %v", err)
	}
	for word, put := range map[string]func(string) error{
		"is no ordinary file":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"at most 4194304 are read": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
		"too many levels":          func(path string) error { return os.Symlink(path, path) },
	} {
		folder := t.TempDir()
		if err := put(filepath.Join(folder, "config.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadModel(folder); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v; want it to say %q", err, word)
		}
	}
}

func TestStorageOf(t *testing.T) {
	folder := t.TempDir()
	s, err := StorageOf("output", folder)
	if err != nil || s.Mount == "" || s.Filesystem == "" || s.Direct != "not used" || s.Path != folder {
		t.Errorf("the output lies on %+v, %v", s, err)
	}
	if _, err := StorageOf("model", filepath.Join(folder, "absent")); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a path that is not there: %v", err)
	}
}

func TestMachine(t *testing.T) {
	if m := Machine(t.Context()); m.CPU == "" || m.CPUs == 0 || m.NUMANodes == 0 || m.MemoryBytes == 0 || m.Kernel == "" {
		t.Errorf("the machine is %+v", m)
	}
	root := fstest.MapFS{
		"proc/cpuinfo":                             {Data: []byte("processor\t: 0\nmodel name\t: A: fast one\n")},
		"proc/loadavg":                             {Data: []byte("13.27 9.11 6.87 5/321 4242\n")},
		"proc/stat":                                {Data: []byte("cpu  1 2 3\ncpu0 1 2 3\ncpu5 1 2 3\nintr 4\ncpus 9\n")},
		"sys/devices/system/node/node0/cpulist":    {},
		"sys/devices/system/node/node1/cpulist":    {},
		"sys/devices/system/node/possible":         {},
		"sys/devices/system/node/node_other/thing": {},
	}
	if name, nodes := cpuName(root), numaNodes(root); name != "A: fast one" || nodes != 2 {
		t.Errorf("the processor is %q with %d nodes", name, nodes)
	}
	if load, processors := loadAverage(root), onlineProcessors(root); load != 13.27 || processors != 2 {
		t.Errorf("the load is %g on %d processors", load, processors)
	}
	if load, processors := loadAverage(fstest.MapFS{}), onlineProcessors(fstest.MapFS{}); load != 0 || processors != 0 {
		t.Errorf("without files the load is %g on %d processors", load, processors)
	}
	if name, nodes := cpuName(fstest.MapFS{}), numaNodes(fstest.MapFS{}); name == "" || nodes != 1 {
		t.Errorf("without files the processor is %q with %d nodes", name, nodes)
	}
}

func TestGPURows(t *testing.T) {
	rows := [][]string{{"GPU-1", "NVIDIA H20", "97871", "580.1", "5", "16", "1980", "500.00"}, {"a", "torn", "row"}, {"GPU-2", "vGPU", "[N/A]", "580.1", "[N/A]", "[N/A]", "1980", "[N/A]"}}
	got := gpuRows(rows, map[string]int{"GPU-1": 2})
	want := record.GPU{Name: "NVIDIA H20", MemoryMiB: 97871, Driver: "580.1", PCIe: "gen 5 x16", SMClock: "1980", PowerCap: "500.00", OtherUses: 2}
	if len(got) != 2 || got[0] != want || got[1].Name != "vGPU" || got[1].MemoryMiB != 0 {
		t.Errorf("the GPUs are %+v", got)
	}
}

func TestVisibleGPUs(t *testing.T) {
	rows := [][]string{{"GPU-1a"}, {"GPU-1b"}, {"GPU-2"}}
	for names, want := range map[string][][]string{
		"": rows, "1": rows[1:2], "2,0": {rows[2], rows[0]}, "GPU-2": rows[2:], " GPU-1b , 0": {rows[1], rows[0]}, "MIG-1": rows, "7": rows, "-1": rows,
	} {
		if got := visible(rows, names); !reflect.DeepEqual(got, want) {
			t.Errorf("%q leaves %v; want %v", names, got, want)
		}
	}
}

func TestProbe(t *testing.T) {
	folder := t.TempDir()
	program := func(text string) string {
		path := filepath.Join(folder, "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	answer := `{"python": "cpython 3.12.1", "packages": {"vllm": "0.29.0"}, "link_bytes_per_s": 5e9, "link_how": "x"}`
	p, err := RunProbe(t.Context(), os.Args[0], program("echo a warning; test \"$1\" = -c && test \"$3\" = cpu && echo '"+answer+"'"), OnCPU)
	if err != nil || p.Python != "cpython 3.12.1" || p.Packages["vllm"] != "0.29.0" || p.LinkBytesPerS != 5e9 || p.LinkHow != "x" {
		t.Errorf("the probe is %+v, %v", p, err)
	}
	p, err = RunProbe(t.Context(), os.Args[0], program(`test "$3" = cuda && echo '{"python": "cpython 3", "cuda_device": "NVIDIA H20"}'`), OnCUDA)
	if err != nil || p.CUDADevice != "NVIDIA H20" {
		t.Errorf("the probe is %+v, %v", p, err)
	}
	for _, c := range []struct{ text, want string }{
		{"true", "unexpected end of JSON input"},
		{"echo '{}'", "names no Python"},
		{`echo '{"python": "cpython 3", "link_bytes_per_s": -5}'`, "a link of -5 bytes"},
		{"echo 'SyntaxError: invalid syntax' >&2; exit 1", `exit status 1, and the last that it said was "SyntaxError: invalid syntax"`},
	} {
		_, err := RunProbe(t.Context(), os.Args[0], program(c.text), OnCPU)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "name the interpreter") {
			t.Errorf("%s: the error is %v; want it to say %q", c.text, err, c.want)
		}
	}
	if _, err := RunProbe(t.Context(), os.Args[0], filepath.Join(folder, "absent"), OnCPU); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestAProbeLeavesNothing runs programs that start another process, one that ends and one that is broken off.
func TestAProbeLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	pids := filepath.Join(folder, "pids")
	t.Setenv(pidsVariable, pids)
	for name, text := range map[string]string{
		"ended":      `setsid sleep 1000 >/dev/null 2>&1 & echo $! >>$` + pidsVariable + `; echo '{"python": "cpython 3"}'`,
		"broken off": `sleep 1000 & echo $! >>$` + pidsVariable + `; wait`,
	} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(pids); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := RunProbe(ctx, os.Args[0], path, OnCPU)
			ended <- err
		}()
		left := tree(t, pids, 1)
		if name == "broken off" {
			cancel()
		}
		if err := <-ended; (err != nil) != (ctx.Err() != nil) || err != nil && strings.Contains(err.Error(), "name the interpreter") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		awaitGone(t, left)
	}
}

// TestAProbeOfAKilledMeasurementLeavesNothing: what the probe started knows nothing of the measurement.
func TestAProbeOfAKilledMeasurementLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	pids, python := filepath.Join(folder, "pids"), filepath.Join(folder, "python")
	t.Setenv(pidsVariable, pids)
	text := "#!/bin/sh\nsleep 1000 & echo $! >>$" + pidsVariable + "\nsetsid sleep 1000 & echo $! >>$" + pidsVariable + "\necho $$ >>$" + pidsVariable + "\nwait\n"
	if err := os.WriteFile(python, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	measurement := exec.Command(os.Args[0], roleProber, python)
	if err := measurement.Start(); err != nil {
		t.Fatal(err)
	}
	left := tree(t, pids, 3)
	killMeasurement(t, measurement)
	awaitGone(t, left)
}
