package tidy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Names of other programs, and of our own helpers, that pages for users may give.
var foreignFlags = map[string]string{
	"block-size": "vLLM", "kv-transfer-config": "vLLM", "max-model-len": "vLLM", "model": "vLLM", "num-gpu-blocks-override": "vLLM",
	"prefix-caching-hash-algo": "vLLM", "tensor-parallel-size": "vLLM", "enforce-eager": "vLLM", "max-num-seqs": "vLLM",
	"model-path": "SGLang", "page-size": "SGLang", "radix-cache-backend": "SGLang", "enable-unified-cache-external-linker": "SGLang",
	"enable-hierarchical-cache": "SGLang", "hicache-io-backend": "SGLang", "disable-radix-cache": "SGLang", "tp-size": "SGLang", "lora-paths": "SGLang", "sleep-on-idle": "SGLang",
	"device": "SGLang", "disable-cuda-graph": "SGLang", "attention-backend": "SGLang", "cuda-graph-backend-prefill": "SGLang", "sampling-backend": "SGLang", "enable-metrics": "SGLang", "python": "uv",
	"rw": "fio", "direct": "fio", "bs": "fio", "runtime": "fio", "norandommap": "fio", "randrepeat": "fio", "mem": "fio", "thread": "fio", "numjobs": "fio",
	"ioengine": "fio", "iodepth": "fio",
	"ipc": "docker", "pid": "docker", "shm-size": "docker", "user": "docker", "volume": "docker", "gpus": "docker", "ulimit": "docker",
	"engine": "demo/run", "keep-logs": "demo/run", "plain": "demo/run", "no-deps": "pip", "target": "pip",
}

var (
	flagName     = regexp.MustCompile("(?:^|[\\s`\"'(=])--([a-z][a-z0-9-]*)")
	variableName = regexp.MustCompile(`\bORBITKV_[A-Z0-9_]+\b`)
	keyName      = regexp.MustCompile("[`\"']orbitkv\\.([a-z_]+)[`\"':]")
	metricName   = regexp.MustCompile(`\b(?:vllm:|sglang:)?(orbitkv_[a-z0-9_]+)\b`) // an engine's name before it is no part of it
	verbFlag     = regexp.MustCompile(`\.(?:Bool|Duration|Float64|Int|Int64|IntSlice|String|StringArray|StringSlice|Uint64)(?:Var)?\((?:&[\w.]+, )?"([a-z-]+)"`)
	namedFlag    = regexp.MustCompile(`\bFlag\w+\s*= "([a-z-]+)"`)     // a flag that more than one place of the code speaks of
	toolFlag     = regexp.MustCompile(`\.add_argument\("--([a-z-]+)"`) // of a program in tools/
)

// TestUserPagesNameWhatExists keeps every flag, variable, connector key and metric of the pages for users in the reference,
// which is generated from the tables of the code or compared with them by the packages that own those.
func TestUserPagesNameWhatExists(t *testing.T) {
	var pages, reference []file
	for _, f := range treeFiles(t, ".md") {
		switch {
		case strings.HasPrefix(f.path, "docs/reference/"):
			reference = append(reference, f)
		case f.path == "README.md" || f.path == "CHANGELOG.md" || strings.HasPrefix(f.path, "docs/"):
			pages = append(pages, f)
		}
	}
	if len(pages) == 0 || len(reference) == 0 {
		t.Fatalf("%d pages for users and %d of reference: one of them was not found", len(pages), len(reference))
	}
	report(t, unknownNames(pages, reference, under(treeFiles(t, ".go"), "cmd/orbitkv/", "bench/single/"), treeFiles(t, ".py")))
}

// unknownNames finds the names in pages that neither the reference nor the code gives: flags of single verbs are read from
// the commands, flags and variables of the tools and modules of the package from the Python files.
func unknownNames(pages, reference, commands, python []file) []string {
	known := map[string]bool{}
	for _, f := range reference {
		for _, pattern := range []*regexp.Regexp{flagName, variableName, keyName, metricName} {
			for _, match := range pattern.FindAllStringSubmatch(f.text, -1) {
				known[match[len(match)-1]] = true
			}
		}
	}
	for _, f := range commands {
		for _, pattern := range []*regexp.Regexp{verbFlag, namedFlag} {
			for _, match := range pattern.FindAllStringSubmatch(f.text, -1) {
				known[match[1]] = true
			}
		}
	}
	for _, f := range python {
		if name, ok := strings.CutPrefix(f.path, "python/src/orbitkv/"); ok {
			name, _, _ = strings.Cut(name, "/")
			known[strings.TrimSuffix(name, ".py")] = true
		}
		if !strings.HasPrefix(f.path, "tools/") {
			continue
		}
		for _, name := range variableName.FindAllString(f.text, -1) {
			known[name] = true
		}
		for _, match := range toolFlag.FindAllStringSubmatch(f.text, -1) {
			known[match[1]] = true
		}
	}
	var breaches []string
	for _, page := range pages {
		for i, line := range strings.Split(page.text, "\n") {
			for _, name := range namesIn(line) {
				if _, foreign := foreignFlags[name]; !known[name] && !foreign {
					breaches = append(breaches, fmt.Sprintf("%s:%d: names %s, which docs/reference does not have", page.path, i+1, name))
				}
			}
		}
	}
	return breaches
}

// namesIn returns the names that a line gives, each once. A metric's name without a kind, such as orbitkv_ssd_, is none.
func namesIn(line string) []string {
	var names []string
	for _, pattern := range []*regexp.Regexp{flagName, variableName, keyName, metricName} {
		for _, match := range pattern.FindAllStringSubmatch(line, -1) {
			name := match[len(match)-1]
			if !slices.Contains(names, name) && !strings.HasSuffix(name, "_") {
				names = append(names, name)
			}
		}
	}
	return names
}

func TestUnknownNames(t *testing.T) {
	reference := []file{{"docs/reference/r.md", "| `--pool-size` | `ORBITKV_POOL_SIZE` | `orbitkv.socket` | `orbitkv_pool_used_bytes` | `orbitkv_load_bytes` |"}}
	commands := []file{
		{"cmd/orbitkv/status.go", `asJSON := flags.Bool("json", false, "print JSON")` + "\n" + `flags.Float64Var(&a.GiB, "gib", 1, "")`},
		{"bench/single/ask.go", "const (\n\tFlagRepeats = \"repeats\"\n)"},
	}
	python := []file{
		{"python/src/orbitkv/client.py", "x = ORBITKV_NOTHING\np.add_argument(\"--hidden\")"}, {"tools/envs.py", "ORBITKV_CACHE\np.add_argument(\"--list\")"},
	}
	for text, want := range map[string]string{
		"`orbitkv serve --pool-size 1gb`":              "",
		"`orbitkv status --json`":                      "",
		"`--pool-sizes`":                               "a.md:1: names pool-sizes, which",
		"`--repeats 5 --gib 2`, `--list`":              "",
		"`--hidden`":                                   "names hidden",
		"`vllm serve --block-size 64`":                 "",
		"set ORBITKV_POOL_SIZE or ORBITKV_CACHE":       "",
		"set ORBITKV_NOTHING":                          "names ORBITKV_NOTHING",
		"`orbitkv.socket` and `orbitkv.client`":        "",
		`{"orbitkv.sockets": 1}`:                       "names sockets",
		"`orbitkv_pool_used_bytes`":                    "",
		"`orbitkv_pool_free_bytes`":                    "names orbitkv_pool_free_bytes",
		"`vllm:orbitkv_load_bytes`":                    "",
		"`vllm:orbitkv_loads`":                         "names orbitkv_loads",
		"`sglang:orbitkv_load_bytes`":                  "",
		"a dash -- between words, a---b, `x --`, <!--": "",
	} {
		breaches := unknownNames([]file{{"a.md", text}}, reference, commands, python)
		if got := strings.Join(breaches, "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}
