"""A vLLM engine in this process's hands, without a server: prompts in, tokens and counters out.

Everything that the engine and its processes print goes to a log; only the program's own lines go to stdout. Requests
that are sent together are held back until all of them are there, so that equal rounds are scheduled in equal steps and
computed in equal shapes: then even bfloat16 gives equal tokens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine import base_environment
from orbitkv.timeline import SWITCH, Stage, parse

LOG_TAIL_BYTES = 4000
FAULT = "orbitkv.fault_injection"


@dataclass(frozen=True)
class EngineChoice:
    """How the engine is started. Texts that are empty leave the engine's or the connector's own default."""

    model: Path
    device: str
    block_tokens: int
    device_blocks: int
    max_model_len: int
    batched_tokens: int
    eager: bool = False
    runner: str = ""
    asynchronous: str = ""
    backend: str = ""
    verify: str = ""
    fault: str = ""
    query_wait_us: int = 500_000  # no request of a qualification is computed because an answer came late
    timeout_ms: int = 60_000
    traced: bool = True

    def environment(self) -> dict[str, str]:
        """Return what the engine's processes need in their environment."""
        values = {**base_environment(), SWITCH: "1" if self.traced else "0"}
        if self.runner:
            values["VLLM_USE_V2_MODEL_RUNNER"] = {"v1": "0", "v2": "1"}[self.runner]
        return values

    def connector(self, socket: str) -> dict[str, Any]:
        """Return the value of kv_transfer_config."""
        keys: dict[str, Any] = {
            "orbitkv.socket": socket,
            "orbitkv.query_wait_us": self.query_wait_us,
            "orbitkv.timeout_ms": self.timeout_ms,
        }
        named = {"orbitkv.transfer_backend": self.backend, "orbitkv.verify": self.verify, FAULT: self.fault}
        return {
            "kv_connector": "OrbitKVConnector",
            "kv_connector_module_path": "orbitkv.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {**keys, **{name: value for name, value in named.items() if value}},
        }

    def arguments(self, socket: str) -> dict[str, Any]:
        """Return the arguments of vllm.LLM."""
        found: dict[str, Any] = {
            "model": str(self.model),
            "skip_tokenizer_init": True,
            "enforce_eager": self.eager,
            "max_model_len": self.max_model_len,
            "block_size": self.block_tokens,
            "num_gpu_blocks_override": self.device_blocks,
            "max_num_batched_tokens": self.batched_tokens,
            "enable_prefix_caching": True,
            "prefix_caching_hash_algo": "sha256_cbor",
            "seed": 0,
            "disable_log_stats": False,
            "kv_transfer_config": self.connector(socket),
        }
        if self.asynchronous:
            found["async_scheduling"] = self.asynchronous == "on"
        if self.device == "cpu":
            found["dtype"] = "float32"
        return found


@dataclass(frozen=True)
class Answer:
    """What one request gave: its tokens, and how many of its prompt came from any cache."""

    tokens: tuple[int, ...]
    cached: int


@dataclass(frozen=True)
class Counts:
    """The engine's own counters since its start: prompt tokens by origin, preemptions, failed restores."""

    device: int
    external: int
    preemptions: int
    load_failures: int

    def since(self, before: Counts) -> Counts:
        """Return what was added after an earlier reading."""
        return Counts(
            self.device - before.device,
            self.external - before.external,
            self.preemptions - before.preemptions,
            self.load_failures - before.load_failures,
        )


class Offline:
    """One running engine. `close` ends its processes."""

    def __init__(self, choice: EngineChoice, socket: str, log: Path) -> None:
        """Start it; stdout and stderr of this process must go to `log` already, since its processes inherit them."""
        os.environ.update(choice.environment())
        from vllm import LLM

        self.choice = choice
        self._log = log
        self._llm: Any = LLM(**choice.arguments(socket))

    def close(self) -> None:
        """End the engine."""
        self._llm.llm_engine.engine_core.shutdown()

    def ask(self, prompt: list[int], tokens: int, salt: str = "") -> Answer:
        """Complete one prompt while no other runs."""
        return self.ask_together([prompt], tokens, salt)[0]

    def ask_together(self, prompts: Sequence[list[int]], tokens: int, salt: str = "") -> list[Answer]:
        """Complete prompts that all wait when the first of them is scheduled."""
        if len(prompts) > 1:
            self._llm.sleep(level=0, mode="keep")
        self.enqueue(prompts, tokens, salt)
        if len(prompts) > 1:
            self._llm.wake_up(tags=["scheduling"])
        return self.wait()

    def enqueue(self, prompts: Sequence[list[int]], tokens: int, salt: str = "") -> None:
        """Send prompts; the engine begins at once."""
        extra = {"cache_salt": salt} if salt else {}
        requests = [{"prompt_token_ids": prompt, **extra} for prompt in prompts]
        self._llm.enqueue(requests, sampling(tokens), use_tqdm=False)

    def wait(self) -> list[Answer]:
        """Return the answers of everything that was sent, in the order of sending."""
        outputs = self._llm.wait_for_completion(use_tqdm=False)
        return [Answer(tuple(each.outputs[0].token_ids), each.num_cached_tokens or 0) for each in outputs]

    def gaps(self, prompt: list[int], tokens: Sequence[int]) -> list[float]:
        """Return how much likelier than each token the likeliest one is (log), computed anew without any cache."""
        params = sampling(1, prompt_logprobs=1)
        request = {"prompt_token_ids": [*prompt, *tokens]}
        (output,) = self._llm.generate([request], params, use_tqdm=False)
        rows = output.prompt_logprobs[len(prompt) :]
        return [
            max(value.logprob for value in row.values()) - row[token].logprob
            for row, token in zip(rows, tokens, strict=True)
        ]

    def reset_device(self) -> bool:
        """Empty the engine's own prefix cache and keep the Manager's pages; False while somebody holds a block."""
        return bool(self._llm.reset_prefix_cache())

    def counts(self) -> Counts:
        """Return the engine's counters."""
        return counted(self._llm.get_metrics())

    def restores(self) -> tuple[int, int]:
        """Return how many restores the timeline has, and how many of them no layer hook waited for."""
        with self._log.open(encoding="utf-8", errors="replace") as log:
            return count_restores(log)


def counted(metrics: Iterable[Any]) -> Counts:
    """Return the counters among an engine's metrics, as vllm.v1.metrics.reader gives them."""
    names = ("prefix_cache_hits", "external_prefix_cache_hits", "num_preemptions", "orbitkv_load_failure")
    sums = dict.fromkeys(names, 0)
    for metric in metrics:
        name = metric.name.removeprefix("vllm:")
        if name in sums:
            sums[name] += int(metric.value)
    return Counts(*(sums[name] for name in names))


def count_restores(lines: Iterator[str] | Sequence[str]) -> tuple[int, int]:
    """Return how many restores the lines of a timeline tell of, and how many of them no layer was waited for in.

    A request that is preempted may have several.
    """
    submitted: dict[str, list[bool]] = {}
    for line in lines:
        record = parse(line)
        if record is None or "request_id" not in record:
            continue
        hooked = submitted.setdefault(str(record["request_id"]), [])
        if record["stage"] == Stage.RESTORE_SUBMIT.value:
            hooked.append(False)
        elif record["stage"] == Stage.LAYER_USED.value and hooked:
            hooked[-1] = True
    every = [hooked for restores in submitted.values() for hooked in restores]
    return len(every), every.count(False)


def sampling(tokens: int, **options: Any) -> Any:
    """Return the parameters of a greedy request."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True, **options)


@contextmanager
def logged(log: Path) -> Iterator[Callable[[str], object]]:
    """Send everything that this process and its children print to a file; yield what writes a line to stdout."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with log.open("ab") as out, os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as lines:
        for number in (1, 2):
            os.dup2(out.fileno(), number)
        try:
            yield lambda line: lines.write(line + "\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


def tail(log: Path) -> str:
    """Return the end of a log."""
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
