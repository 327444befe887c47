package launch

import (
	"strings"
	"testing"
)

// vllmDeath is the shape of vLLM's log when a process of it cannot be started: the reason first, then the echo of the process above.
const vllmDeath = `INFO 11-29 20:00:01 [api_server.py:100] vLLM server version 0.29.0
(EngineCore pid=11) ERROR 11-29 20:00:02 [core.py:1100] EngineCore failed to start.
(EngineCore pid=11) ERROR 11-29 20:00:02 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=11) ERROR 11-29 20:00:02 [core.py:1100]   File "core.py", line 1074, in run_engine_core
(EngineCore pid=11) ERROR 11-29 20:00:02 [core.py:1100]     engine_core = EngineCoreProc(*args, **kwargs)
(EngineCore pid=11) ERROR 11-29 20:00:02 [core.py:1100] ModuleNotFoundError: No module named 'flexkv'
(EngineCore pid=11) Process EngineCore:
(APIServer pid=10) Traceback (most recent call last):
(APIServer pid=10)   File "api_server.py", line 90, in run_server
(APIServer pid=10)     raise RuntimeError(
(APIServer pid=10) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
`

const vllmEcho = `(EngineCore pid=11) Traceback (most recent call last):
(EngineCore pid=11)   File "multiproc_executor.py", line 700, in wait_for_response
(EngineCore pid=11) RuntimeError: Worker failed with error 'FlexKV is not installed.', please check the stack trace above for the root cause
`

const sglangDeath = `[2026-11-29 20:00:01] server_args=ServerArgs(model_path='x')
[2026-11-29 20:00:05] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 3000, in run_scheduler_process
    scheduler = Scheduler(server_args)
orbitkv.adapter.errors.ConfigurationError: the page size 1 is refused

[2026-11-29 20:00:05] Received sigquit from a child process. It usually means the child failed.
`

func TestLastReason(t *testing.T) {
	for _, c := range []struct{ name, log, want string }{
		{"the echo of vLLM's first process is passed over", vllmDeath, "ModuleNotFoundError: No module named 'flexkv'"},
		{
			"the echo of a worker quotes its reason",
			"(Worker pid=12) ERROR 11-29 20:00:02 [w.py:9] Traceback (most recent call last):\n(Worker pid=12) ERROR 11-29 20:00:02 [w.py:9]   File \"w.py\"\n" +
				"(Worker pid=12) ERROR 11-29 20:00:02 [w.py:9] ImportError: FlexKV is not installed.\n" + vllmEcho,
			"ImportError: FlexKV is not installed.",
		},
		{"SGLang's scheduler", sglangDeath, "orbitkv.adapter.errors.ConfigurationError: the page size 1 is refused"},
		{"the echo alone", "Traceback (most recent call last):\n  File \"a\"\nKeyboardInterrupt\n", "KeyboardInterrupt"},
		{
			"one exception behind another",
			"Traceback (most recent call last):\n  File \"a\"\nKeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"b\"\nValueError: no x\n",
			"ValueError: no x",
		},
		{"a wrong flag", "usage: server [-h]\nserver: error: unrecognized arguments: --nonsense\n", "server: error: unrecognized arguments: --nonsense"},
		{"a line of error before others", "\x1b[31mERROR 11-29 20:00:02 [a.py:1] no such device\x1b[0m\nINFO 11-29 20:00:03 [a.py:2] bye\n", "no such device"},
		{"the Manager", "time=2026-11-29T20:00:00Z level=INFO msg=start\norbitkv: --pool-size: 5 is too small: give at least 1mib\n", "orbitkv: --pool-size: 5 is too small: give at least 1mib"},
		{"a line that is no text", "\x1b]0;title\x07\x1b[2Jerror:\tbad \u202e thing\x00\xff\n", "?]0;title?error: bad ? thing??"},
		{"a line without end", "error: " + strings.Repeat("é", tailBytes), "error: " + strings.Repeat("é", reasonRunes-7) + "..."},
		{"nothing", "\n\n", ""},
	} {
		if got := lastReason(c.log); got != c.want {
			t.Errorf("%s: the reason is %q; want %q", c.name, got, c.want)
		}
	}
}
