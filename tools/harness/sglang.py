"""One real SGLang server on a CPU: its command line, its environment, and what tests say to it over HTTP.

The engine takes and gives token ids, without a tokenizer. What it counts as cached is read from each answer, split
into what its device held and what came from outside of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sglangcpu
from harness import http
from harness.checkpoint import Checkpoint, ensure
from harness.engine import Completion
from harness.manager import eventually
from harness.plugin import installed
from harness.pool import ServerPool
from harness.server import START_LIMIT_S, EngineFailure, Server, search_path

DEVICE = ("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch")
# No warm-up request: a test counts every token that the engine was ever asked for.
PLAIN = ("--served-model-name", "tiny", "--skip-tokenizer-init", "--skip-server-warmup", "--enable-metrics")
ORBITKV = ("--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker")


@dataclass(frozen=True)
class SglangConfig:
    """Everything that tells one engine process from another; equal values may share one process.

    `device_tokens` is the size of the engine's own cache. `chunked_prefill` is the most tokens of one prefill step.
    With `orbitkv` the engine runs with the product's backend; what that needs is named in `environment`.
    """

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    page_size: int = 16
    device_tokens: int = 8192
    running_requests: int = 8
    chunked_prefill: int = 2048
    overlap: bool = True
    ranks: int = 1
    dtype: str = "bfloat16"
    orbitkv: bool = False
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def command(self, port: int) -> list[str]:
        """Return the server's command line, run by the interpreter that runs this."""
        line = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
        line += ["--model-path", str(ensure(self.checkpoint)), "--dtype", self.dtype, *DEVICE, *PLAIN]
        line += ["--page-size", str(self.page_size), "--max-total-tokens", str(self.device_tokens)]
        line += ["--max-running-requests", str(self.running_requests), "--random-seed", "1"]
        line += ["--chunked-prefill-size", str(self.chunked_prefill), "--log-level", "info"]
        if not self.overlap:
            line += ["--disable-overlap-schedule"]
        if self.ranks > 1:
            line += ["--tp-size", str(self.ranks), "--disable-custom-all-reduce"]
        if self.orbitkv:
            line += ORBITKV
        return [*line, *self.arguments]

    def whole_environment(self) -> dict[str, str]:
        """Return the whole environment of the server."""
        return {**base_environment(), **rank_environment(self.ranks), **dict(self.environment)}


def base_environment() -> dict[str, str]:
    """Return this process's environment with what every engine on a machine without a GPU or network needs."""
    return {
        **os.environ,
        **sglangcpu.variables(Path(sys.prefix)),
        "PYTHONPATH": search_path(sglangcpu.STANDINS, installed()),
        "PYTHONUNBUFFERED": "1",
        # /health answers without a request of its own, which would take a second and a place in the cache.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def rank_environment(ranks: int) -> dict[str, str]:
    """Return what several ranks on one CPU need: a core each, and no search for NVIDIA's library of collectives."""
    if ranks == 1:
        return {}
    cores = sorted(os.sched_getaffinity(0))
    bound = "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
    return {"SGLANG_CPU_OMP_THREADS_BIND": bound, "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so"}


@dataclass(frozen=True)
class Generation(Completion):
    """What one request gave. `device_tokens` and `external_tokens` of its prompt were cached on and off the device."""

    device_tokens: int
    external_tokens: int


@dataclass(frozen=True)
class Load:
    """What an engine works on: requests, and tokens that its device holds for them and for its prefix cache."""

    running: int
    waiting: int
    used_tokens: int


@dataclass
class SglangEngine(Server[SglangConfig]):
    """A running SGLang server. Use `start`, or the `engines` fixture in tests."""

    @classmethod
    def start(cls, config: SglangConfig, log: Path, limit_s: float = START_LIMIT_S) -> SglangEngine:
        """Start the server, once nothing that a killed engine left makes it wait for ever."""
        sglangcpu.remove_abandoned_lock(Path(sys.prefix))
        return super().start(config, log, limit_s)

    def generate(self, prompt: list[int], max_tokens: int = 8, **options: Any) -> Generation:
        """Stream one greedy answer to token ids with the logprob of each token. `options` are further fields."""
        body = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": True},
            "stream": True,
            "return_logprob": True,
            # Prompt logprobs would be computed from the first token, which leaves no prefix to take from a cache.
            "logprob_start_len": -1,
            **options,
        }
        begun = time.monotonic()
        return _collect(http.stream(self.port, "/generate", body), begun)

    def flush(self) -> None:
        """Empty the engine's own prefix cache. It refuses while anything runs, so it is asked until it has done so."""
        eventually(self.try_flush, "the engine is idle and its prefix cache is empty")

    def try_flush(self) -> bool:
        """Ask once to empty the prefix cache, and return whether that was done."""
        return http.post(self.port, "/flush_cache", {}).status == 200

    def update_weights(self, weights: Checkpoint | Path) -> None:
        """Load other weights of the same shape in place; EngineFailure when the engine refuses.

        Weights of another shape end the engine, and so does an update of one that is not idle: a request that was
        answered may still be in its scheduler, which asserts after the update that its cache could be flushed
        (`flush_cache_after_weight_update` of SGLang 0.5.20). So the engine is idle first.
        """
        folder = ensure(weights) if isinstance(weights, Checkpoint) else weights
        self.flush()
        answer = http.post(self.port, "/update_weights_from_disk", {"model_path": str(folder)}).json()
        if not answer["success"]:
            raise EngineFailure(f"the engine did not take the weights in {folder}: {answer['message']}")

    def load(self) -> Load:
        """Return what the engine works on now; its /metrics may lag behind by many steps."""
        ranks = http.get(self.port, "/v1/loads").json()["loads"]
        names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
        return Load(*(sum(rank[name] for rank in ranks) for name in names))

    def abort(self, request: str) -> None:
        """Abort the request of that id (`rid` of `generate`); an id that nobody has is ignored."""
        self._post("/abort_request", {"rid": request})

    def abort_all(self) -> None:
        """Abort every request."""
        self._post("/abort_request", {"abort_all": True})

    def _post(self, path: str, body: dict[str, Any]) -> None:
        answer = http.post(self.port, path, body)
        if answer.status != 200:
            raise EngineFailure(f"the engine answered {answer.status} to {path}: {answer.text()}")


class SglangPool(ServerPool[SglangConfig, SglangEngine]):
    """The pool of SGLang."""

    def __init__(self) -> None:
        super().__init__(SglangEngine, "sglang")


def _collect(events: Iterator[dict[str, Any]], begun: float) -> Generation:
    """Fold the stream of an answer into one value: each event holds everything so far; an error event raises."""
    first_s, last = 0.0, None
    for event in events:
        if "error" in event:
            raise EngineFailure(f"the engine answered a request with an error: {event['error']}")
        if event["output_ids"] and not first_s:
            first_s = time.monotonic() - begun
        last = event
    if last is None:
        raise EngineFailure("the engine answered a request with nothing")
    facts = last["meta_info"]
    cached = facts.get("cached_tokens_details") or {}
    return Generation(
        tokens=tuple(last["output_ids"]),
        text="",
        # A request that was aborted before it ran has neither.
        prompt_tokens=facts.get("prompt_tokens", 0),
        cached_tokens=facts.get("cached_tokens", 0),
        first_token_s=first_s,
        total_s=time.monotonic() - begun,
        finish_reason=facts["finish_reason"]["type"],
        device_tokens=cached.get("device", 0),
        external_tokens=cached.get("host", 0),
        logprobs=tuple(logprob for logprob, *_ in facts.get("output_token_logprobs", ())),
    )
